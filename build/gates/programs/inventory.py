"""What a finished image holds: sums of files, the Python distributions of its interpreter, its Debian packages."""

from __future__ import annotations

import concurrent.futures
import hashlib
import importlib.metadata
import os
import stat
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

OF_THE_ENGINE = ("/.dockerenv", "/etc/hostname", "/etc/hosts", "/etc/resolv.conf")
"""Files that the engine puts into every container; they are none of the image's."""
_READERS = 2
_LICENCE_LIMIT = 100


def inventory(paths: Sequence[str], roots: Sequence[str] = (), libraries: Sequence[str] = ()) -> dict[str, Any]:
    """Look at the image that this runs in.

    Args:
        paths: files to describe; one that is not there is left out of the answer.
        roots: folders of which every file is described too.
        libraries: folders of distributions beside those on the interpreter's path.

    Returns:
        files: path -> {"sha256", "bytes", "mode"} or {"link": target}.  distributions: of this interpreter.
        debian: installed packages.  system: `ID` and `VERSION_ID` of os-release.
    """
    below = (str(Path(folder, name)) for root in roots for folder, _, names in os.walk(root) for name in names)
    wanted = sorted({*paths, *below})
    with concurrent.futures.ThreadPoolExecutor(_READERS) as pool:
        described = zip(wanted, pool.map(describe, wanted), strict=True)
        files = {path: facts for path, facts in described if facts}
    return {
        "files": files,
        "distributions": distributions([*sys.path, *libraries]),
        "debian": debian(),
        "system": system(),
    }


def describe(path: str) -> dict[str, Any]:
    """Sum, size and mode of a file, or where a link points; empty for what is neither, or not there."""
    try:
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            return {"link": str(Path(path).readlink())}
        if not stat.S_ISREG(status.st_mode):
            return {}
        with open(path, "rb") as data:  # noqa: PTH123 - thousands of files: a Path for each doubles the time
            digest = hashlib.file_digest(data, "sha256").hexdigest()
    except OSError:
        return {}
    return {"sha256": digest, "bytes": status.st_size, "mode": f"{stat.S_IMODE(status.st_mode):04o}"}


def distributions(folders: Sequence[str]) -> list[dict[str, str]]:
    """Every distribution in `folders`: name, version, the folder that it lies in, and its licence if it tells one."""
    found = {}
    for held in importlib.metadata.distributions(path=list(dict.fromkeys(folders))):
        facts = held.metadata
        if not facts or not facts["Name"]:
            continue
        licence = facts["License-Expression"] or ""
        named = facts["License"] or ""
        short = named if len(named) <= _LICENCE_LIMIT and "\n" not in named else ""
        row = {
            "name": facts["Name"],
            "version": facts["Version"] or "",
            "folder": str(held.locate_file("")),
            "expression": licence,
            "licence": "" if licence else short,
        }
        found[row["name"], row["version"], row["folder"]] = row
    return [found[key] for key in sorted(found)]


def debian(root: Path = Path("/var/lib/dpkg")) -> list[dict[str, str]]:
    """Installed packages by dpkg's records, also where each has a file of its own, as in images without dpkg."""
    texts = [path.read_text(errors="replace") for path in (root / "status", *_single(root)) if path.is_file()]
    found = {}
    for paragraph in "\n\n".join(texts).split("\n\n"):
        fields = _fields(paragraph.splitlines())
        state = fields.get("Status", "install ok installed")
        if fields.get("Package") and state.split()[-1] == "installed":
            row = {key.lower(): fields.get(key, "") for key in ("Package", "Version", "Architecture", "Source")}
            found[row["package"], row["architecture"]] = row
    return [found[key] for key in sorted(found)]


def _single(root: Path) -> list[Path]:
    folder = root / "status.d"
    return sorted(path for path in folder.glob("*") if path.suffix != ".md5sums") if folder.is_dir() else []


def _fields(lines: Iterable[str]) -> dict[str, str]:
    """`Name: value` of a paragraph; lines that go on with the one before are left out."""
    pairs = (line.partition(":") for line in lines if not line.startswith((" ", "\t")))
    return {name: value.strip() for name, _, value in pairs}


def system(path: Path = Path("/etc/os-release")) -> dict[str, str]:
    """What the system calls itself."""
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    pairs = (line.partition("=") for line in lines)
    return {name: value.strip("\"'") for name, _, value in pairs if name in ("ID", "VERSION_ID")}
