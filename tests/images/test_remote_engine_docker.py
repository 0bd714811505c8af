"""An engine elsewhere: named by DOCKER_HOST or a context, with a file system that holds nothing of ours."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from build import cache, verbs
from build.bases.replica import make_replica, reference
from build.containers import Engine
from build.docker_client import build_command
from build.errors import EnvironmentCannot
from build.gates.catalogue import NAMES
from build.matrix.load import load_matrix
from build.matrix.model import Matrix
from build.outcome import BuildOptions
from build.setup import docker_engine, dockerd, engine_answer
from build.setup.endpoint import endpoint
from tests.tiny_build import tiny, write_source

SHARED = ("downloads", "locks", "rootfs")
# In mount points and a network of its own: this machine's network has one docker0, which a second dockerd would take.
APART = ("unshare", "--net", "--mount", "--propagation", "private", "--")
HIDE = 'for folder in $HIDDEN; do mount -t tmpfs none "$folder"; done; exec "$@"'


@dataclass(frozen=True)
class Far:
    """An engine that sees neither the repository nor the cache, and an image to build there."""

    host: str
    engine: Engine
    hidden: tuple[Path, ...]
    matrix: Matrix


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Far]:
    program = shutil.which("dockerd", path=dockerd.system_path())
    if os.geteuid() != 0 or program is None or shutil.which("unshare") is None:
        pytest.skip("starts a second dockerd, which is not installed or needs root")
    try:
        near = Engine.connect()
    except EnvironmentCannot as problem:
        pytest.skip(f"needs a Docker engine: {problem.what}")
    matrix = load_matrix()
    cpu = matrix.targets["cpu"]
    base = make_replica(near, cpu)
    ours = tmp_path_factory.mktemp("ours")
    source = write_source(ours / "source")
    (source / "LICENSE").write_text("Do as you like.\n")
    component = tiny("tiny", source)
    own_cache = ours / "cache"
    own_cache.mkdir()
    for name in SHARED:
        (own_cache / name).symlink_to(cache.folder(name))
    target = dataclasses.replace(cpu, name="far", components=("tiny",), vendor=None)
    hidden = (cache.REPOSITORY, cache.root(), ours)
    folder = Path(tempfile.mkdtemp(prefix="far-"))
    host = f"unix://{folder}/s"
    argv = [*APART, "sh", "-euc", HIDE, "hide", program, f"--host={host}", f"--data-root={folder}/data"]
    argv += [f"--exec-root={folder}/exec", f"--pidfile={folder}/pid", "--iptables=false", "--ip-masq=false"]
    with (folder / "log").open("w") as log, pytest.MonkeyPatch.context() as patch:
        process = subprocess.Popen(
            argv, env={**os.environ, "HIDDEN": " ".join(map(str, hidden))}, stdout=log, stderr=log, cwd="/"
        )
        try:
            patch.setenv("DOCKER_HOST", host)
            patch.setenv("DEEPINFER_BUILD_CACHE", str(own_cache))
            engine = wait_for(process, folder / "log")
            for _ in engine.client.api.load_image(near.client.images.get(base).save(chunk_size=1 << 20), quiet=False):
                pass
            engine.tag(base, reference(target))
            matrix = Matrix({"tiny": component}, {"far": target})
            patch.setattr(verbs, "load_matrix", lambda: matrix)
            yield Far(host, engine, hidden, matrix)
        finally:
            process.terminate()
            process.wait(60)
            shutil.rmtree(folder, ignore_errors=True)


def wait_for(process: subprocess.Popen[bytes], log: Path) -> Engine:
    """The engine that DOCKER_HOST names, once it answers."""
    deadline = time.monotonic() + 60
    while engine_answer.refusal():
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-2000:]
        time.sleep(0.1)
    return Engine.connect()


@pytest.mark.docker
def test_the_engine_sees_nothing_of_this_machines_folders(far: Far) -> None:
    image = reference(far.matrix.targets["far"])
    for folder in far.hidden:
        assert any(folder.iterdir())
        seen = far.engine.run(image, ["ls", "-A", "/seen"], volumes={str(folder): {"bind": "/seen", "mode": "ro"}})
        assert (seen.returncode, seen.stdout) == (0, ""), folder


@pytest.mark.docker
def test_an_image_is_built_from_base_to_gates_on_an_engine_elsewhere(
    far: Far, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verbs.build("far", BuildOptions(base="replica")) == 0
    told = capsys.readouterr().err
    assert "far/tiny: compiled" in told and f"{len(NAMES)} gates" in told
    done = far.engine.run("deepinfer:far", ["deepinfer", "env", "--json"], owner="far-test")
    assert done.returncode == 0 and json.loads(done.stdout)["parts"]
    program = "import deepinfer, tiny._C; print(tiny._C.check())"
    done = far.engine.run("deepinfer:far", ["python3", "-c", program], owner="far-test")
    assert done.stdout.strip() == "1", done.stderr
    assert verbs.check("far", gpus=0, offline=None, prefix=None, as_json=False) == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("DOCKER_HOST")
        assert Engine.connect().image_id("deepinfer:far") is None, "it was made elsewhere, not here"


@pytest.mark.docker
def test_a_context_names_the_engine_as_docker_host_does(
    far: Far, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = far.engine.client.info()["DockerRootDir"]
    monkeypatch.delenv("DOCKER_HOST")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    docker = build_command()[0]
    subprocess.run([docker, "context", "create", "far", "--docker", f"host={far.host}"], check=True)
    assert Engine.connect().client.info()["DockerRootDir"] != there
    monkeypatch.setenv("DOCKER_CONTEXT", "far")
    assert Engine.connect().client.info()["DockerRootDir"] == there
    monkeypatch.delenv("DOCKER_CONTEXT")
    subprocess.run([docker, "context", "use", "far"], check=True)
    assert Engine.connect().client.info()["DockerRootDir"] == there
    assert verbs.build("far", BuildOptions(base="replica")) == 0
    assert "far: unchanged: deepinfer:far" in capsys.readouterr().err


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of Docker's settings."""
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    return tmp_path


