"""A folder of packs for machines without a network. Packs may arrive one by one; what is missing is named.

What is looked for in the folder (three levels deep):
    *.tar.gz, *.whl        sources and wheels, found by their sha256, whatever they are called
    wheels/*.whl           build.lock's wheels, which `./run` puts on PYTHONPATH
    nccl.tar.xz            a tree with nvidia/nccl/{include,lib}: NCCL, possibly without other GPUs' code
    elfutils.tar.xz        a tree with usr/include/elfutils and usr/include/{dwarf,gelf,libelf}.h
    triton-X.tar.xz        a tree with the package triton, version X
Each archive may also lie there unpacked, as a folder of the same name without the suffix.
"""

from __future__ import annotations

import re
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from build import cache
from build.errors import EnvironmentCannot
from build.host.nccl import sha256_of

TRITON = re.compile(r"^triton-(\d+(?:\.\d+)+)$")


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
        return next((path for path in self._files(".tar.gz", ".whl") if sha256_of(path) == digest), None)

    def tree(self, name: str) -> Path | None:
        """The unpacked tree `name` ("nccl", "elfutils", "triton-3.7.1"), None if it has not arrived."""
        if (self.path / name).is_dir():
            return self.path / name
        archive = next((path for path in self._files(".tar.xz") if path.name == f"{name}.tar.xz"), None)
        return None if archive is None else _unpacked(archive)

    def tritons(self) -> dict[str, Path]:
        """Version -> folder to put on PYTHONPATH, for every Triton that has arrived."""
        names = {path.name.removesuffix(".tar.xz") for path in self._files(".tar.xz")}
        names |= {path.name for path in self.path.iterdir() if path.is_dir()}
        found: dict[str, Path] = {}
        for name in sorted(names):
            match = TRITON.match(name)
            tree = self.tree(name) if match else None
            if match and tree is not None:
                found[match.group(1)] = tree
        return found


def _unpacked(archive: Path) -> Path:
    """Unpack into the cache, once per content; whole or not at all."""
    target = cache.folder("host/packs") / f"{archive.name.removesuffix('.tar.xz')}-{sha256_of(archive)[:16]}"
    if target.is_dir():
        return target
    with cache.locked(f"unpack-{target.name}"):
        if target.is_dir():
            return target
        print(f"unpacking {archive.name}", file=sys.stderr)
        scratch = Path(tempfile.mkdtemp(prefix=".part-", dir=target.parent))
        try:
            with tarfile.open(archive, "r:xz") as tar:
                tar.extractall(scratch, filter="data")
            scratch.replace(target)
        except (tarfile.TarError, EOFError, OSError) as problem:
            raise EnvironmentCannot(
                f"the pack {archive.name} cannot be unpacked: {problem}",
                cause="it did not arrive whole, or the disk is full",
                next_step="copy it again and rerun",
            ) from problem
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return target
