"""An engine behind ssh: how ssh is called, what goes through it, and what is told where nothing does."""

from __future__ import annotations

import json
import os
import shutil
import socketserver
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from build import docker_client
from build.containers import Engine
from build.errors import EnvironmentCannot
from build.ssh_engine import command, local_address

BRIDGE = """#!{python}
import os, socket, sys, threading
open(os.environ["SSH_CALLED"], "a").write(" ".join(sys.argv[1:]) + "\\n")
if "refuses" in sys.argv:
    sys.exit("ssh: Could not resolve hostname")
engine = socket.socket(socket.AF_UNIX)
engine.connect(os.environ["SSH_ENGINE"])
def pass_on(read, write):
    while data := read(65536):
        write(data)
threading.Thread(target=pass_on, args=(engine.recv, lambda data: os.write(1, data)), daemon=True).start()
pass_on(lambda size: os.read(0, size), engine.sendall)
"""


class Answers(BaseHTTPRequestHandler):
    """What an engine says of itself."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = json.dumps({"ApiVersion": "1.41", "MinAPIVersion": "1.12", "NCPU": 96, "MemTotal": 2**40}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass

    def address_string(self) -> str:
        return "here"


class Listening(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


@pytest.fixture
def called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An `ssh` that leads to a small engine here; a file with its command lines."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "ssh").write_text(BRIDGE.format(python=sys.executable))
    (programs / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SSH_ENGINE", str(tmp_path / "engine.sock"))
    monkeypatch.setenv("SSH_CALLED", str(tmp_path / "called"))
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DOCKER_CONTEXT", raising=False)
    (tmp_path / "called").touch()
    with Listening(str(tmp_path / "engine.sock"), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield tmp_path / "called"
        server.shutdown()


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("ssh://big", "-- big docker system dial-stdio"),
        ("ssh://build@Big.example:2222/", "-l build -p 2222 -- Big.example docker system dial-stdio"),
        ("ssh://u@[::1]:22", "-l u -p 22 -- ::1 docker system dial-stdio"),
        ("ssh://big/run/user/1000/docker.sock",
         "-- big docker --host unix:///run/user/1000/docker.sock system dial-stdio"),
    ],
)  # fmt: skip
def test_how_ssh_is_called(host: str, said: str) -> None:
    assert " ".join(command(host)).endswith(said)


@pytest.mark.parametrize(
    "host",
    ["ssh://", "ssh://-oProxyCommand=x", "ssh://-l@big", "ssh://u:secret@big", "ssh://big:port", "ssh://[::1", "ssh://b?x"],
)  # fmt: skip
def test_what_is_no_address(host: str) -> None:
    with pytest.raises(EnvironmentCannot, match="is no address") as told:
        command(host)
    assert "secret" not in str(told.value)


def test_the_engine_answers_through_ssh(called: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "ssh://build@answers-here")
    engine = Engine.connect()
    assert engine.capacity() == (96, 1024.0)
    assert "-l build" in called.read_text() and "answers-here docker system dial-stdio" in called.read_text()


def test_the_engine_of_a_context_is_reached_alike(
    called: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    named = docker_client.Endpoint("ssh://of-a-context", "context far")
    assert Engine(docker_client.client_of(named)).capacity()[0] == 96 and "of-a-context" in called.read_text()


@pytest.mark.usefixtures("called")
def test_an_ssh_that_leads_nowhere_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "ssh://refuses")
    with pytest.raises(EnvironmentCannot, match="no Docker engine answers at DOCKER_HOST=ssh://refuses") as told:
        Engine.connect()
    assert told.value.exit_code == 4 and "unset DOCKER_HOST" in told.value.next_step
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(EnvironmentCannot, match="ssh, which is not installed"):
        local_address("ssh://another")


@pytest.mark.docker
def test_containers_and_files_through_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Docker's own dial-stdio, with an ssh that stays on this machine."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "ssh").write_text(
        '#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift 2\nunset DOCKER_HOST\nexec "$@"\n'
    )
    (programs / "ssh").chmod(0o755)
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("DOCKER_HOST", "ssh://docker-there")
    engine = Engine.connect()
    context = tmp_path / "context"
    context.mkdir()
    shutil.copy("/proc/self/exe", context / "program")
    (context / "Dockerfile").write_text("FROM scratch\nCOPY program /\n")
    image = "deepinfer-test:ssh"
    engine.build(context, tag=image, log=tmp_path / "log")
    try:
        with engine.container(image, ["/program"]) as container:
            container.put({"sent": b"x" * 3_000_000})
            assert b"x" * 3_000_000 in container.get_tar("/sent")
    finally:
        engine.client.images.remove(image, force=True)
