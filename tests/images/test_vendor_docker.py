"""Vendors' images have habits of their own. Stand-ins with many of them at once go through the whole pipeline."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from build import cache, verbs
from build.bases import disk
from build.bases.inspect import inspect_base
from build.bases.reach import LIMIT_BYTES, check_reach, opened
from build.bases.resolve import resolve_base
from build.containers import LABEL, Engine
from build.errors import EnvironmentCannot
from build.inspection import Inspection
from build.matrix.load import load_matrix
from build.matrix.model import Matrix, Target
from build.outcome import BuildOptions
from tests.image_stand_ins import base_facts
from tests.images.vendor_stand_in.registry import loopback_registry

RECIPE = Path(__file__).with_name("vendor_stand_in")
PATH = "vllm/vllm-openai"
SHARED = ("downloads", "locks", "rootfs")
"""Folders of the build cache that a test may share: what was fetched stays fetched."""


@dataclass(frozen=True)
class Ground:
    """A registry that has the stand-ins under a vendor's path, a tag each, and a matrix of images made from them."""

    engine: Engine
    matrix: Matrix
    registry: str
    site: str

    def vendor(self, name: str) -> str:
        return f"{self.registry}/{PATH}:{name}"

    def image(self, name: str) -> str:
        return f"deepinfer:stand-in-{name}"

    def build(self, name: str) -> int:
        """`./run build --image stand-in-NAME --base vendor --registry HOST:PORT`: the exit code."""
        return verbs.build(f"stand-in-{name}", BuildOptions(base="vendor", registry=self.registry))

    def run(self, name: str, *argv: str, user: str | None = None) -> str:
        """What a program prints in the finished image."""
        done = self.engine.run(self.image(name), argv, user=user, owner="vendor-test")
        assert done.returncode == 0, done.stderr
        return done.stdout

    def serve(self, name: str, user: str | None = None) -> dict[str, Any]:
        """What the vendor's own program tells in the finished image."""
        said: dict[str, Any] = json.loads(self.run(name, "vllm", "serve", "model", user=user).splitlines()[-1])
        return said

    def document(self, name: str) -> dict[str, Any]:
        read: dict[str, Any] = json.loads(self.run(name, "cat", "/opt/deepinfer/image.json"))
        return read


def stand_in_target(cpu: Target, name: str) -> Target:
    """The cpu image, as if a vendor had made its base."""
    return dataclasses.replace(
        cpu, name=f"stand-in-{name}", vendor=f"{PATH}:{name}", vendor_gb=0.1, replica=None, vendor_modules=("vllm",)
    )


def remove(engine: Engine, names: list[str]) -> None:
    """Remove the stand-ins, what was made from them, and their builders."""
    for name in names:
        for image in engine.client.images.list(filters={"label": f"{LABEL}.image=stand-in-{name}"}):
            engine.client.images.remove(image.id, force=True)
    for image in engine.client.images.list():
        for tag in image.tags:
            if f"/{PATH}:" in tag or tag.startswith("deepinfer-test:vendor-"):
                engine.client.images.remove(tag, force=True)


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    try:
        engine = Engine.connect()
    except EnvironmentCannot as problem:
        pytest.skip(f"needs a Docker engine: {problem.what}")
    if disk.free_gb(engine) is None:
        pytest.skip("the engine is on another machine, from which a registry on this one's loopback cannot be reached")
    matrix = load_matrix()
    cpu = matrix.targets["cpu"]
    names = ["system", "home", "private", "conda"]
    base = resolve_base(engine, cpu, "replica")
    site = inspect_base(engine, base.reference).site
    folder = tmp_path_factory.mktemp("vendor")
    # Blobs are kept from run to run: packing torch takes the engine a minute, asking whether it is there no time.
    store = cache.folder("test-registry")
    own_cache = shared_cache(folder / "cache")
    matrix = dataclasses.replace(matrix, targets={f"stand-in-{name}": stand_in_target(cpu, name) for name in names})
    with pytest.MonkeyPatch.context() as patch, loopback_registry(folder, store) as registry:
        ground = Ground(engine, matrix, registry, site)
        for name in names:
            local = f"deepinfer-test:vendor-{name}"
            args = {"BASE": base.reference, "SITE": site}
            engine.build(RECIPE, tag=local, target=name, args=args, log=folder / "build.log")
            engine.tag(local, ground.vendor(name))
            for line in engine.client.images.push(ground.vendor(name), stream=True, decode=True):
                assert "error" not in line, line
            engine.client.images.remove(ground.vendor(name))
        patch.setenv("DEEPINFER_BUILD_CACHE", str(own_cache))
        patch.setattr(verbs, "load_matrix", lambda: matrix)
        yield ground
        remove(engine, names)


def shared_cache(folder: Path) -> Path:
    """A cache without anything compiled, so that it is compiled here; downloads and ccache are those of the machine."""
    folder.mkdir()
    for name in SHARED:
        (folder / name).symlink_to(cache.folder(name))
    (folder / "ccache").mkdir()
    kept = cache.folder("ccache") / "_C.tar"
    if kept.is_file():
        shutil.copyfile(kept, folder / "ccache/_C.tar")
    return folder


@pytest.fixture(scope="module")
def system(ground: Ground) -> Ground:
    assert ground.build("system") == 0
    return ground


@pytest.fixture(scope="module")
def home(ground: Ground) -> Ground:
    assert ground.build("home") == 0
    return ground


