"""Docker's engine: found, or installed and started by root, and stopped again when it is ours.

With DOCKER_HOST or a docker context nothing is installed or started. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from build import cache
from build.errors import EnvironmentCannot
from build.setup import dockerd, engine_answer, system
from build.setup.engine_answer import elsewhere, refusal, unreachable


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
    if _managed_by_systemd() and not dockerd.wait_for_answer(10, None):  # the package's own service comes up by itself
        return False
    return dockerd.start(stays=stays)


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
    return [name for name in programs if shutil.which(name, path=dockerd.system_path()) is None]


@contextlib.contextmanager
def running(*, may_install: bool) -> Iterator[None]:
    """An engine for the time of the block: one that was there stays, one that had to be started is stopped, unless
    somebody's build has begun to use it meanwhile.
    """
    started = ensure(may_install=may_install, stays=False)
    try:
        yield
    finally:
        if started:
            with cache.alone() as alone:
                if alone:
                    pid = dockerd.stop()
                    system.say(f"stopped Docker's engine (process {pid})" if pid else "Docker's engine is gone already")
                else:
                    system.say("Docker's engine goes on, for a build is using it; `./run clean --docker` stops it")


def _managed_by_systemd() -> bool:
    units = ("/lib/systemd/system/docker.service", "/etc/systemd/system/docker.service")
    return Path("/run/systemd/system").is_dir() and any(Path(unit).exists() for unit in units)


def commands() -> Sequence[str]:
    """What a user types to have an engine on the default socket."""
    sudo = "" if system.is_root() else "sudo "
    lines = [system.install_command(packages)] if (packages := missing_packages(engine=True)) else []
    if Path(engine_answer.DEFAULT_SOCKET).is_socket() and not os.access(engine_answer.DEFAULT_SOCKET, os.W_OK):
        pass  # an engine is there, for others
    elif Path("/run/systemd/system").is_dir():
        lines.append(f"{sudo}systemctl start docker")
    else:
        lines.append(f"{sudo}sh -c 'setsid dockerd >/var/log/dockerd.log 2>&1 &'")
    if not system.is_root():
        lines.append('sudo usermod -aG docker "$(id -un)" && newgrp docker')
    return lines


def unanswered(cause: str) -> EnvironmentCannot:
    """The error of who needs an engine and finds none, with what to type."""
    return unreachable(cause) or EnvironmentCannot(
        f"no Docker engine answers at {engine_answer.DEFAULT_SOCKET}",
        cause=cause,
        next_step="\n    ".join(["type", *commands(), "or set DOCKER_HOST to an engine elsewhere"]),
    )


def _cannot(problem: str, *, may_install: bool) -> EnvironmentCannot:
    if elsewhere():
        return unanswered(problem)
    why = "./run was told --no-setup" if not may_install else "starting one needs root"
    return unanswered(f"{problem}; {why}")
