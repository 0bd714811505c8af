"""Inspections of real containers: bases that lack what a base should have are described, not crashed over."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from build import cache
from build.bases import inspect
from build.bases.inspect import check_base, differences, inspect_base
from build.bases.replica import make_replica, reference, system_image
from build.bases.rootfs import rootfs
from build.containers import Engine
from build.errors import EnvironmentCannot
from build.inspection import Inspection
from build.matrix.load import load_matrix
from build.matrix.model import Target
from tests.image_stand_ins import load_empty

pytestmark = pytest.mark.docker

CRASHING = "import ctypes; ctypes.string_at(0)"
DIST = "/usr/local/lib/python3.11/dist-packages"
Make = Callable[..., str]


@pytest.fixture(scope="module")
def cpu() -> Target:
    return load_matrix().targets["cpu"]


@pytest.fixture(scope="module")
def system(engine: Engine, cpu: Target, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The operating-system layer below the cpu replica: Debian with Python and g++. Made where it is not here."""
    assert cpu.replica is not None
    with cache.locked("replica", waiting_for="build of a replica"):
        root = rootfs(engine, cpu.replica.suite)
        return system_image(engine, cpu.replica, root, tmp_path_factory.mktemp("system") / "log")


@pytest.fixture
def make(engine: Engine, tmp_path: Path) -> Iterator[Make]:
    """Builds a small image from lines of a Dockerfile; all are removed in the end."""
    tags = []

    def build(*lines: str) -> str:
        (tmp_path / "context").mkdir(exist_ok=True)
        (tmp_path / "context/Dockerfile").write_text("\n".join(lines) + "\n")
        tags.append(f"deepinfer-test:inspection-{len(tags)}")
        engine.build(tmp_path / "context", tag=tags[-1], log=tmp_path / "build.log")
        return tags[-1]

    yield build
    for tag in tags:
        image = engine.image_id(tag)
        if image is not None:
            (cache.folder("inspections") / f"{image.removeprefix('sha256:')}.json").unlink(missing_ok=True)
            engine.client.images.remove(tag, force=True)


def test_the_cpu_replica_is_what_is_expected_of_it(engine: Engine, cpu: Target) -> None:
    make_replica(engine, cpu)
    found = inspect_base(engine, reference(cpu))
    assert differences(cpu, "replica", found) == []
    assert found.torch == "2.13.0+cpu"
    assert (found.cuda, found.nccl, found.cudart, found.nvcc) == (None, (), (), None)
    assert found.site == DIST
    assert found.problems == ()
    assert found.base_id == engine.image_id(reference(cpu))
    assert found.environment["PATH"].startswith("/usr/local/sbin")
    assert found.command == ("bash",)


def test_what_was_seen_is_kept_until_the_program_changes(
    engine: Engine, cpu: Target, monkeypatch: pytest.MonkeyPatch, make: Make, system: str
) -> None:
    image = make(f"FROM {system}", "ENV X=1")
    first = inspect_base(engine, image)

    def refuse(*arguments: object, **options: object) -> None:
        pytest.fail("a container was started")

    with monkeypatch.context() as patched:
        patched.setattr(engine, "run", refuse, raising=True)
        assert inspect_base(engine, image) == first
    kept = cache.folder("inspections") / f"{first.base_id.removeprefix('sha256:')}.json"
    kept.write_text(json.dumps({**json.loads(kept.read_text()), "program": "older"}))
    assert inspect_base(engine, image) == first
    assert json.loads(kept.read_text())["program"] == inspect._program_hash()
    kept.write_text("{")
    assert inspect_base(engine, image) == first


def test_a_base_without_python_cannot_be_used(engine: Engine, cpu: Target, make: Make, system: str) -> None:
    image = make(f"FROM {system}", "RUN rm -f /usr/bin/python3*", "USER nobody", 'ENTRYPOINT ["vllm", "serve"]')
    found = inspect_base(engine, image)
    assert (found.python, found.torch) == ("", None)
    assert "there is no Python" in found.problems[0]
    assert (found.user, found.entrypoint) == ("nobody", ("vllm", "serve"))
    with pytest.raises(EnvironmentCannot, match="there is no Python"):
        check_base(cpu, "vendor", found, accept=True)


def test_a_base_without_torch_or_compiler_differs(engine: Engine, cpu: Target, make: Make, system: str) -> None:
    found = inspect_base(engine, make(f"FROM {system}", "RUN rm -f /usr/bin/*g++*"))
    assert found.torch is None
    assert found.gcc is None
    assert any("there is no torch" in problem for problem in found.problems)
    assert any("without g++" in problem for problem in found.problems)
    missing = {row.fact for row in differences(cpu, "replica", found)}
    assert {"torch", "triton", "gcc"} <= missing
    with pytest.raises(EnvironmentCannot, match=r"torch +2\.13\.0 +none"):
        check_base(cpu, "replica", found)


