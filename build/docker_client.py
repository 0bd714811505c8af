"""The two ways to the engine: a client of the docker package, and a docker command that builds with BuildKit."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path

import docker
import docker.auth
from docker.errors import InvalidConfigFile
from docker.tls import TLSConfig

from build.call import call
from build.errors import EnvironmentCannot
from build.setup.endpoint import Endpoint, config_folder
from build.ssh_engine import local_address

CONNECT_SECONDS = 20
"""For an engine to say that it is there; one that hangs is none."""


@functools.cache
def build_command() -> tuple[str, ...]:
    """The docker command that can build with BuildKit: a client with buildx, or one old enough to have it built in."""
    for candidate in (shutil.which("docker"), "/usr/bin/docker"):
        if candidate is None or not Path(candidate).exists():
            continue
        if call(candidate, "buildx", "version", quiet=True, check=False).returncode == 0:
            return (candidate,)
        version = call(candidate, "--version", quiet=True, check=False).stdout
        major = version.partition("version ")[2].split(".")[0]
        # Clients before 23 have BuildKit built in; later ones need the buildx plug-in.
        if candidate == "/usr/bin/docker" and major.isdigit() and int(major) < 23:
            return (candidate,)
    raise EnvironmentCannot(
        "no docker command here can build with BuildKit",
        cause="the client is newer than 22 and the buildx plug-in is not installed",
        next_step="install the distribution's docker.io package, or docker-buildx",
    )


_MALFORMED = (AttributeError, TypeError, KeyError, IndexError, RecursionError, InvalidConfigFile)
"""What the docker package raises for JSON of another shape than Docker writes."""


def client_of(named: Endpoint) -> docker.DockerClient:
    """A client of the docker package, which by itself knows DOCKER_HOST, but no contexts and no ssh command.

    Raises EnvironmentCannot where Docker's configuration file is not as Docker writes it.
    """
    try:
        docker.auth.load_config()
    except (*_MALFORMED, ValueError) as problem:
        raise _misread(problem) from problem
    try:
        return _client(named)
    except _MALFORMED as problem:  # the file's proxies and headers
        raise _misread(problem) from problem


def _misread(problem: Exception) -> EnvironmentCannot:
    place = config_folder() / "config.json"
    return EnvironmentCannot(
        f"{place} is not as Docker writes it",
        cause=str(problem)[:200],
        next_step="mend it or move it away (`docker login` writes it anew), or set DOCKER_CONFIG to another folder",
    )


def _client(named: Endpoint) -> docker.DockerClient:
    if named.host.startswith("ssh://"):
        return docker.DockerClient(base_url=local_address(named.host), timeout=CONNECT_SECONDS)
    if not named.of_context:
        return docker.from_env(timeout=CONNECT_SECONDS)
    tls: TLSConfig | bool = False
    if named.certificates is not None:
        ca, cert, key = (str(named.certificates / name) for name in ("ca.pem", "cert.pem", "key.pem"))
        pair = (cert, key) if Path(cert).is_file() and Path(key).is_file() else None
        tls = TLSConfig(client_cert=pair, ca_cert=ca if Path(ca).is_file() else None, verify=not named.unverified)
    return docker.DockerClient(base_url=named.host, tls=tls, timeout=CONNECT_SECONDS)