def write_context(config: Path, name: str, host: str, **told: object) -> Path:
    """A context as Docker's command keeps it; returns its certificates' folder, which is not made."""
    identity = hashlib.sha256(name.encode()).hexdigest()
    meta = config / "contexts/meta" / identity
    meta.mkdir(parents=True)
    described = {"Name": name, "Metadata": {}, "Endpoints": {"docker": {"Host": host, **told}}}
    (meta / "meta.json").write_text(json.dumps(described))
    return config / "contexts/tls" / identity / "docker"


def test_docker_host_comes_before_contexts_and_the_chosen_one_last(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert endpoint().named_by == endpoint().host == ""
    (config / "config.json").write_text(json.dumps({"currentContext": "big"}))
    write_context(config, "big", "ssh://build@big")
    write_context(config, "other", "tcp://10.0.0.1:2376", SkipTLSVerify=True).mkdir(parents=True)
    assert (endpoint().host, endpoint().named_by, endpoint().certificates) == ("ssh://build@big", "context big", None)
    monkeypatch.setenv("DOCKER_CONTEXT", "other")
    named = endpoint()
    assert (named.host, named.of_context, named.unverified) == ("tcp://10.0.0.1:2376", True, True)
    assert named.certificates is not None
    monkeypatch.setenv("DOCKER_CONTEXT", "default")
    assert endpoint().named_by == ""
    monkeypatch.setenv("DOCKER_HOST", "tcp://elsewhere:2375")
    assert (endpoint().host, endpoint().of_context) == ("tcp://elsewhere:2375", False)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"currentContext": null}'])
def test_settings_that_choose_no_context(config: Path, text: str) -> None:
    (config / "config.json").write_text(text)
    assert endpoint().named_by == ""


@pytest.mark.parametrize("text", [None, "{", "{}", '{"Endpoints": {"docker": 3}}', '{"Endpoints": null}'])
def test_a_context_that_is_not_there_starts_no_engine_here(
    config: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    monkeypatch.setenv("DOCKER_CONTEXT", "gone")
    if text is not None:
        write_context(config, "gone", "tcp://x")
        next(config.glob("contexts/meta/*/meta.json")).write_text(text)
    with pytest.raises(EnvironmentCannot, match="context 'gone'") as told:
        Engine.connect()
    assert "docker context ls" in told.value.next_step
    assert engine_answer.elsewhere()
    with pytest.raises(EnvironmentCannot, match="context 'gone'"):
        docker_engine.ensure(may_install=True, stays=True)


def test_a_context_whose_engine_is_down_is_told_by_its_name(config: Path) -> None:
    (config / "config.json").write_text(json.dumps({"currentContext": "big"}))
    write_context(config, "big", f"unix://{config}/none.sock")
    done = subprocess.run(
        [sys.executable, "-m", "invoke", "inspect", "--image", "cpu"],
        cwd=cache.REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 4
    assert "no Docker engine answers at context big" in done.stderr