def test_a_torch_that_crashes_on_import_is_a_problem(engine: Engine, make: Make, system: str) -> None:
    image = make(f"FROM {system}", f"RUN mkdir -p {DIST}/torch && echo '{CRASHING}' > {DIST}/torch/__init__.py")
    found = inspect_base(engine, image)
    assert found.torch is None
    assert found.python.startswith("3.11")
    assert "torch does not import: it was killed by signal 11" in found.problems


def test_the_python_that_has_torch_is_taken_before_the_first_on_path(engine: Engine, make: Make, system: str) -> None:
    image = make(
        f"FROM {system}",
        "RUN python3 -m venv --without-pip /opt/venv && mkdir /opt/venv/lib/python3.11/site-packages/torch",
        "RUN echo '__version__ = \"9.9\"' > /opt/venv/lib/python3.11/site-packages/torch/__init__.py \\",
        ' && echo \'git_version = "abc"; cuda = "13.0"\' > /opt/venv/lib/python3.11/site-packages/torch/version.py \\',
        " && echo 'from torch import version' >> /opt/venv/lib/python3.11/site-packages/torch/__init__.py",
    )
    found = inspect_base(engine, image)
    assert found.executable == "/opt/venv/bin/python3"
    assert (found.torch, found.torch_git, found.cuda) == ("9.9", "abc", "13.0")
    assert found.site == "/opt/venv/lib/python3.11/site-packages"


def test_a_python_that_prints_at_its_start_is_understood(engine: Engine, make: Make, system: str) -> None:
    chatty = 'import sys; print(\\"welcome\\"); print(\\"oh no\\", file=sys.stderr)'
    found = inspect_base(engine, make(f"FROM {system}", f'RUN echo "{chatty}" > {DIST}/sitecustomize.py'))
    assert found.python.startswith("3.11")


def test_cudart_is_found_in_the_homes_of_other_users(engine: Engine, make: Make, system: str) -> None:
    folder = "/srv/someone/.triton/nvidia/cudart/cuda_cudart-linux-x86_64-12.8.57-archive/lib"
    image = make(
        f"FROM {system}",
        f"RUN useradd -d /srv/someone someone && mkdir -p {folder} && echo x > {folder}/libcudart.so.12.8.57 \\",
        f" && ln -s libcudart.so.12.8.57 {folder}/libcudart.so.12 && chmod 700 /srv/someone",
        "USER someone",
    )
    (found,) = inspect_base(engine, image).cudart
    assert (found.path, found.soname, found.version) == (
        f"{folder}/libcudart.so.12.8.57",
        "libcudart.so.12",
        "12.8.57",
    )


def test_an_answer_that_is_cut_off_is_an_error(
    engine: Engine, make: Make, system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = make(
        f"FROM {system}", f"RUN mkdir -p {DIST}/torch && echo 'import time; time.sleep(60)' > {DIST}/torch/__init__.py"
    )
    monkeypatch.setattr(inspect, "LIMIT", 2.0)
    with pytest.raises(EnvironmentCannot, match="killed after 2 s") as caught:
        inspect_base(engine, image)
    assert caught.value.next_step


def test_images_that_no_program_of_ours_can_run_in(engine: Engine, tmp_path: Path) -> None:
    for architecture, words in (("arm64", "not linux/amd64"), ("amd64", "no /bin/sh")):
        image = load_empty(engine, architecture)
        try:
            found = inspect_base(engine, image)
        finally:
            (cache.folder("inspections") / f"{image.removeprefix('sha256:')}.json").unlink(missing_ok=True)
            engine.client.images.remove(image, force=True)
        assert words in found.problems[0]
        assert isinstance(found, Inspection) and found.python == ""


def test_an_image_that_is_not_here_is_an_error(engine: Engine) -> None:
    with pytest.raises(EnvironmentCannot) as caught:
        inspect_base(engine, "deepinfer-test:never-made")
    assert "docker pull" in caught.value.next_step


@pytest.mark.slow
def test_the_flagtree_replica_equals_the_vendors_base_in_what_matters(engine: Engine) -> None:
    flagtree = load_matrix().targets["flagtree"]
    make_replica(engine, flagtree)
    found = inspect_base(engine, reference(flagtree))
    assert differences(flagtree, "replica", found) == []
    by_nature = {row.fact for row in differences(flagtree, "vendor", found)}
    assert by_nature == {"python", "gcc", "glibc"}
    assert [library.soname for library in found.cudart] == ["libcudart.so.12", "libcudart.so.13"]
    assert found.nccl_dist == "nvidia-nccl-cu13"
    assert [library.path for library in found.nccl] == [found.nccl_loaded]
    assert found.nccl_header == found.nccl_version == "2.28.9"


@pytest.mark.slow
def test_the_flagtree_replica_has_the_fault_of_the_vendors_base(engine: Engine) -> None:
    flagtree = load_matrix().targets["flagtree"]
    make_replica(engine, flagtree)
    program = "import ctypes; ctypes.CDLL('libcudart.so.12')"
    for user in ("0:0", "12345:12345"):
        done = engine.run(reference(flagtree), ["python3", "-c", program], user=user)
        assert done.returncode == 1
        assert "libcudart.so.12: cannot open shared object file" in done.stderr
