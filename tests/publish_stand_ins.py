"""Debian's docker-registry on loopback, a relay before it that can stall or break, and images of a few bytes."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import random
import shutil
import socket
import subprocess
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from build.containers import LABEL, Engine
from build.errors import EnvironmentCannot
from build.setup import system

USER, PASSWORD = "deploy", "correct-horse-battery"
HTPASSWD = "deploy:$2b$05$abcdefghijklmnopqrstuuSnF5tLPqPFqc0z9CY0HcSLFbSRlL67u\n"
"""USER with the bcrypt of PASSWORD, the one form that this registry reads."""


def program(name: str, package: str) -> str:
    """A program of the distribution, installed by root; elsewhere the test is skipped, with the command to type."""
    path = f"{os.environ.get('PATH', os.defpath)}{os.pathsep}/usr/sbin"
    if shutil.which(name, path=path) is None:
        try:
            system.install([package], "the tests of publishing use it", may_install=system.is_root())
        except EnvironmentCannot as problem:
            pytest.skip(f"{problem.what}; {problem.cause}; {problem.next_step}")
    found = shutil.which(name, path=path)
    assert found is not None
    return found


def free_port() -> int:
    """A port of loopback that nobody listens on, and that no connection is given meanwhile: a connection of anybody's
    may get any port of the range for those, and one that looks for a listener there may meet itself.
    """
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(
            first // 2, first
        )  # Hypothesis makes the usual one draw alike everywhere
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class RegistryProgram:
    """A registry with a configuration, a folder and a port of its own."""

    def __init__(self, folder: Path, *, storage: Path | None = None, htpasswd: str = "", http: str = "") -> None:
        self.folder = folder
        self.storage = storage or folder / "storage"
        self.port = free_port()
        self.host = f"127.0.0.1:{self.port}"
        auth = ""
        if htpasswd:
            (folder / "htpasswd").write_text(htpasswd)
            auth = f"auth:\n  htpasswd:\n    realm: test\n    path: {folder / 'htpasswd'}\n"
        (folder / "config.yml").write_text(
            f"version: 0.1\nlog:\n  level: info\nstorage:\n  filesystem:\n    rootdirectory: {self.storage}\n"
            f"http:\n  addr: {self.host}\n{http}{auth}"
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it listens."""
        argv = [program("docker-registry", "docker-registry"), "serve", str(self.folder / "config.yml")]
        with (self.folder / "registry.log").open("ab") as log:
            self._process = subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        wait_for_port(self.port, self._process)

    def stop(self) -> None:
        """Kill it, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def log(self) -> str:
        """What it wrote about requests."""
        return (self.folder / "registry.log").read_text(errors="replace")


def wait_for_port(port: int, process: subprocess.Popen[bytes] | None = None) -> None:
    """Until somebody listens there; fails after two minutes, or when the process ends."""
    deadline = time.monotonic() + 120
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert time.monotonic() < deadline, f"nobody listens on {port}"
        assert process is None or process.poll() is None, "the program ended"
        time.sleep(0.02)


@contextlib.contextmanager
def running(folder: Path, **options: object) -> Iterator[RegistryProgram]:
    """A registry for the time of the block."""
    folder.mkdir(parents=True, exist_ok=True)
    registry = RegistryProgram(folder, **options)  # type: ignore[arg-type]
    registry.start()
    try:
        yield registry
    finally:
        registry.stop()


class Relay:
    """Passes bytes on to a port or a Unix socket; can stall, cut after so many bytes, or refuse.

    stall: bytes of requests are taken and kept.  cut_after: bytes of requests after which everything is broken off and
    nobody is let in again.  seen: bytes of requests that were passed on.
    """

    def __init__(self, target: int | str, *, listen: str = "") -> None:
        self.target = target
        self.stall = threading.Event()
        self.stall_after: int | None = None
        self.cut_after: int | None = None
        self.seen = 0
        self._socket = socket.socket(socket.AF_UNIX if listen else socket.AF_INET)
        self._socket.bind(listen or ("127.0.0.1", 0))
        self._socket.listen(64)
        self.port = 0 if listen else int(self._socket.getsockname()[1])
        self.host = listen or f"127.0.0.1:{self.port}"
        self._pairs: list[socket.socket] = []
        self._open = True
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while self._open:
            try:
                near, _ = self._socket.accept()
                far = socket.socket(socket.AF_UNIX if isinstance(self.target, str) else socket.AF_INET)
                far.connect(self.target if isinstance(self.target, str) else ("127.0.0.1", self.target))
            except OSError:
                continue
            self._pairs += [near, far]
            threading.Thread(target=self._pass, args=(near, far, True), daemon=True).start()
            threading.Thread(target=self._pass, args=(far, near, False), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, request: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                while self.stall.is_set() and self._open:
                    time.sleep(0.02)
                sink.sendall(data)
                if request:
                    self.seen += len(data)
                    if self.stall_after is not None and self.seen > self.stall_after:
                        self.stall_after = None
                        self.stall.set()
                    if self.cut_after is not None and self.seen > self.cut_after:
                        self.close()
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Break everything off and let nobody in."""
        self._open = False
        for end in (self._socket, *self._pairs):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@contextlib.contextmanager
