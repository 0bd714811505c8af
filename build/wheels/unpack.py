"""A source unpacked into a folder of ours; an archive that reaches outside of it is refused."""

from __future__ import annotations

import shutil
import tarfile
import zlib
from pathlib import Path

from build.errors import CellFailed
from build.matrix.model import Component
from build.plan import Cell
from build.sources import files_digest
from build.untar import Refused, extract


def unpack(component: Component, source: Path, target: Path) -> Path:
    """Unpack `source` (as `fetch_source` gave it) below `target`, a new folder; returns the folder with setup.py.

    Raises CellFailed when the archive is damaged, reaches outside, or holds no setup.py.
    """
    target.mkdir(parents=True)
    if source.is_dir():
        return _copy(component, source, target)
    try:
        with tarfile.open(source) as archive:
            extract(archive, target)
    except Refused as refused:
        raise CellFailed(
            f"the source of {component.title} is refused: {refused}",
            cause="the archive is hostile or badly made",
            next_step="look into the archive before you trust its publisher; pin another release",
        ) from refused
    except (tarfile.TarError, EOFError, zlib.error, OSError) as problem:
        if isinstance(problem, OSError) and problem.errno is not None:
            raise
        raise CellFailed(
            f"the source of {component.title} cannot be unpacked: {problem}",
            cause=f"{source.name} is cut short or is no tar archive",
            next_step="if its sha256 is the matrix's, the pinned file itself is bad: pin another release",
        ) from problem
    entries = list(target.iterdir())
    root = entries[0] if len(entries) == 1 and entries[0].is_dir() else target
    if not (root / "setup.py").is_file():
        raise CellFailed(
            f"the source of {component.title} holds no setup.py",
            cause=f"{source.name} is not the sdist of a project built with setuptools",
            next_step="correct the component's source in matrix.yaml",
        )
    return root


def unpack_cell(cell: Cell, source: Path, target: Path) -> Path:
    """`unpack` for a compile, whose product is kept under the cell's key.

    Raises CellFailed also where the files of a folder are not those any more from which the key was made.
    """
    tree = unpack(cell.component, source, target)
    planned, include = cell.inputs.get("source", ""), cell.component.source.include or (".",)
    if planned.startswith("files:") and planned != f"files:{files_digest(source, include)}":
        raise CellFailed(
            f"the source of {cell.component.title} was changed after the build had begun",
            cause=f"somebody edits {source}",
            next_step="run the build again",
        )
    return tree


def _copy(component: Component, source: Path, target: Path) -> Path:
    ignore = shutil.ignore_patterns(".git", "__pycache__", ".venv", ".setuptools", "*.egg-info", "build", "dist")
    for part in component.source.include or (".",):
        origin = source / part
        if origin.is_dir():
            shutil.copytree(origin, target / part, ignore=ignore, dirs_exist_ok=True)
        else:
            (target / part).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(origin, target / part)
    return target
