"""Docker's engine: found, or installed and started by root, and stopped again when it is ours.

A dockerd that `./run` started is remembered in the cache with its process id, the time that process started and the
machine's boot, so that no other process is ever taken for it. With DOCKER_HOST or a docker context nothing is
installed or started.
Standard library only.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from build import cache
from build.errors import EnvironmentCannot
from build.processes import identity
from build.setup import system
from build.setup.endpoint import Endpoint, endpoint

DEFAULT_SOCKET = "/var/run/docker.sock"
_START_SECONDS = 60.0
_STOP_SECONDS = 60.0


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
        else:
            return _refusal_by_client()
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


def refused(*, may_install: bool) -> EnvironmentCannot | None:
    """The error that `ensure` would raise because it may not set up an engine; installs and starts nothing."""
    problem = refusal()
    if problem and (elsewhere() or not may_install or not system.is_root()):
        return _cannot(problem, may_install=may_install)
    return None


def ensure(*, may_install: bool, stays: bool) -> bool:
    """See to it that an engine answers; returns whether this call started one.

    Args:
        may_install: whether packages may be installed and the engine started (root only).
        stays: the caller leaves it running: the user is told how to stop it.

    Raises:
        EnvironmentCannot: no engine answers and none may or can be started; with the commands to type.
    """
    problem = refusal()
    if elsewhere():
        if problem:
            raise _cannot(problem, may_install=may_install)
        return False
    if may_install and system.is_root() and _absent(engine=bool(problem)):
        system.refresh_lists()
        packages = missing_packages(engine=bool(problem))
        system.install(packages, "images are built with Docker, replicas of bases with debootstrap", may_install=True)
        problem = refusal()
    if not problem:
        return False
    if not may_install or not system.is_root():
        raise _cannot(problem, may_install=may_install)
    if _managed_by_systemd() and not _wait(10, None):  # the package's own service comes up by itself
        return False
    return start(stays=stays)


def missing_packages(*, engine: bool) -> list[str]:
    """The distribution's packages that a build lacks here.

    Args:
        engine: whether an engine has to be installed too, because none answers.
    """
    absent = _absent(engine=engine)
    packages = ["debootstrap"] if "debootstrap" in absent else []
    if "dockerd" in absent:
        packages.append("docker.io")
    if "docker" in absent or "dockerd" in absent:
        # Newer releases have the client and its BuildKit plug-in in packages of their own.
        client = [name for name in ("docker-cli", "docker-buildx") if system.is_packaged(name)]
        packages += client or ([] if "docker.io" in packages else ["docker.io"])
    return packages


def _absent(*, engine: bool) -> list[str]:
    programs = ["debootstrap", "docker", *(["dockerd"] if engine else [])]
    return [name for name in programs if shutil.which(name, path=_system_path()) is None]


def start(*, stays: bool, options: Sequence[str] = ()) -> bool:
    """Start dockerd (with `options`), apart from this process, and wait until it answers on the default socket.

    Returns False where another start was quicker.
    """
    with cache.locked("dockerd", waiting_for="start of dockerd"):
        if not refusal():
            return False
        program = shutil.which("dockerd", path=_system_path())
        if program is None:
            raise _cannot("dockerd is not installed", may_install=True)
        log = cache.folder("logs") / "dockerd.log"
        with log.open("ab") as out:
            process = subprocess.Popen(
                [program, *options],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd="/",
                env={**os.environ, "PATH": _system_path()},
            )
        cache.atomic_write(_record_path(), json.dumps(identity(process.pid)))
        problem = _wait(_START_SECONDS, process)
        if problem:
            with contextlib.suppress(EnvironmentCannot):
                stop()
            raise EnvironmentCannot(
                f"dockerd was started and does not answer: {problem}",
                cause=_last_error(log),
                next_step="read the log; on a machine that allows no containers, set DOCKER_HOST to one that does",
                log=log,
            )
    end = "it stays running; stop it with `./run clean --docker`" if stays else "it is stopped when the tests end"
    system.say(f"started Docker's engine (dockerd, process {process.pid}, log {log}); {end}")
    return True


def started_by_us() -> int | None:
    """The process id of a running dockerd that `./run` started; None if there is none."""
    try:
        known = json.loads(_record_path().read_text())
        return int(known["pid"]) if identity(int(known["pid"])) == known else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def stop() -> int | None:
    """Stop the dockerd that `./run` started, and no other; returns its process id, None if there was none.

    Raises:
        EnvironmentCannot: it does not end, or belongs to another user.
    """
    pid = started_by_us()
    if pid is not None:
        try:
            os.kill(pid, signal.SIGTERM)
        except PermissionError as problem:
            raise EnvironmentCannot(
                f"dockerd (process {pid}) belongs to another user", next_step="run the same command as root"
            ) from problem
        deadline = time.monotonic() + _STOP_SECONDS
        while started_by_us() == pid:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            if time.monotonic() > deadline:
                raise EnvironmentCannot(
                    f"dockerd (process {pid}) is still there after {_STOP_SECONDS:.0f} s",
                    cause="containers that do not end",
                    next_step=f"stop them (`docker ps`), or end it with: kill -9 {pid}",
                )
            time.sleep(0.1)
    _record_path().unlink(missing_ok=True)
    return pid


@contextlib.contextmanager
def running(*, may_install: bool) -> Iterator[None]:
    """An engine for the time of the block: one that was there stays, one that had to be started is stopped."""
    started = ensure(may_install=may_install, stays=False)
    try:
        yield
    finally:
        if started:
            pid = stop()
            system.say(f"stopped Docker's engine (process {pid})")


def _record_path() -> Path:
    return cache.folder("docker") / "dockerd.json"


def _wait(seconds: float, process: subprocess.Popen[bytes] | None) -> str:
    """Wait until an engine answers; returns the last refusal, empty when it does."""
    deadline = time.monotonic() + seconds
    while problem := refusal():
        if process is not None and process.poll() is not None:
            return f"it ended with status {process.returncode}"
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    return problem


def _last_error(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return next((line for line in reversed(lines) if "level=fatal" in line or "failed" in line), "")[-300:]


def _managed_by_systemd() -> bool:
    units = ("/lib/systemd/system/docker.service", "/etc/systemd/system/docker.service")
    return Path("/run/systemd/system").is_dir() and any(Path(unit).exists() for unit in units)


def _system_path() -> str:
    """PATH with the folders of administrators' programs, which users and cron jobs often lack."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])


