"""Unpack tar archives that others made: nothing of them lands outside of the folder, or is anything but data.

Python's own data filter came with 3.11.4; Debian 12 has 3.11.2.
"""

from __future__ import annotations

import os
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
        folder, root = Path(os.path.realpath(place.parent)), Path(os.path.realpath(target))  # links in circles too
        if not problem and not folder.is_relative_to(root):
            problem = "it lies behind a link that leads outside"
        if not problem and member.issym() and _leaves(member.linkname, len(folder.relative_to(root).parts)):
            problem = "it links outside of the folder"
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
    return "" if member.isfile() or member.isdir() or member.issym() else "it is neither file, folder nor link"


def _leaves(link: str, depth: int) -> bool:
    """Whether a link from a folder so many levels deep may lead outside.

    `..` is taken at the beginning only: behind a name, it would count from wherever that name leads.
    """
    path = PurePosixPath(link)
    up = path.parts.count("..")
    return path.is_absolute() or up > depth or ".." in path.parts[up:]
