"""Tar archives that are the same bytes for the same content: sorted, one date, no user names, gzip without a clock."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

# SOURCE_DATE_EPOCH of everything packed here; Debian's and pip's own files keep nothing that depends on it.
EPOCH = 1_767_225_600


def pack_folder(folder: Path, target: Path, *, leave_out: Callable[[str], bool] = lambda name: False) -> None:
    """Pack a folder's content, with owners and modes, into `target` (tar.gz), the same bytes every time.

    Args:
        leave_out: given a path relative to the folder, says whether it and what is below it stays out.
    """
    with target.open("wb") as raw, _zipped(raw) as zipped, tarfile.open(fileobj=zipped, mode="w") as archive:
        for path in _walk(folder, folder, leave_out):
            archive.add(path, arcname=str(path.relative_to(folder)), recursive=False, filter=_settled)


def pack_files(files: dict[str, bytes], links: dict[str, str], target: Path) -> None:
    """Pack files (path -> content) and symbolic links (path -> goal), owned by root, with their folders."""
    names = {*files, *links}
    folders = sorted({str(parent) for name in names for parent in Path(name).parents if str(parent) != "."})
    with target.open("wb") as raw, _zipped(raw) as zipped, tarfile.open(fileobj=zipped, mode="w") as archive:
        for name in [*folders, *sorted(names)]:
            info = tarfile.TarInfo(name)
            info.mtime = EPOCH
            info.mode = 0o755
            if name in files:
                info.size = len(files[name])
                archive.addfile(info, io.BytesIO(files[name]))
                continue
            info.type = tarfile.SYMTYPE if name in links else tarfile.DIRTYPE
            info.linkname = links.get(name, "")
            archive.addfile(info)


def repack(source: Path, target: Path, *, leave_out: Callable[[str], bool] = lambda name: False) -> None:
    """Rewrite a tar archive (an exported container) as `pack_folder` would have written it."""
    with (
        tarfile.open(source) as given,
        target.open("wb") as raw,
        _zipped(raw) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as archive,
    ):
        # A hard link comes after what it points at: links last, otherwise by name.
        for member in sorted(given, key=lambda info: (info.islnk(), info.name)):
            if any(leave_out(str(path)) for path in (Path(member.name), *Path(member.name).parents)):
                continue
            archive.addfile(_settled(member), given.extractfile(member) if member.isreg() else None)


def _zipped(raw: io.BufferedWriter) -> gzip.GzipFile:
    return gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=6, mtime=0)


def _walk(top: Path, folder: Path, leave_out: Callable[[str], bool]) -> list[Path]:
    found = list[Path]()
    for path in sorted(folder.iterdir()):
        if leave_out(str(path.relative_to(top))):
            continue
        found.append(path)
        if path.is_dir() and not path.is_symlink():
            found += _walk(top, path, leave_out)
    return found


def _settled(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.mtime = EPOCH
    info.uname = info.gname = ""
    info.pax_headers = {}
    return info
