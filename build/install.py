"""Unpacking a wheel into a tree that will be somebody else's system: an image's overlay, a prefix."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO
from zipfile import BadZipFile

from installer import install
from installer.destinations import SchemeDictionaryDestination
from installer.exceptions import InstallerError
from installer.records import RecordEntry
from installer.sources import WheelFile
from installer.utils import Scheme

from build.errors import EnvironmentCannot


class _Destination(SchemeDictionaryDestination):
    """Installs below a destdir and leaves commands out, in RECORD too, where no folder for them is named."""

    commands = True

    def write_script(self, name: str, module: str, attr: str, section: Any) -> RecordEntry:
        if not self.commands:
            return RecordEntry(name, None, None)
        return super().write_script(name, module, attr, section)

    def write_file(
        self, scheme: Scheme, path: str | os.PathLike[str], stream: BinaryIO, is_executable: bool
    ) -> RecordEntry:
        if scheme == "scripts" and not self.commands:
            return RecordEntry(os.fspath(path), None, None)
        # As pip does: a command can be run whatever mode the archive gives it.
        return super().write_file(scheme, path, stream, is_executable or scheme == "scripts")

    def finalize_installation(
        self, scheme: Scheme, record_file_path: str, records: Iterable[tuple[Scheme, RecordEntry]]
    ) -> None:
        kept = [(where, record) for where, record in records if self.commands or where != "scripts"]
        super().finalize_installation(scheme, record_file_path, kept)


def install_wheel(
    wheel: Path, site: PurePosixPath, destdir: Path, *, scripts: PurePosixPath | None, python: str
) -> None:
    """Unpack a wheel below `destdir` as if it were installed at `site`. Files that are there are an error.

    Args:
        site: absolute folder for modules in the target system ("/opt/deepinfer/site").
        scripts: absolute folder for commands; None leaves the wheel's commands out.
        python: absolute path of the target's interpreter, for the commands' first line.

    Raises:
        EnvironmentCannot: the wheel is damaged or does not fit what lies there.
    """
    prefix = site.parent
    folders = {
        "purelib": str(site),
        "platlib": str(site),
        "headers": str(prefix / "include"),
        "scripts": str(scripts or prefix / "bin"),
        "data": str(prefix),
    }
    destination = _Destination(folders, interpreter=python, script_kind="posix", destdir=str(destdir))
    destination.commands = scripts is not None
    try:
        with WheelFile.open(wheel) as source:
            install(source, destination, additional_metadata={"INSTALLER": b"deepinfer-build\n"})
    except (InstallerError, BadZipFile, OSError, ValueError, KeyError) as problem:
        raise EnvironmentCannot(
            f"{wheel.name} cannot be installed into {destdir}: {problem}",
            cause="the wheel is damaged, or another wheel brought the same file",
            next_step="remove the wheel from the cache and run the command again",
        ) from problem
