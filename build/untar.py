"""Unpack tar archives that others made: nothing of them lands outside of the folder, or is anything but data.

Python's own data filter came with 3.11.4; Debian 12 has 3.11.2.
"""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path, PurePosixPath

LARGEST = 4 << 30


class Refused(Exception):
    """The archive holds something that it must not; the text names the member and what is wrong with it."""


def extract(archive: tarfile.TarFile, target: Path) -> None:
    """Unpack files, folders and links that stay inside below `target`; owners and special modes are left out.

    Raises:
        Refused: a member is hostile; what came before it has been unpacked.
    """
    left = LARGEST
    for member in archive:
        if member.isdir() and PurePosixPath(member.name) == PurePosixPath("."):
            continue  # the folder itself, as `tar -cf … .` names it
        left -= member.size
        problem = _objection(member) or ("it unpacks to more than 4 GiB" if left < 0 else "")
        place = target / member.name
        if not problem and not place.parent.resolve().is_relative_to(target.resolve()):
            problem = "it lies behind a link that leads outside"
        if problem:
            raise Refused(f"member {member.name!r}: {problem}")
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
