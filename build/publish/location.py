"""Where images are published: `HOST[:PORT]/PATH`, checked before anything is asked of it."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from build.errors import UsageError

IMAGES = "deepinfer"
COMPONENTS = "deepinfer-components"
_HOST = re.compile(r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?)(?::(?P<port>[0-9]{1,5}))?")
_PART = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*")
_EXAMPLE = "for example: --registry registry.example.org:5000/team"


def refuse_secrets(address: str) -> None:
    """Raise UsageError, without a word of it, for an address of a registry that may hold a password."""
    if "@" in address:
        raise UsageError(
            "a registry's address holds no user, password or digest",
            cause="everybody on this machine can read a command line",
            next_step="`docker login HOST`, or DEEPINFER_REGISTRY_USER and DEEPINFER_REGISTRY_PASSWORD_FILE",
        )


@dataclass(frozen=True)
class Location:
    """A registry (`host`, with its port) and a path in it, which may be empty."""

    host: str
    path: str = ""

    @classmethod
    def parse(cls, text: str, *, flag: str = "registry") -> Location:
        """Read what the command line says. Raises UsageError, which never repeats a text that may hold a password."""
        refuse_secrets(text)
        if "://" in text:
            raise UsageError(f"--{flag} {text!r} is a URL; a registry is named without https://", next_step=_EXAMPLE)
        host, *parts = text.removesuffix("/").split("/")
        match = _HOST.fullmatch(host)
        if match is None or int(match["port"] or 1) not in range(1, 65536):
            raise UsageError(f"--{flag} {text!r}: {host!r} is no host and port", next_step=_EXAMPLE)
        if "." not in host and ":" not in host and host != "localhost":
            raise UsageError(
                f"--{flag} {text!r} begins with no host: {host!r} has neither a dot nor a port",
                next_step=f"{_EXAMPLE}; Docker's own registry is called docker.io",
            )
        wrong = [part for part in parts if _PART.fullmatch(part) is None]
        if wrong:
            raise UsageError(
                f"--{flag} {text!r}: {wrong[0]!r} cannot be part of a repository's name",
                cause="lower case letters, digits and single . _ - between them are allowed, and no tag",
                next_step=_EXAMPLE,
            )
        return cls(host, "/".join(parts))

    def repository(self, name: str) -> str:
        """A repository's name inside the registry."""
        return f"{self.path}/{name}" if self.path else name

    def reference(self, name: str) -> str:
        """A repository's name with the registry, as `docker pull` takes it."""
        return f"{self.host}/{self.repository(name)}"

    @property
    def api_host(self) -> str:
        """The host that speaks the registry's protocol; Docker's own has another name than its images."""
        return "registry-1.docker.io" if self.host in ("docker.io", "index.docker.io") else self.host

    def may_be_plain(self, engine_info: Mapping[str, Any] | None = None) -> bool:
        """Whether HTTP without TLS is allowed: on this machine itself, or where the engine's settings say so."""
        name = self.host.partition(":")[0]
        settings = dict((engine_info or {}).get("RegistryConfig") or {})
        known = dict(settings.get("IndexConfigs") or {}).get(self.host)
        if known is not None and known.get("Secure") is False:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return name == "localhost"
        networks = map(ipaddress.ip_network, settings.get("InsecureRegistryCIDRs") or ())
        return address.is_loopback or any(address in network for network in networks)
