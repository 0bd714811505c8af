"""How much memory this process may have: the machine's, or less where a cgroup, as a container's, has a limit.

build/ and deepinfer/ have this file each, since neither imports the other; a test keeps the two alike.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_LIMIT = {"cgroup2": "memory.max", "cgroup": "memory.limit_in_bytes"}
"""The file of a group's limit, by the kind of file system that shows the groups (version 2, version 1)."""


def host_memory(root: Path = Path("/")) -> int:
    """Bytes: the least of the machine's memory and of the limits of this process's group and of those it is in.

    What cannot be read, or is no number ("max"), limits nothing. Groups above those that a container sees are not
    known to it.

    Args:
        root: where /proc and the mounts that it tells of are found.
    """
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_limits(root)])


def _limits(root: Path) -> Iterator[int]:
    groups = _groups(_text(root / "proc/self/cgroup"))
    for line in _text(root / "proc/self/mountinfo").split("\n"):
        before, _, after = line.partition(" - ")
        mount, system = before.split(" "), after.split(" ")
        if len(mount) < 5 or len(system) < 3 or (kind := system[0]) not in groups:
            continue
        if kind == "cgroup" and "memory" not in system[2].split(","):
            continue
        shown, place = map(_unescaped, mount[3:5])
        top = root / place.lstrip("/")
        folder = top / _below(groups[kind], shown)
        for group in (folder, *folder.parents):
            limit = _text(group / _LIMIT[kind]).strip()
            if limit.isdecimal():
                yield int(limit)
            if group == top:
                break


def _groups(text: str) -> dict[str, PurePosixPath]:
    """The process's group that counts memory, by the kind of file system."""
    found = {}
    for line in text.split("\n"):
        number, controllers, path = (line.split(":", 2) + [""] * 2)[:3]
        if number == "0" and not controllers:
            found["cgroup2"] = PurePosixPath(path)
        elif "memory" in controllers.split(","):
            found["cgroup"] = PurePosixPath(path)
    return found


def _below(group: PurePosixPath, shown: str) -> PurePosixPath:
    """Where a group lies below a mount that shows the groups from `shown` on: at the mount itself if it is not there.

    A container may be told the machine's name of its group, while its own mount begins with that group.
    """
    below = group.relative_to(shown) if group.is_relative_to(shown) else PurePosixPath()
    return PurePosixPath() if ".." in below.parts else below


def _unescaped(field: str) -> str:
    r"""A path as it is: mountinfo writes blanks, line ends and backslashes as octal numbers (\040)."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field)


def _text(file: Path) -> str:
    """What it holds; '' where it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
