"""A source unpacked into a folder of ours; an archive that reaches outside of it is refused."""

from __future__ import annotations

import shutil
import tarfile
import zlib
from pathlib import Path, PurePosixPath

from build.errors import CellFailed
from build.matrix.model import Component

LARGEST = 4 << 30


def unpack(component: Component, source: Path, target: Path) -> Path:
    """Unpack `source` (as `fetch_source` gave it) below `target`, a new folder; returns the folder with setup.py.

    Raises CellFailed when the archive is damaged, reaches outside, or holds no setup.py.
    """
    target.mkdir(parents=True)
    if source.is_dir():
        return _copy(component, source, target)
    try:
        with tarfile.open(source) as archive:
            _extract(component, archive, target)
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


def _extract(component: Component, archive: tarfile.TarFile, target: Path) -> None:
    # Python's own data filter came with 3.11.4; Debian 12 has 3.11.2.
    left = LARGEST
    for member in archive:
        left -= member.size
        problem = _objection(member) or ("it unpacks to more than 4 GiB" if left < 0 else "")
        place = target / member.name
        if not problem and not place.parent.resolve().is_relative_to(target.resolve()):
            problem = "it lies behind a link that leads outside"
        if problem:
            raise CellFailed(
                f"the source of {component.title} is refused: member {member.name!r}: {problem}",
                cause="the archive is hostile or badly made",
                next_step="look into the archive before you trust its publisher; pin another release",
            )
        if member.isdir():
            place.mkdir(parents=True, exist_ok=True)
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        if member.issym():
            place.symlink_to(member.linkname)
            continue
        content = archive.extractfile(member)
        assert content is not None
        with place.open("xb") as out:
            shutil.copyfileobj(content, out)
        place.chmod(0o755 if member.mode & 0o100 else 0o644)


def _objection(member: tarfile.TarInfo) -> str:
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        return "its path leaves the folder"
    if member.issym():
        link = PurePosixPath(member.linkname)
        depth = len(path.parts) - 1
        for part in link.parts:
            depth += -1 if part == ".." else 1
            if depth < 0:
                return "it links outside of the folder"
        return "it links outside of the folder" if link.is_absolute() else ""
    return "" if member.isfile() or member.isdir() else "it is neither file, folder nor link"
