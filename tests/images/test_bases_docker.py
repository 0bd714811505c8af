"""Bases with a real engine and a small registry on the loopback: asked once, pulled, or replaced by a replica."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from build.bases import disk, registry, rootfs
from build.bases.context import build_context
from build.bases.replica import KEY_LABEL, make_replica
from build.bases.resolve import resolve_base
from build.containers import Engine
from build.errors import EnvironmentCannot, MatrixError, UsageError
from build.matrix.load import load_matrix
from build.matrix.model import Target

pytestmark = pytest.mark.docker

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
FILES = {"etc/os-release": b'PRETTY_NAME="Small"\n', "etc/hostname": b"builder\n", "usr/lib/some.so": b"library"}


@pytest.fixture(scope="module")
def engine() -> Engine:
    """The engine, on this machine."""
    try:
        engine = Engine.connect()
    except EnvironmentCannot as problem:
        pytest.skip(f"needs a Docker engine: {problem.what}")
    if disk.free_gb(engine) is None:
        pytest.skip("the engine is on another machine, from which a registry on this one's loopback cannot be reached")
    return engine


class SmallRegistry:
    """A registry with one image, `small:1`; counts what it is asked. `stuck` never answers."""

    def __init__(self, architecture: str = "amd64") -> None:
        layer = io.BytesIO()
        with tarfile.open(fileobj=layer, mode="w") as archive:
            for name, content in FILES.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
        plain = layer.getvalue()
        config = {
            "architecture": architecture,
            "os": "linux",
            "config": {"Cmd": ["true"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(plain).hexdigest()}"]},
            "history": [],
        }
        self.blobs: dict[str, bytes] = {}
        described = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": self._blob("application/vnd.docker.container.image.v1+json", json.dumps(config).encode()),
            "layers": [self._blob("application/vnd.docker.image.rootfs.diff.tar.gzip", gzip.compress(plain, mtime=0))],
        }
        self.manifest = json.dumps(described).encode()
        self.digest = f"sha256:{hashlib.sha256(self.manifest).hexdigest()}"
        self.asked: list[str] = []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def reference(self, name: str = "small", tag: str = "1") -> str:
        return f"127.0.0.1:{self.server.server_address[1]}/{name}:{tag}"

    def _blob(self, kind: str, data: bytes) -> dict[str, object]:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        self.blobs[digest] = data
        return {"mediaType": kind, "size": len(data), "digest": digest}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        small = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                last = self.path.rpartition("/")[2]
                if "/manifests/" in self.path:
                    small.asked.append(self.path)
                if "/stuck/" in self.path:
                    time.sleep(3)
                if self.path == "/v2/":
                    self.answer(b"{}", "application/json")
                elif "/small/manifests/" in self.path and last in ("1", small.digest):
                    self.answer(small.manifest, MANIFEST, small.digest)
                elif "/blobs/" in self.path and last in small.blobs:
                    self.answer(small.blobs[last], "application/octet-stream", last)
                else:
                    self.answer(b'{"errors": [{"code": "MANIFEST_UNKNOWN"}]}', "application/json", status=404)

            do_HEAD = do_GET  # noqa: N815

            def answer(self, data: bytes, kind: str, digest: str = "", status: int = 200) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.send_header("Docker-Distribution-Api-Version", "registry/2.0")
                if digest:
                    self.send_header("Docker-Content-Digest", digest)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                """Quiet."""

        return Handler


@pytest.fixture
def small(engine: Engine) -> Iterator[SmallRegistry]:
    served = SmallRegistry()
    yield served
    served.server.shutdown()
    for name in (served.reference(), served.reference(tag="2"), served.reference("stuck")):
        registry.answer_file(name).unlink(missing_ok=True)
        if engine.image_id(name) is not None:
            engine.client.images.remove(name, force=True)


@pytest.fixture
def target(small: SmallRegistry) -> Target:
    """The cpu image, as if a vendor had made its base."""
    return replace(load_matrix().targets["cpu"], vendor=small.reference(), vendor_gb=0.1)


def test_a_registry_is_asked_once_a_day(engine: Engine, small: SmallRegistry) -> None:
    reference = small.reference()
    first = registry.ask(engine, reference)
    assert first.digest == small.digest
    asked = len(small.asked)
    assert asked >= 1
    assert registry.ask(engine, reference, now=first.asked_at + 23 * 3600) == first
    assert len(small.asked) == asked
    assert registry.ask(engine, reference, now=first.asked_at + 25 * 3600).asked_at == first.asked_at + 25 * 3600
    assert len(small.asked) > asked
    registry.answer_file(reference).write_text("{")
    assert registry.ask(engine, reference).digest == small.digest


def test_no_is_kept_for_a_day_too_with_its_reason(engine: Engine, small: SmallRegistry) -> None:
    answer = registry.ask(engine, small.reference(tag="2"))
    assert answer.digest is None
    assert "manifest unknown" in answer.reason
    asked = len(small.asked)
    assert registry.ask(engine, small.reference(tag="2")) == answer
    assert len(small.asked) == asked


def test_a_registry_that_does_not_answer_is_given_up(
    engine: Engine, small: SmallRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "LIMIT", 1)
    usual = engine.client.api.timeout
    answer = registry.ask(engine, small.reference("stuck"))
    assert answer.digest is None
    assert "timed out" in answer.reason.lower()
    assert engine.client.api.timeout == usual


def test_an_image_for_another_machine_is_no_base(engine: Engine) -> None:
    other = SmallRegistry(architecture="arm64")
    try:
        answer = registry.ask(engine, other.reference())
    finally:
        other.server.shutdown()
        registry.answer_file(other.reference()).unlink(missing_ok=True)
    assert answer.digest is None
    assert "linux/amd64" in answer.reason


def test_a_vendor_image_is_pulled_and_then_used_as_it_is(
    engine: Engine, small: SmallRegistry, target: Target, capsys: pytest.CaptureFixture[str]
) -> None:
    base = resolve_base(engine, target)
    assert (base.kind, base.reference, base.digest) == ("vendor", small.reference(), small.digest)
    assert base.image_id == engine.image_id(small.reference())
    assert "0.1 GB on disk" in capsys.readouterr().err
    asked = len(small.asked)
    assert resolve_base(engine, target) == base
    assert len(small.asked) == asked
    assert "is here" in capsys.readouterr().err


def test_an_image_that_does_not_fit_is_not_pulled(
    engine: Engine, small: SmallRegistry, target: Target, capsys: pytest.CaptureFixture[str]
) -> None:
    huge = replace(target, vendor_gb=1e6)
    base = resolve_base(engine, huge)
    assert base.kind == "replica"
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "REPLICA" in line]
    assert "1e+06 GB" in line and "GB free" in line
    with pytest.raises(EnvironmentCannot, match="GB free"):
        resolve_base(engine, huge, "vendor")
    assert engine.image_id(small.reference()) is None


def test_where_there_is_no_vendor_image_auto_says_so_and_vendor_stops(
    engine: Engine, small: SmallRegistry, target: Target, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = replace(target, vendor=small.reference(tag="2"))
    assert resolve_base(engine, absent).kind == "replica"
    assert "using the REPLICA, not the vendor's image" in capsys.readouterr().err
    with pytest.raises(EnvironmentCannot) as caught:
        resolve_base(engine, absent, "vendor")
    assert caught.value.exit_code == 4
    assert "docker load" in caught.value.next_step
    assert f"docker pull {absent.vendor}" in caught.value.next_step


def test_a_pull_that_breaks_off_falls_back_with_its_reason(
    engine: Engine, small: SmallRegistry, target: Target, capsys: pytest.CaptureFixture[str]
) -> None:
    small.blobs.clear()
    assert resolve_base(engine, target).kind == "replica"
    assert "its pull failed" in capsys.readouterr().err


def test_replica_mode_asks_nobody_and_makes_nothing_twice(
    engine: Engine, small: SmallRegistry, target: Target, capfd: pytest.CaptureFixture[str]
) -> None:
    first = resolve_base(engine, target, "replica")
    capfd.readouterr()
    assert resolve_base(engine, target, "replica") == first
    assert "docker build" not in capfd.readouterr().err
    assert small.asked == []
    assert first.digest == first.image_id
    assert len(engine.labels(first.reference)[KEY_LABEL]) == 64


def test_a_mode_that_does_not_exist_is_a_mistake_in_use(engine: Engine, target: Target) -> None:
    with pytest.raises(UsageError, match="auto, vendor, replica"):
        resolve_base(engine, target, "replicas")


def test_what_is_planted_must_be_in_the_lock(engine: Engine, target: Target) -> None:
    assert target.replica is not None
    wrong = replace(target, replica=replace(target.replica, plant_cudart12="nvidia-cuda-runtime-cu12==12.8.57"))
    with pytest.raises(MatrixError, match="does not pin"):
        make_replica(engine, wrong)


def test_a_disk_that_is_too_small_is_told_with_figures(engine: Engine) -> None:
    with pytest.raises(EnvironmentCannot, match=r"needs 1000000\.0 GB; the engine's disk has \d+\.\d GB free"):
        disk.need(engine, 1e6, "a test")
    disk.need(engine, 0, "nothing")


def test_a_build_context_leaves_no_copy_with_the_engine(engine: Engine, tmp_path: Path) -> None:
    layers = Path(engine.client.info()["DockerRootDir"]) / "overlay2"
    if not os.access(layers, os.R_OK):
        pytest.skip("only root can see what BuildKit keeps")
    marker = f"marker-{os.getpid()}"
    (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY . /kept/\n")
    with build_context(engine, "tests") as context:
        (context / marker).write_bytes(os.urandom(1000))
        engine.build(context, tag="deepinfer-test:context", dockerfile=tmp_path / "Dockerfile", log=tmp_path / "log")
        assert list(layers.glob(f"*/diff/{marker}")), "BuildKit keeps what it was sent"
    assert not context.exists()
    assert not list(layers.glob(f"*/diff/{marker}"))
    assert list(layers.glob(f"*/diff/kept/{marker}")), "what was built from it stays"
    engine.client.images.remove("deepinfer-test:context")
    assert engine.image_id("deepinfer-base:nothing") is None


def test_a_root_file_system_from_a_registry_leaves_the_container_out(
    engine: Engine, small: SmallRegistry, tmp_path: Path
) -> None:
    reference = f"{small.reference().rpartition(':')[0]}@{small.digest}"
    packed = []
    for name in ("one.tar.gz", "two.tar.gz"):
        rootfs._from_image(engine, reference, tmp_path / name)
        packed.append((tmp_path / name).read_bytes())
    engine.client.images.remove(reference)
    assert packed[0] == packed[1]
    with tarfile.open(tmp_path / "one.tar.gz") as archive:
        assert [info.name for info in archive if info.isfile()] == ["etc/os-release", "usr/lib/some.so"]