def commands() -> Sequence[str]:
    """What a user types to have an engine on the default socket."""
    sudo = "" if system.is_root() else "sudo "
    lines = [system.install_command(packages)] if (packages := missing_packages(engine=True)) else []
    if Path(DEFAULT_SOCKET).is_socket() and not os.access(DEFAULT_SOCKET, os.W_OK):
        pass  # an engine is there, for others
    elif Path("/run/systemd/system").is_dir():
        lines.append(f"{sudo}systemctl start docker")
    else:
        lines.append(f"{sudo}sh -c 'setsid dockerd >/var/log/dockerd.log 2>&1 &'")
    if not system.is_root():
        lines.append('sudo usermod -aG docker "$(id -un)" && newgrp docker')
    return lines


def _cannot(problem: str, *, may_install: bool) -> EnvironmentCannot:
    try:
        named = endpoint()
    except EnvironmentCannot as wrong:
        return wrong
    if named.named_by:
        way = "`docker context use default`" if named.of_context else "unset DOCKER_HOST"
        return EnvironmentCannot(
            f"no Docker engine answers at {named.named_by}",
            cause=problem,
            next_step=f"start it there, or {way} to use (and, as root, set up) one on this machine",
        )
    why = "./run was told --no-setup" if not may_install else "starting one needs root"
    return EnvironmentCannot(
        f"no Docker engine answers at {DEFAULT_SOCKET}",
        cause=f"{problem}; {why}",
        next_step="\n    ".join(["type", *commands(), "or set DOCKER_HOST to an engine elsewhere"]),
    )
