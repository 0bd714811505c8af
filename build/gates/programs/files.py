"""Files of a finished image: which ones any user can read, which ones were added to the base, and what is in them."""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import json
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_SKIPPED = ("/proc", "/sys", "/dev", "/run/secrets")
_TEXT_LIMIT = 1 << 20
_SECRETS = {
    "a private key": re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----\s+[A-Za-z0-9+/=]{20}"),
    "an access token": re.compile(
        rb"\b(?:gh[pousr]_[A-Za-z0-9]{36}|AKIA[0-9A-Z]{16}|hf_[A-Za-z]{34}|pypi-AgE[\w-]{20,})"
    ),
}
_CONFIGURED = {
    "a URL with a password": re.compile(rb"https?://[^/\s:@'\"<>]+:[^/\s@'\"<>]+@[\w.-]+"),
    "a package index": re.compile(rb"(?m)^\s*(?:extra-)?index-url\s*="),
}


def unreadable(roots: list[str]) -> list[dict[str, str]]:
    """Files that this user cannot read, and folders that it cannot enter, below `roots`, with mode and owner."""
    found = []
    for path in _below(roots):
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            continue
        wanted = os.R_OK | os.X_OK if stat.S_ISDIR(mode) else os.R_OK
        if not os.access(path, wanted):
            found.append({"path": str(path), "mode": stat.filemode(mode), "owner": str(path.lstat().st_uid)})
    return found


def _below(roots: list[str]) -> Iterator[Path]:
    for root in roots:
        if Path(root).exists():
            yield Path(root)
        for folder, folders, names in os.walk(root):
            for name in [*folders, *names]:
                yield Path(folder, name)


def hashes(packages: list[str]) -> dict[str, str]:
    """sha256 by path of every file below `packages` that this user can read; compiled Python left out."""
    found = {}
    for path in _below(packages):
        if path.is_file() and path.suffix != ".pyc":
            with contextlib.suppress(OSError), path.open("rb") as data:
                found[str(path)] = hashlib.file_digest(data, "sha256").hexdigest()
    return found


def writable(folder: str) -> str:
    """Make a folder and a file in `folder` and remove them again; "" if that went well, else what failed."""
    try:
        with tempfile.TemporaryDirectory(dir=folder) as inner:
            Path(inner, "file").write_text("x")
    except OSError as problem:
        return f"{problem.strerror}: {problem.filename}"
    return ""


def listing() -> dict[str, str]:
    """Every file and link of this file system: path -> size and time of change, or the link's target."""
    found: dict[str, str] = {}
    waiting = ["/"]
    while waiting:
        folder = waiting.pop()
        try:
            entries = list(os.scandir(folder))
        except OSError:
            continue
        for entry in entries:
            if entry.path in _SKIPPED:
                continue
            if entry.is_symlink():
                found[entry.path] = f"link {Path(entry.path).readlink()}"
            elif entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
            else:
                facts = entry.stat(follow_symlinks=False)
                found[entry.path] = f"{facts.st_size} {int(facts.st_mtime)}"
    return found


def packed_listing() -> str:
    """The listing as one line of text: JSON (which any file name survives), gzip, then base64."""
    return base64.b64encode(gzip.compress(json.dumps(listing()).encode(), 3)).decode()


def added_files(base: Path, own: list[str]) -> list[str]:
    """Paths that the packed listing in the file `base` lacks or knows otherwise, but for `own`, the gates' files."""
    before = json.loads(gzip.decompress(base64.b64decode(base.read_bytes())))
    return sorted(path for path, facts in listing().items() if before.get(path) != facts and path not in own)


def search(paths: list[str], libraries: list[str], needles: dict[str, str]) -> list[dict[str, str]]:
    """Look into small text files for secrets.

    libraries: folders of installed packages, whose documentation shows URLs with passwords as examples: only what is
        a secret beyond doubt counts there.
    needles: what it is -> text that may not occur (settings of the machine that built the image).
    """
    found = []
    for name in paths:
        path = Path(name)
        if path.is_symlink() or not path.is_file() or path.stat().st_size > _TEXT_LIMIT:
            continue
        data = path.read_bytes()
        if b"\0" in data[:4096]:
            continue
        patterns = _SECRETS if any(path.is_relative_to(root) for root in libraries) else {**_SECRETS, **_CONFIGURED}
        found += [{"path": name, "what": what} for what, pattern in patterns.items() if pattern.search(data)]
        found += [{"path": name, "what": what} for what, text in needles.items() if text.encode() in data]
    return found


def scan(base: str, own: list[str], libraries: list[str], needles: dict[str, str]) -> dict[str, Any]:
    """What the image adds to its base (`base`: file of the packed listing; "" when the base is not at hand)."""
    if not base:
        return {"added": None, "secrets": [], "startup": {}}
    added = added_files(Path(base), own)
    startup = {
        path: Path(path).read_text(errors="replace")[:2000]
        for path in added
        if path.endswith((".pth", "/sitecustomize.py", "/usercustomize.py")) and Path(path).is_file()
    }
    return {"added": added, "secrets": search(added, libraries, needles), "startup": startup}
