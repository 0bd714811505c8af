"""Whether a Docker engine answers where the user's settings say that one is, and if not, why. Standard library only."""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import subprocess
from urllib.parse import urlsplit

from build.errors import EnvironmentCannot
from build.setup.endpoint import Endpoint, endpoint

DEFAULT_SOCKET = "/var/run/docker.sock"


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket, which is how the engine is asked."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=10)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(10)
        self.sock.connect(self._path)


def refusal() -> str:
    """Why no engine answers where it is looked for; empty when one does."""
    try:
        named = endpoint()
    except EnvironmentCannot as problem:
        return problem.what
    host = named.host
    try:
        parts = urlsplit(host)
        if not host or parts.scheme == "unix":
            connection: http.client.HTTPConnection = _UnixConnection(parts.path or DEFAULT_SOCKET)
        elif parts.scheme in ("tcp", "http") and parts.hostname and not _secured(named):
            connection = http.client.HTTPConnection(parts.hostname, parts.port or 2375, timeout=10)
        elif parts.scheme in ("", "tcp", "http", "https", "ssh"):
            return _refusal_by_client()
        else:
            return f"its address begins with {parts.scheme}:, and not with unix:, tcp: or ssh:"
        connection.request("GET", "/_ping")
        status = connection.getresponse().status
        connection.close()
    except (OSError, http.client.HTTPException, ValueError) as problem:
        return str(problem) or type(problem).__name__
    return "" if status == 200 else f"it answers with status {status}"


def _secured(named: Endpoint) -> bool:
    return named.certificates is not None if named.of_context else bool(os.environ.get("DOCKER_TLS_VERIFY"))


def elsewhere() -> bool:
    """Whether the user named an engine: then none is installed or started here, even if the name is wrong."""
    try:
        return bool(endpoint().named_by)
    except EnvironmentCannot:
        return True


def place() -> str:
    """Where an engine is looked for, for messages."""
    try:
        return endpoint().named_by or DEFAULT_SOCKET
    except EnvironmentCannot as problem:
        return problem.what


def _refusal_by_client() -> str:
    """Ask through the command line, which knows ssh and certificates."""
    if shutil.which("docker") is None:
        return "there is no docker command to ask with"
    try:
        done = subprocess.run(["docker", "version"], capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return "it did not answer within 60 s"
    if done.returncode == 0:
        return ""
    told = done.stderr.strip().splitlines() or ["docker version failed"]
    # The last line, except where the command itself broke down and a trace of its calls follows.
    return told[0] if any(line.startswith("goroutine ") for line in told) else told[-1]


def unreachable(cause: str) -> EnvironmentCannot | None:
    """The error of an engine that the user named and that does not answer; None where none is named."""
    try:
        named = endpoint()
    except EnvironmentCannot as wrong:
        return wrong
    if not named.named_by:
        return None
    way = "`docker context use default`" if named.of_context else "unset DOCKER_HOST"
    return EnvironmentCannot(
        f"no Docker engine answers at {named.named_by}",
        cause=cause,
        next_step=f"start it there, or {way} to use (and, as root, set up) one on this machine",
    )
