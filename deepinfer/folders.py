"""Whether a path that somebody gave leads somewhere; a name that cannot be one (too long, a null byte) does not."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def is_folder(path: Path) -> bool:
    """As Path.is_dir, which raises OSError for a name of thousands of letters."""
    return os.path.isdir(path)  # noqa: PTH112


def is_there(path: Path) -> bool:
    """As Path.exists, without its errors."""
    return os.path.exists(path)  # noqa: PTH110


def is_plain_file(path: Path) -> bool:
    """Whether it is, perhaps through links, a file whose end comes: no pipe, device or folder."""
    return os.path.isfile(path)  # noqa: PTH113


def read(path: Path) -> bytes:
    """The bytes of a file.

    Raises:
        OSError: it cannot be read, or is no file: a pipe would be waited for, and a device may have no end.
    """
    if is_there(path) and not is_plain_file(path):
        raise OSError(errno.EINVAL, "it is no file", str(path))
    return path.read_bytes()


def is_text(path: Path) -> bool:
    """Whether its bytes are UTF-8: the libraries that read checkpoints open no other files."""
    try:
        os.fsencode(path).decode()
    except UnicodeError:
        return False
    return True
