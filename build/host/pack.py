"""Fill a folder of packs on a machine with a network, for `./run build --image host --offline FOLDER` elsewhere.

    ./run -- python -m build.host.pack FOLDER [--python 3.12] [wheels runtime sources elfutils triton]

wheels: build.lock's, for Python 3.11 to 3.13.  runtime: what the engine needs beside torch.  sources: the sdists
and NCCL's wheel.  elfutils: headers of libdw and libelf, from Debian.  triton: the versions of locks/triton.lock for
the target's Python.  Without names: all of them.
Every wheel and source is checked by its hash and written whole; running it again fetches only what is missing.
"""

from __future__ import annotations

import re
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from build import cache, triton_versions
from build.arguments import Parser
from build.call import call
from build.command import TROUBLE, told_of
from build.digests import file_sha256
from build.errors import EnvironmentCannot, UsageError
from build.host.offline import OfflineFolder
from build.locks import fetch_lock, fetched_wheels, pip_download
from build.matrix.load import load_matrix
from build.setup.lockfile import PYTHONS
from build.wheels.fetch import fetch_source


def put(source: Path, folder: Path) -> None:
    """Copy a file into a folder, whole, unless it is there already; say so."""
    target = folder / source.name
    if not target.is_file() or file_sha256(target) != file_sha256(source):
        with cache.atomic_path(target) as part:
            shutil.copyfile(source, part)
    print(f"{target}  {target.stat().st_size / 1e6:.1f} MB", file=sys.stderr)


def pack_wheels(folder: Path, python: str) -> None:
    """build.lock's wheels; those of every Python, since the other machine's is not always known."""
    for version in dict.fromkeys((*PYTHONS, python)):
        for wheel in fetched_wheels(fetch_lock(cache.REPOSITORY / "locks" / "build.lock", version)).values():
            put(wheel, folder / "wheels")


def pack_runtime(folder: Path, python: str) -> None:
    """The engine's run-time dependencies for the other machine's Python; it takes only those that it lacks."""
    lock = load_matrix().targets["host"].runtime_lock
    if lock is not None:
        for wheel in fetched_wheels(fetch_lock(cache.REPOSITORY / lock, python)).values():
            put(wheel, folder / "runtime")


def pack_sources(folder: Path, python: str) -> None:
    """The sdists of DeepGEMM and DeepEP, and NCCL's wheel (361 MB unpacked)."""
    matrix = load_matrix()
    for name in matrix.targets["host"].components:
        if matrix.components[name].source.pypi is not None:
            put(fetch_source(matrix.components[name]), folder / "sources")


def pack_elfutils(folder: Path, python: str) -> None:
    """The headers of libdw and libelf from Debian's packages: nothing of them is linked."""
    if OfflineFolder(folder).tree("elfutils") is not None:
        return
    with tempfile.TemporaryDirectory() as scratch:
        call("apt-get", "download", "-q", "libdw-dev", "libelf-dev", cwd=Path(scratch))
        for package in Path(scratch).glob("*.deb"):
            call("dpkg", "-x", package, Path(scratch) / "tree")
        with cache.atomic_path(folder / "elfutils.tar.xz") as part, tarfile.open(part, "w:xz") as tar:
            tar.add(Path(scratch) / "tree" / "usr" / "include", arcname="usr/include")
    print(folder / "elfutils.tar.xz", file=sys.stderr)


def pack_triton(folder: Path, python: str) -> None:
    """The wheels of every Triton that the probe is run under."""
    tag = f"cp{python.replace('.', '')}"
    wanted = {version: digest for (version, held), digest in triton_versions.read_lock().items() if held == tag}
    if not wanted:
        raise UsageError(f"locks/triton.lock names no Triton for Python {python}", next_step="give another --python")
    for version, digest in wanted.items():
        if OfflineFolder(folder).by_sha256(digest) is not None:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            call(*pip_download(python), "--dest", scratch, f"triton=={version}")
            (wheel,) = Path(scratch).glob("triton-*.whl")
            if file_sha256(wheel) != digest:
                raise EnvironmentCannot(
                    f"{wheel.name} is not the file that locks/triton.lock names",
                    next_step="find out why the package index serves another file",
                )
            put(wheel, folder)


PACKS = {
    "wheels": pack_wheels,
    "runtime": pack_runtime,
    "sources": pack_sources,
    "elfutils": pack_elfutils,
    "triton": pack_triton,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Fill the folder; returns the exit code."""
    parser = Parser(prog="python -m build.host.pack", description="Fill a folder of offline packs.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PACKS)}; all without any")
    parser.add_argument("--python", default="3.12", help="the other machine's Python (default: 3.12)")
    try:
        args = parser.parse_intermixed_args(argv)
        if re.fullmatch(r"3\.\d+", args.python) is None:
            parser.error(f"--python {args.python!r} is no version such as 3.12")
        unknown = [name for name in args.names if name not in PACKS]
        if unknown:
            parser.error(f"unknown packs: {', '.join(unknown)}; there are {', '.join(PACKS)}")
        try:
            folder = args.folder.expanduser().absolute()
        except RuntimeError as problem:  # ~ of a user who does not exist
            parser.error(f"{str(args.folder)!r} cannot be the name of a folder: {problem}")
        folder.mkdir(parents=True, exist_ok=True)
        for name in args.names or PACKS:
            PACKS[name](folder, args.python)
    except TROUBLE as problem:
        return told_of(problem).exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