def relayed(target: int | str, *, listen: str = "") -> Iterator[Relay]:
    """A relay for the time of the block."""
    relay = Relay(target, listen=listen)
    try:
        yield relay
    finally:
        relay.close()


class Answers:
    """A server whose answers a test writes: what no real registry does at will."""

    def __init__(self, answer: Callable[[str, str, str], tuple[int, dict[str, str], bytes]]) -> None:
        self.seen: list[tuple[str, str, str]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                authorization = self.headers.get("Authorization", "")
                outer.seen.append((self.command, self.path, authorization))
                status, headers, body = answer(self.command, self.path, authorization)
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _answer  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:
                """Nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


def tiny_image(engine: Engine, image: str, files: Mapping[str, bytes], *, key: str, base: str = "replica") -> str:
    """An image of these files with the labels and the immutable name of a build; returns its id."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.mtime = len(content), 0o644, 1_700_000_000
            archive.addfile(info, io.BytesIO(content))
    labels = {
        LABEL: "1", f"{LABEL}.image": image, f"{LABEL}.key": key, f"{LABEL}.base": base,
        "org.opencontainers.image.version": "1.2.3",
    }  # fmt: skip
    changes = [*(f'LABEL "{name}"="{value}"' for name, value in labels.items()), 'ENTRYPOINT ["/nothing"]']
    suffix = "-replica" if base != "vendor" else ""
    tag = f"1.2.3-{image}{suffix}-torch2.0-cpu-py313-{key[:12]}"
    engine.client.api.import_image_from_data(buffer.getvalue(), repository="deepinfer", tag=tag, changes=changes)
    found = engine.image_id(f"deepinfer:{tag}")
    assert found is not None
    return found


def evidence_files(
    folder: Path,
    image: str,
    *,
    key: str,
    image_id: str,
    created: str = "2026-11-30T10:00:00Z",
    labels: Mapping[str, str] | None = None,
) -> Path:
    """A manifest with an SBOM and a provenance beside it, as a build names and leaves them; returns the manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    beside = {}
    for kind, ending, form in (("sbom", "cdx", "CycloneDX 1.6"), ("provenance", "provenance", "SLSA")):
        path = folder / f"{key[:12]}.{ending}.json"
        path.write_text(json.dumps({kind: created}))
        beside[kind] = {"name": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "format": form}
    manifest = {
        "image": image, "image_id": image_id, "image_key": key, "title": "", "created": created,
        "document_sha256": "", "labels": dict(labels or {}), "document": {}, "base": {"image_id": ""},
        "inspection": {"distributions": {}}, "image_inputs": {}, "cells": [], "tags": ["deepinfer:x"],
        "attestations": beside,
    }  # fmt: skip
    path = folder / f"{key[:12]}.json"
    path.write_text(json.dumps(manifest))
    return path


def files_of(engine: Engine, reference: str) -> dict[str, bytes]:
    """Every file of an image, as a container of it has it."""
    raw = engine.client.containers.create(reference, labels={LABEL: "1", f"{LABEL}.owner": "publish-test"})
    try:
        data = b"".join(raw.export())
    finally:
        raw.remove(force=True)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return {
            member.name: handle.read()
            for member in archive
            if member.isfile() and (handle := archive.extractfile(member)) is not None
        }
