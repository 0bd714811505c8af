"""Which CUDA headers a compile sees, where that is not simply the base's own. Pure; plan and builder both ask.

images/builder/ holds headers as locks of wheels, `cuda-<version>.lock`. Two kinds of bases need one: a base whose torch
brings the CUDA libraries but no tool kit, and a base whose own headers are older than the newest lock of the same major
version. CUDA keeps the binary interface within a major version, so that code compiled with newer headers runs beside
torch's own libraries, and components may need newer ones: DeepGEMM stops with CUDA 12.8's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from packaging.version import Version

from build.inspection import Inspection

SOURCE = "cuda:"
"""Begins the names under which `collect_sources` gives the digests of these locks."""


def own_headers(cuda: str | None, nvcc: str | None) -> str | None:
    """The version ("12.8") of the headers that a base has: its tool kit's if that is of torch's major version."""
    if cuda is None or nvcc is None or _parts(nvcc)[:1] != _parts(cuda)[:1]:
        return cuda
    return ".".join(str(part) for part in _parts(nvcc)[:2])


def laid_over(own: str | None, locked: Iterable[str]) -> str | None:
    """The newest of the locked versions that is of the same major version and newer than a base's own; else None."""
    if own is None:
        return None
    newer = [one for one in locked if _parts(one)[:1] == _parts(own)[:1] and Version(one) > Version(own)]
    return max(newer, key=Version, default=None)


def has_kit(inspection: Inspection) -> bool:
    """Whether the base has a CUDA tool kit of its own."""
    return inspection.cuda_home is not None and inspection.nvcc is not None


def locked_versions(sources: Mapping[str, str]) -> list[str]:
    """The versions of the locks among `collect_sources`' digests."""
    return [name.removeprefix(SOURCE) for name in sources if name.startswith(SOURCE)]


def _parts(version: str) -> tuple[int, ...]:
    return Version(version).release
