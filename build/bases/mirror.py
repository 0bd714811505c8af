"""Vendors' images from another registry: a mirror, or one on the loopback, that has them under the same paths."""

from __future__ import annotations

import dataclasses
import re

from build.errors import UsageError
from build.matrix.model import Matrix
from build.publish.location import refuse_secrets

_REGISTRY = re.compile(r"(?P<host>[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(?::(?P<port>\d{1,5}))?")


def with_registry(matrix: Matrix, registry: str) -> Matrix:
    """The matrix with `registry` in the place of the host of every vendor's reference; "" changes nothing.

    Raises UsageError for a text that is not HOST or HOST:PORT.
    """
    if not registry:
        return matrix
    refuse_secrets(registry)
    match = _REGISTRY.fullmatch(registry)
    port = int(match["port"] or 443) if match else 0
    # A first part without a dot or a port is a folder of Docker Hub to Docker, not a host.
    is_host = match is not None and (match["port"] or "." in registry or registry == "localhost" or registry[0] == "[")
    if not is_host or not 0 < port < 65536:
        raise UsageError(
            f"--registry {registry!r} names no registry",
            next_step="write HOST or HOST:PORT, without https:// and without a path, as in mirror.example.org:5000",
        )
    targets = {
        name: dataclasses.replace(target, vendor=f"{registry}/{repository_path(target.vendor)}")
        if target.vendor is not None
        else target
        for name, target in matrix.targets.items()
    }
    return dataclasses.replace(matrix, targets=targets)


def repository_path(reference: str) -> str:
    """A reference without its host, as a mirror has it.

    >>> [repository_path(name) for name in ("vllm/vllm-openai:v1", "localhost:5000/a/b@sha256:12", "debian")]
    ['vllm/vllm-openai:v1', 'a/b@sha256:12', 'library/debian']
    """
    first, slash, rest = reference.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        hub = first in ("docker.io", "index.docker.io")
        return f"library/{rest}" if hub and "/" not in rest else rest
    return reference if slash else f"library/{reference}"
