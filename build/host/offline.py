"""A folder of packs for machines without a network. Packs may arrive one by one; what is missing is named.

What is looked for in the folder (three levels deep):
    *.tar.gz, *.whl        sources and wheels, found by their sha256, whatever they are called
    wheels/*.whl           build.lock's wheels, which `./run` puts on PYTHONPATH
    nccl.tar.xz            a tree with nvidia/nccl/{include,lib}: NCCL, possibly without other GPUs' code
    elfutils.tar.xz        a tree with usr/include/elfutils and usr/include/{dwarf,gelf,libelf}.h
    triton-X.tar.xz        a tree with the package triton, version X; or its wheel, triton-X-*.whl
Each archive may also lie there unpacked, as a folder of the same name without the suffix.
`python -m build.host.pack` fills such a folder on a machine with a network.
"""

from __future__ import annotations

import lzma
import re
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from packaging.utils import InvalidWheelFilename

from build import cache
from build.digests import file_sha256
from build.errors import EnvironmentCannot
from build.locks import fits
from build.untar import Refused, extract

TRITON = re.compile(r"^triton-(\d+(?:\.\d+)+)(?:$|\.tar\.xz$|-.*\.whl$)")


class OfflineFolder:
    """The packs that have arrived."""

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise EnvironmentCannot(
                f"--offline {path} is not a folder", next_step="make it and put the packs there (docs/offline.md)"
            )
        self.path = path

    def _files(self, *suffixes: str) -> Iterator[Path]:
        for depth in ("*", "*/*", "*/*/*"):
            for path in sorted(self.path.glob(depth)):
                if path.is_file() and path.name.endswith(suffixes):
                    yield path

    def by_sha256(self, digest: str) -> Path | None:
        """The source or wheel with this hash, None if it has not arrived."""
        return next((path for path in self._files(".tar.gz", ".whl") if file_sha256(path) == digest), None)

    def tree(self, name: str, *, python: str | None = None) -> Path | None:
        """The unpacked tree `name` ("nccl", "elfutils", "triton-3.7.1"), None if it has not arrived.

        Args:
            python: "3.12": wheels for another Python are passed over.
        """
        if (self.path / name).is_dir():
            return self.path / name
        for path in self._files(".tar.xz", ".whl"):
            alike = path.name == f"{name}.tar.xz" or path.name.startswith(f"{name}-")
            if alike and (python is None or path.suffix != ".whl" or _for_python(path, python)):
                return _unpacked(path)
        return None

    def tritons(self, python: str | None = None) -> dict[str, Path]:
        """Version -> folder to put on PYTHONPATH, for every Triton that has arrived for this Python ("3.12")."""
        names = [*(path.name for path in self._files(".tar.xz", ".whl")), *(path.name for path in self.path.iterdir())]
        versions = {match.group(1) for match in map(TRITON.match, names) if match}
        trees = {version: self.tree(f"triton-{version}", python=python) for version in sorted(versions)}
        return {version: tree for version, tree in trees.items() if tree is not None}


def _for_python(wheel: Path, python: str) -> bool:
    try:
        return fits(wheel.name, python)
    except InvalidWheelFilename:
        return False


def _unpacked(archive: Path) -> Path:
    """Unpack into the cache, once per content; whole or not at all."""
    stem = archive.name.removesuffix(".tar.xz").removesuffix(".whl")
    target = cache.folder("host/packs") / f"{stem}-{file_sha256(archive)[:16]}"
    if target.is_dir():
        return target
    with cache.locked(f"unpack-{target.name}"):
        if target.is_dir():
            return target
        print(f"unpacking {archive.name}", file=sys.stderr)
        scratch = Path(tempfile.mkdtemp(prefix=".part-", dir=target.parent))
        try:
            (_unpack_wheel if archive.suffix == ".whl" else _unpack_tar)(archive, scratch)
            scratch.chmod(0o755)
            scratch.replace(target)
        except (tarfile.TarError, lzma.LZMAError, Refused, BadZipFile, EOFError, OSError) as problem:
            raise EnvironmentCannot(
                f"the pack {archive.name} cannot be unpacked: {problem}",
                cause="it did not arrive whole, or the disk is full",
                next_step="copy it again and rerun",
            ) from problem
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return target


def _unpack_tar(archive: Path, target: Path) -> None:
    with tarfile.open(archive, "r:xz") as tar:
        extract(tar, target)


def _unpack_wheel(archive: Path, target: Path) -> None:
    with ZipFile(archive) as wheel:
        for member in wheel.infolist():
            path = Path(wheel.extract(member, target))
            if member.external_attr >> 16 & 0o111:
                path.chmod(0o755)  # ptxas and its like must stay executable
