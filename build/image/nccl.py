"""NCCL's overlay: the newer library takes the place of the file that torch loads, with its headers and metadata.

A second file of the same soname does not help: torch loads its own by path, and DeepEP refuses to import beside two.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path, PurePosixPath

from build.errors import EnvironmentCannot
from build.image.licences import lay_licences
from build.image.parts import Contents, inside
from build.inspection import Inspection
from build.locks import install_wheel
from build.plan import Cell

WITHIN_SITE = PurePosixPath("nvidia/nccl/lib/libnccl.so.2")
"""Where NVIDIA's wheels keep the library."""


def nccl_site(loaded: str) -> PurePosixPath | None:
    """The folder of packages that holds the library torch loads, None if the library is not a wheel's."""
    path = PurePosixPath(loaded)
    depth = len(WITHIN_SITE.parts)
    if path.parts[-depth:] != WITHIN_SITE.parts:
        return None
    return PurePosixPath(*path.parts[:-depth])


def lay_nccl(tree: Path, wheel: Path, cell: Cell, inspection: Inspection) -> Contents:
    """Lay NCCL over the file that torch loads.

    In a wheel's place the whole wheel goes in, so that the metadata tells the truth; files of the old one that the new
    one does not have are removed. Elsewhere (a system package) the file itself is replaced; the wheel goes into the
    site with a link to that file, because DeepEP finds NCCL's headers and library through a distribution's metadata.

    Raises EnvironmentCannot if torch of the base loads no NCCL, or the wheel holds no library.
    """
    loaded = inspection.nccl_loaded
    if loaded is None:
        raise EnvironmentCannot(
            f"{cell.name}: torch of the base loads no libnccl that could be replaced",
            next_step=f"run `./run inspect --image {cell.image}`; a CPU-only torch needs no NCCL overlay",
        )
    site = nccl_site(loaded)
    root = site if site is not None else PurePosixPath(inspection.site)
    install_wheel(wheel, root, tree, scripts=None, python=inspection.executable)
    library = inside(tree, root / WITHIN_SITE)
    if not library.is_file():
        raise _no_library(wheel)
    if site is None:
        target = inside(tree, loaded)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(library, target)
        library.symlink_to(loaded)
    lay_licences(tree, "nccl", wheel)
    facts = {"version": cell.component.version, "replaced": inspection.nccl_version, "path": loaded}
    return Contents(removes=_stale(root, inspection), facts=facts)


def _no_library(wheel: Path) -> EnvironmentCannot:
    return EnvironmentCannot(
        f"{wheel.name} holds no {WITHIN_SITE}",
        cause="NVIDIA changed the layout of the wheel, or matrix.yaml names another package",
        next_step="compare the component's source in matrix.yaml with the wheel's contents",
    )


def _stale(root: PurePosixPath, inspection: Inspection) -> tuple[str, ...]:
    """Patterns of the old NCCL's files: its metadata, library and headers."""
    names = {name for name in inspection.distributions if re.fullmatch(r"nvidia-nccl(-cu\d+)?", name)}
    metadata = [f"{root}/{name.replace('-', '_')}-*.dist-info" for name in sorted(names)]
    package = root / WITHIN_SITE.parts[0] / WITHIN_SITE.parts[1]
    return (*metadata, f"{package}/lib/libnccl*", f"{package}/include")
