"""The password of a registry: from variables, or from what `docker login` and its helpers keep. Never shown."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker.auth
from docker.errors import DockerException

from build.errors import EnvironmentCannot, UsageError

USER, PASSWORD, PASSWORD_FILE = (
    "DEEPINFER_REGISTRY_USER",
    "DEEPINFER_REGISTRY_PASSWORD",
    "DEEPINFER_REGISTRY_PASSWORD_FILE",
)
_LONGEST = 1 << 16
HOW = f"`docker login HOST`, or set {USER} and {PASSWORD_FILE} (or {PASSWORD})"


@dataclass(frozen=True)
class Credentials:
    """A user with a password, or the token that a registry gave in their place. Printing it shows neither."""

    user: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)

    def for_engine(self) -> dict[str, str]:
        """As the engine's API takes it, in a header of its own."""
        if self.identity_token:
            return {"identitytoken": self.identity_token}
        return {"username": self.user, "password": self.password}


def find_credentials(host: str, environment: Mapping[str, str] | None = None) -> Credentials | None:
    """What to log in with at a registry; None: without.

    Raises:
        UsageError: the variables contradict each other.
        EnvironmentCannot: the file, Docker's configuration or its helper cannot be read.
    """
    variables = os.environ if environment is None else environment
    return _from_variables(variables) or _from_docker(host)


def _from_variables(variables: Mapping[str, str]) -> Credentials | None:
    user, password, file = (variables.get(name, "") for name in (USER, PASSWORD, PASSWORD_FILE))
    if not (user or password or file):
        return None
    if not user or bool(password) == bool(file):
        raise UsageError(
            f"{USER} goes with exactly one of {PASSWORD} and {PASSWORD_FILE}",
            next_step="set the user and one of the two, or none of the three",
        )
    if file:
        try:
            place = Path(file).expanduser()
            password = _read(place) if place.is_file() else _read_once(place)
        except (OSError, RuntimeError, ValueError) as problem:
            reason = getattr(problem, "strerror", None) or "it is no short text"
            raise EnvironmentCannot(
                f"{PASSWORD_FILE} {file} cannot be read: {reason}",
                next_step="name a file that holds the password alone",
            ) from None
        if not password:
            raise EnvironmentCannot(f"{PASSWORD_FILE} {file} is empty", next_step="write the password into it")
    return Credentials(user, password)


def _read(place: Path) -> str:
    """A password from its file. Raises ValueError where it is no text, or longer than any password."""
    with place.open("rb") as file:
        data = file.read(_LONGEST + 1)
    if len(data) > _LONGEST:
        raise ValueError("it is too long")
    return data.decode().rstrip("\r\n")


_read_once = functools.cache(_read)
"""For a pipe, as the shell's `<(…)` gives one: it is asked for more than once, and can be read once."""


def _from_docker(host: str) -> Credentials | None:
    try:
        found: Any = docker.auth.load_config().resolve_authconfig(host)
    except (DockerException, OSError, ValueError, AttributeError, TypeError, RecursionError) as problem:
        raise EnvironmentCannot(
            f"the password of {host} cannot be had from Docker's configuration",
            cause=str(problem).splitlines()[0][:200],
            next_step=HOW,
        ) from None
    known = {str(name).lower(): str(value) for name, value in dict(found or {}).items() if value}
    if known.get("identitytoken"):
        return Credentials(identity_token=known["identitytoken"])
    if known.get("username") and known.get("password"):
        return Credentials(known["username"], known["password"])
    return None