@pytest.mark.docker
def test_a_vendors_image_is_pulled_compiled_against_and_passes_every_gate(system: Ground) -> None:
    labels = system.engine.labels(system.image("system"))
    assert labels[f"{LABEL}.base"] == "vendor"
    assert labels["org.opencontainers.image.base.name"] == system.vendor("system")
    assert labels["org.opencontainers.image.base.digest"].startswith("sha256:")
    assert "replica" not in "".join(system.engine.client.images.get(system.image("system")).tags)
    document = system.document("system")
    assert document["components"]["_C"]["status"] == "installed"
    (made,) = [path for path in cache.folder("wheelhouse").iterdir() if any(path.glob("_C*.so"))]
    assert json.loads((made / "meta.json").read_text())["seconds"] > 0, "compiled on this base, not found"


@pytest.mark.docker
def test_the_vendors_program_works_as_before_in_the_image(system: Ground) -> None:
    for user in (None, "12345", "0"):
        said = system.serve("system", user)
        assert said["served"] == ["model"]
        assert said["version"] == "0.32.0"
        assert said["deep_gemm"] == f"{system.site}/vllm/third_party/deep_gemm/__init__.py"
        assert said["started_by"] == "sitecustomize"
        assert said["nccl"] == 22005, "what the vendor's processes find by name"
        assert said["uid"] == int(user or 10001)
        assert said["ours"] == []


@pytest.mark.docker
def test_what_the_vendor_set_is_kept_unless_it_was_for_root_alone(system: Ground) -> None:
    config = system.engine.image_config(system.image("system"))["Config"]
    environment = dict(entry.split("=", 1) for entry in config["Env"])
    assert environment["LD_LIBRARY_PATH"] == ":/opt/vendor/lib:"
    assert environment["PYTHONPATH"] == "/opt/vendor/python"
    assert environment["CUDA_HOME"] == "/usr/local/cuda"
    assert environment["HOME"] == "/home/deepinfer"
    assert environment["PATH"] == "/opt/vendor/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/bin"
    assert config["Shell"] == ["/usr/bin/python3", "-c"]
    assert (config["Entrypoint"], config["User"]) == (["deepinfer"], "10001:10001")
    assert any("LD_LIBRARY_PATH" in note for note in system.document("system")["notes"])
    report = system.run("system", "deepinfer", "env", "--json")
    assert json.loads(report[report.index("\n{") :])["parts"]


@pytest.mark.docker
def test_both_nccl_files_of_a_base_stay_where_torch_loads_neither(system: Ground) -> None:
    found = inspect_base(system.engine, system.image("system")).nccl
    assert [library.path for library in found] == [
        "/usr/lib/x86_64-linux-gnu/libnccl.so.2.20.5",
        f"{system.site}/nvidia/nccl/lib/libnccl.so.2",
    ]
    assert "nccl" not in system.document("system")["declared"]


@pytest.mark.docker
def test_a_python_in_roots_home_works_for_users(home: Ground) -> None:
    python = "/root/.venv/bin/python3"
    closed = inspect_base(home.engine, home.vendor("home"))
    assert closed.executable == python
    for user in (None, "12345"):
        report = json.loads(home.run("home", "deepinfer", "env", "--json", user=user))
        assert report["parts"]
        assert home.serve("home", user)["python"] == python
        assert home.serve("home", user)["deep_gemm"].startswith("/root/.venv/"), "it was private"
    assert home.run("home", "stat", "-c", "%a", "/root", "/root/.local", user="0").split() == ["711", "711"]
    listing = home.engine.run(home.image("home"), ["ls", "/root"], owner="vendor-test")
    assert listing.returncode != 0 and "Permission denied" in listing.stderr
    declared = home.document("home")["declared"]["opened"]
    assert declared == {"pass": ["/root", "/root/.local"], "read": [closed.unreadable[0]]}


@pytest.mark.docker
def test_a_python_that_is_private_as_a_whole_is_refused_before_anything_is_made(
    ground: Ground, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ground.build("private") == 4
    said = capsys.readouterr().err
    assert "only root can read the Python at /root/.venv/bin/python3" in said and "(30 MB)" in said
    assert "chmod -R go+rX" in said
    assert ground.engine.image_id(ground.image("private")) is None


@pytest.mark.docker
def test_a_prefix_in_opt_is_found_and_its_own_site_is_used(ground: Ground) -> None:
    assert verbs.inspect("stand-in-conda", "vendor", registry=ground.registry, as_json=True) == 0
    found = inspect_base(ground.engine, ground.vendor("conda"))
    assert found.executable == "/opt/conda/bin/python3"
    assert found.site.startswith("/opt/conda/")
    assert found.torch_path == f"{ground.site}/torch"
    assert (found.closed, found.unreadable) == ((), ())


def reached(**changes: object) -> Inspection:
    return dataclasses.replace(base_facts(), **changes)  # type: ignore[arg-type]


def test_a_few_private_files_are_opened_and_many_are_refused() -> None:
    few = reached(closed=("/root",), unreadable=("/root/a.py",), unreadable_bytes=100)
    check_reach(few)
    assert opened(few) == {"pass": ["/root"], "read": ["/root/a.py"]}
    assert opened(base_facts()) == {}
    with pytest.raises(EnvironmentCannot, match=r"1 of its files \(20 MB\), such as /root/a.py"):
        check_reach(reached(unreadable=("/root/a.py",), unreadable_bytes=LIMIT_BYTES + 1))
    with pytest.raises(EnvironmentCannot, match="2000 or more of its files"):
        check_reach(reached(unreadable=tuple(f"/root/{number}.py" for number in range(2001)), unreadable_bytes=1))
