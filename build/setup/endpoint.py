"""Which Docker engine is meant: the rules of Docker's own command, for everything here that talks to one.

DOCKER_HOST names an engine; without it DOCKER_CONTEXT, or the context that `docker context use` has chosen, does;
else it is the one on the default socket. Standard library only.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build.errors import EnvironmentCannot


@dataclass(frozen=True)
class Endpoint:
    """An engine that was named.

    host: its address ("ssh://build@big", "tcp://10.0.0.1:2376", "unix:///run/other.sock"), empty for the default.
    named_by: how, for messages ("DOCKER_HOST=…", "context big"), empty for the default.
    certificates: folder with ca.pem, cert.pem and key.pem of a context that has them.
    unverified: the context tells not to check the engine's certificate.
    """

    host: str = ""
    named_by: str = ""
    certificates: Path | None = None
    unverified: bool = False

    @property
    def of_context(self) -> bool:
        """Whether a context names it: the docker package knows none of that."""
        return self.named_by.startswith("context ")


def endpoint() -> Endpoint:
    """The engine that Docker's command would talk to now.

    Raises EnvironmentCannot for a context that is not there or cannot be read.
    """
    host = os.environ.get("DOCKER_HOST", "")
    if host:
        return Endpoint(host, f"DOCKER_HOST={host}")
    folder = config_folder()
    name = os.environ.get("DOCKER_CONTEXT") or _chosen(folder)
    if name in ("", "default"):
        return Endpoint()
    identity = hashlib.sha256(name.encode()).hexdigest()
    described = _read(folder / "contexts/meta" / identity / "meta.json")
    try:
        told = described["Endpoints"]["docker"]
        host = str(told["Host"])
    except (KeyError, TypeError) as problem:
        raise EnvironmentCannot(
            f"the Docker context {name!r} is not there, or names no engine",
            next_step="`docker context ls` shows what is there; `docker context use default` means this machine again",
        ) from problem
    certificates = folder / "contexts/tls" / identity / "docker"
    return Endpoint(
        host, f"context {name}", certificates if certificates.is_dir() else None, bool(told.get("SkipTLSVerify"))
    )


def config_folder() -> Path:
    """Where Docker's command keeps what the user configured; below the root for a user without a home."""
    given = os.environ.get("DOCKER_CONFIG")
    try:
        return Path(given) if given else Path.home() / ".docker"
    except RuntimeError:
        return Path("/.docker")


def _chosen(folder: Path) -> str:
    return str(_read(folder / "config.json").get("currentContext") or "")


def _read(path: Path) -> dict[str, Any]:
    """A JSON object; an empty one where there is none, or it cannot be read, as Docker's command takes it."""
    try:
        read = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return read if isinstance(read, dict) else {}
