"""Writing a dump."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from .values import FILE, FORMAT, HEADER, VERSION, Value, encoded, storage_key


class Writer:
    """Adds calls to a file that nobody sees before `written` has ended well."""

    def __init__(self, archive: zipfile.ZipFile, side: Mapping[str, str], sources: Mapping[str, str]) -> None:
        self._archive = archive
        self._blobs: set[str] = set()
        self._header = {"format": FORMAT, "version": VERSION, "side": dict(side), "sources": dict(sources)}
        self._calls: list[dict[str, Any]] = []

    def add(
        self,
        factory: str,
        case: str,
        parameters: Any,
        named: Any,
        before: Sequence[Value],
        after: Sequence[Value] = (),
        error: str = "",
    ) -> None:
        """Add one call.

        parameters, named: as they stand in a header, see `constants`.
        after: the same arguments as the kernel left them, on any device; none if it did not run.
        """
        storages: dict[int, int] = {}
        bytes_before, bytes_after = _storages(before, storages), _storages(after or before, {})
        rows = [
            {"bytes": len(was), "before": self._blob(was), "after": self._blob(now)}
            for was, now in zip(bytes_before, bytes_after, strict=True)
        ]
        arguments = [{"name": one.name, "output": one.output, "value": encoded(one.value, storages)} for one in before]
        self._calls.append({
            "factory": factory, "case": case, "error": error,
            "parameters": parameters,
            "named": named,
            "storages": rows, "arguments": arguments,
        })  # fmt: skip

    def _blob(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        if digest not in self._blobs:
            self._blobs.add(digest)
            self._archive.writestr(f"blob/{digest}", data)
        return digest

    def close(self) -> None:
        """Write the header, which comes last."""
        self._archive.writestr(HEADER, json.dumps({**self._header, "calls": self._calls}, separators=(",", ":")))


@contextmanager
def written(folder: Path, side: Mapping[str, str], sources: Mapping[str, str]) -> Iterator[Writer]:
    """A writer of FOLDER/calls.zip. The file appears whole, and only if the block ends well. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".part-", dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
                writer = Writer(archive, side, sources)
                yield writer
                writer.close()
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(folder / FILE)
    finally:
        Path(name).unlink(missing_ok=True)


def constants(parameters: Sequence[Any], named: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Compile-time parameters as they stand in a header. Raises TypeError for what cannot travel."""
    return [encoded(one) for one in parameters], {name: encoded(one) for name, one in named.items()}


def _storages(values: Sequence[Value], indices: dict[int, int]) -> list[bytes]:
    """The bytes of every storage, in the order of their first use; fills `indices`: `_key` -> place in the list."""
    found: list[bytes] = []
    for one in values:
        if isinstance(one.value, torch.Tensor) and storage_key(one.value) not in indices:
            indices[storage_key(one.value)] = len(found)
            storage = one.value.untyped_storage()
            whole = torch.empty(0, dtype=torch.uint8, device=one.value.device)
            here = whole.set_(storage, 0, (storage.nbytes(),)).cpu()  # type: ignore[call-overload]
            found.append(ctypes.string_at(here.data_ptr(), storage.nbytes()) if storage.nbytes() else b"")
    return found
