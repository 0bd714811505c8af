"""A container of ours, made by `Engine.container`: files go in and out by archive, its program is followed or ended."""

from __future__ import annotations

import contextlib
import io
import tarfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docker.errors import APIError, NotFound


@dataclass(frozen=True)
class RunResult:
    """How a container's program ended: status (128+signal when killed) and what it printed."""

    returncode: int
    stdout: str
    stderr: str


class Container:
    """A created container of ours. Files go in and out by archive; `Engine.container` removes it in the end."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    def put(self, files: Mapping[str, bytes | Path], *, mode: int = 0o644) -> None:
        """Write files (absolute path in the container -> bytes, or a local file or folder), as root's."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for target, content in files.items():
                _add(archive, target.lstrip("/"), content, mode)
        self.raw.put_archive("/", buffer.getvalue())

    def put_tar(self, path: str, data: bytes) -> None:
        """Unpack a tar archive below `path` of the container."""
        self.raw.put_archive(path, data)

    def get(self, path: str) -> bytes:
        """The bytes of one file. Raises FileNotFoundError."""
        with tarfile.open(fileobj=io.BytesIO(self.get_tar(path))) as archive:
            for member in archive:
                if member.isfile():
                    handle = archive.extractfile(member)
                    assert handle is not None
                    return handle.read()
        raise FileNotFoundError(path)

    def get_tar(self, path: str) -> bytes:
        """A tar archive of a file or folder; its members start with the last part of `path`."""
        try:
            chunks, _ = self.raw.get_archive(path)
        except NotFound as missing:
            raise FileNotFoundError(path) from missing
        return b"".join(chunks)

    def start(self) -> None:
        """Start the container's program."""
        self.raw.start()

    def follow(self, log: Path) -> None:
        """Append what the program prints to `log` until it ends."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as out:
            for chunk in self.raw.logs(stream=True, follow=True):
                out.write(chunk)
                out.flush()

    def wait(self, timeout: float | None = None) -> int:
        """The program's exit status; killed (status 124) after `timeout` seconds."""
        late = threading.Event()

        def end() -> None:
            late.set()
            self.kill()

        killer = threading.Timer(timeout, end) if timeout is not None else None
        if killer is not None:
            killer.start()
        try:
            status = int(self.raw.wait()["StatusCode"])
        finally:
            if killer is not None:
                killer.cancel()
        return 124 if late.is_set() and status == 137 else status

    def output(self) -> tuple[str, str]:
        """Everything printed on stdout and stderr so far."""
        out = self.raw.logs(stdout=True, stderr=False)
        err = self.raw.logs(stdout=False, stderr=True)
        return out.decode(errors="replace"), err.decode(errors="replace")

    def kill(self) -> None:
        """End the program at once; nothing happens if it has ended already."""
        with contextlib.suppress(APIError):
            self.raw.kill()


def _add(archive: tarfile.TarFile, name: str, content: bytes | Path, mode: int) -> None:
    def own(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        return info

    if isinstance(content, Path):
        archive.add(content, arcname=name, filter=own)
        return
    info = own(tarfile.TarInfo(name))
    info.size = len(content)
    info.mode = mode
    archive.addfile(info, io.BytesIO(content))
