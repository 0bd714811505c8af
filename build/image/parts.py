"""Parts: what one layer adds to an image, as a tar archive whose bytes depend on its contents alone.

An archive is laid down by the Dockerfile's ADD. Unlike a copied folder it carries owners, modes and times of its own,
so that equal contents give an equal layer, and it says nothing of the folders that the base already has, so that their
modes stay the base's. Archives are kept in the build cache by key: when only Python files of the engine changed, the
big ones are neither made nor sent to the engine again.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from build import cache
from build.digests import file_sha256
from build.errors import EnvironmentCannot
from build.wheels.wheelhouse import DAMAGE

ORDER = ("toolchain", "runtime", "ours", "nccl", "system", "warm", "deepinfer")
"""The parts in the order in which the Dockerfile lays them."""

PREFIX = PurePosixPath("/opt/deepinfer")
SITE = PREFIX / "site"
LIBRARIES = PREFIX / "lib"
LICENCES = PREFIX / "licenses"
CACHE = PurePosixPath("/cache")
HOME = PurePosixPath("/home/deepinfer")
SCRIPTS = PurePosixPath("/usr/local/bin")
USER_ID = 10001

FILE_TIME = 315532800  # 1980-01-01, the oldest time that a wheel can hold

# Folders whose mode and owner are not the usual 0755 root.
SPECIAL: Mapping[PurePosixPath, tuple[int, int]] = {CACHE: (0o1777, 0), HOME: (0o755, USER_ID)}


@dataclass(frozen=True)
class Part:
    """One layer's contents.

    archive: the tar file.  size: bytes of the files in it.  modules: folders and files of the image to byte-compile.
    removes: patterns of files of the base that go before the archive is laid.
    facts: what the makers found out and image.json repeats.
    fresh: made now; one from the cache has been sent to the engine before.
    """

    name: str
    archive: Path
    size: int
    modules: tuple[str, ...] = ()
    removes: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    fresh: bool = False


@dataclass(frozen=True)
class Contents:
    """What a maker reports of the tree that it laid: see Part for the fields."""

    modules: tuple[str, ...] = ()
    removes: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


def inside(tree: Path, path: PurePosixPath | str) -> Path:
    """Where an absolute path of the image lies below `tree`."""
    return tree.joinpath(*PurePosixPath(path).parts[1:])


def existing_folders(*paths: PurePosixPath | str) -> frozenset[PurePosixPath]:
    """The folders, with all above them, that an archive must leave as the base has them."""
    return frozenset(folder for path in paths for folder in (PurePosixPath(path), *PurePosixPath(path).parents))


def write_archive(tree: Path, target: Path, existing: frozenset[PurePosixPath]) -> int:
    """Pack everything below `tree` as files of root; returns the bytes of the files.

    Raises EnvironmentCannot when the disk is full.
    """
    size = 0
    inside(tree, PREFIX).mkdir(parents=True, exist_ok=True)  # ADD takes an archive without members for a plain file
    try:
        with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as archive:
            for path in _walk(tree):
                info = _describe(path, PurePosixPath("/") / path.relative_to(tree).as_posix())
                if info.isdir() and PurePosixPath("/" + info.name) in existing:
                    continue
                if info.isreg():
                    size += info.size
                    with path.open("rb") as data:
                        archive.addfile(info, data)
                else:
                    archive.addfile(info)
    except OSError as problem:
        raise out_of_space(target.parent, problem) from problem
    return size


def _walk(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _walk(path)


def _describe(path: Path, place: PurePosixPath) -> tarfile.TarInfo:
    info = tarfile.TarInfo(str(place).lstrip("/"))
    info.mtime = FILE_TIME
    if path.is_symlink():
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, str(path.readlink()), 0o777
    elif path.is_dir():
        info.type = tarfile.DIRTYPE
        info.mode, owner = SPECIAL.get(place, (0o755, 0))
        info.uid = info.gid = owner
    else:
        status = path.stat()
        info.size = status.st_size
        info.mode = 0o755 if status.st_mode & 0o111 else 0o644
    return info


def out_of_space(where: Path, problem: OSError) -> Exception:
    """The error to raise for `problem`: one with figures if the disk is full, else the problem itself."""
    if problem.errno not in (errno.ENOSPC, errno.EDQUOT):
        return problem
    usage = shutil.disk_usage(where)
    return EnvironmentCannot(
        f"no space is left under {where}: {usage.free / 1e6:.0f} MB free of {usage.total / 1e9:.1f} GB",
        cause="an image's parts take up to 0.7 GB there, and as much again in the Docker engine",
        next_step="free space (`./run clean` tells what the cache holds), or set DEEPINFER_BUILD_CACHE elsewhere",
    )


def cached_part(
    target: str,
    name: str,
    inputs: object,
    existing: frozenset[PurePosixPath],
    make: Callable[[Path], Contents],
) -> Part:
    """A part from the cache, or made now.

    Args:
        target: the image's name; one archive of each part is kept for it, the last.
        inputs: everything, as JSON, on which the part's contents depend beside this package's own code.
        make: lays the files below the folder that it is given, which stands for the image's root.
    """
    folder = cache.folder(f"parts/{target}")
    key = hashlib.sha256(json.dumps([recipe_digest(), name, inputs], sort_keys=True).encode()).hexdigest()[:24]
    archive, record = folder / f"{name}-{key}.tar", folder / f"{name}-{key}.json"
    found = _read(name, archive, record)
    if found is not None:
        return found
    for old in folder.glob(f"{name}-*"):
        old.unlink()
    _sweep(folder)
    try:
        with tempfile.TemporaryDirectory(prefix=".part-", dir=folder) as scratch, cache.atomic_path(archive) as part:
            tree = Path(scratch)
            contents = make(tree)
            size = write_archive(tree, part, existing)
        written = {
            "sha256": file_sha256(archive), "size": size, "modules": list(contents.modules),
            "removes": list(contents.removes), "facts": dict(contents.facts),
        }  # fmt: skip
        cache.atomic_write(record, json.dumps(written, indent=1, sort_keys=True))
    except OSError as problem:
        raise out_of_space(folder, problem) from problem
    return Part(name, archive, size, contents.modules, contents.removes, contents.facts, fresh=True)


def _sweep(folder: Path) -> None:
    """Remove what a killed run left half made; whoever makes parts of this image holds its lock."""
    for left in folder.glob(".part-*"):
        if left.is_dir():
            shutil.rmtree(left)
        else:
            left.unlink()


def _read(name: str, archive: Path, record: Path) -> Part | None:
    """The part that was kept, if it is the whole and the very file that was written."""
    try:
        written = json.loads(record.read_text())
        if file_sha256(archive) != written["sha256"]:
            return None
        modules, removes = tuple(written["modules"]), tuple(written["removes"])
        return Part(name, archive, written["size"], modules, removes, written["facts"])
    except DAMAGE:
        return None


@functools.cache
def recipe_digest() -> str:
    """64 hex digits over the code of this package and over the licence texts that it adds."""
    here = Path(__file__).parent
    images = cache.REPOSITORY / "images"
    files = [*sorted(here.glob("*.py")), *sorted(path for path in images.glob("licences/*/*") if path.is_file())]
    hasher = hashlib.sha256()
    for path in files:
        hasher.update(f"{path.name}\0".encode())
        hasher.update(path.read_bytes())
    return hasher.hexdigest()
