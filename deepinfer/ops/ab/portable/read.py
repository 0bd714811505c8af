"""Reading a dump, which may be damaged or hostile."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import types
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from .values import (
    FILE,
    FORMAT,
    HEADER,
    VERSION,
    DumpError,
    Make,
    Value,
    as_list,
    as_tensor,
    as_texts,
    decoded,
    require,
    whole,
)

_LARGEST_HEADER, _LARGEST_STORAGE, _LARGEST_ALL = 64 << 20, 512 << 20, 8 << 30


@dataclasses.dataclass(frozen=True)
class Recorded:
    """One call of a dump. error: why it did not run, '' if it did."""

    factory: str
    case: str
    error: str
    parameters: Any
    named: Any
    storages: Any
    arguments: Any


class Reader:
    """A dump. `side`: who ran it. `sources`: family -> digest of its cases. `calls`: (factory, case) -> the call.

    Raises DumpError for whatever is wrong, here or when a call is read; OSError if the file cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / FILE
        if not path.is_file():
            raise DumpError(f"{folder} holds no dump: there is no file {FILE} in it")
        with _told(path):
            self._archive = zipfile.ZipFile(path)
            sizes = [one.file_size for one in self._archive.infolist()]
            require(sum(sizes) <= _LARGEST_ALL, "it is too large unpacked")
            header = json.loads(self._bytes(HEADER, _LARGEST_HEADER))
            require(isinstance(header, dict) and header.get("format") == FORMAT, "it is not one of this project's")
            found = header.get("version")
            require(
                type(found) is int and found == VERSION,
                f"its version is {found!r}, and {VERSION} is what can be read here",
            )
            self.side: dict[str, str] = as_texts(header.get("side"))
            self.sources: dict[str, str] = as_texts(header.get("sources"))
            self.calls: dict[tuple[str, str], Recorded] = {}
            for row in as_list(header.get("calls")):
                require(isinstance(row, dict), "a call is not an object")
                call = Recorded(**{field.name: row.get(field.name) for field in dataclasses.fields(Recorded)})
                require(all(isinstance(text, str) for text in (call.factory, call.case, call.error)), "bad names")
                require((call.factory, call.case) not in self.calls, f"{call.factory} {call.case} occurs twice")
                self.calls[call.factory, call.case] = call
        self._path = path

    def close(self) -> None:
        """Close the file."""
        self._archive.close()

    def constants(self, call: Recorded, make: Make | None = None) -> tuple[list[Any], dict[str, Any]]:
        """Compile-time parameters and named ones. make(class name, fields): what stands for a dataclass."""
        with _told(self._path):
            require(isinstance(call.named, dict), "named parameters are no object")
            make = make or (lambda _, fields: types.SimpleNamespace(**fields))
            named = {name: decoded(one, make) for name, one in call.named.items()}
            return [decoded(one, make) for one in as_list(call.parameters)], named

    def arguments(self, call: Recorded, when: str, device: torch.device | str = "cpu") -> list[Value]:
        """The run-time arguments "before" or "after" the call, in tensors of their own on a device."""
        with _told(self._path):
            storages = [self._storage(row, when).to(device) for row in as_list(call.storages)]
            found = []
            for row in as_list(call.arguments):
                require(isinstance(row, dict) and isinstance(row.get("name"), str), "an argument has no name")
                require(isinstance(row.get("output"), bool), f"argument {row['name']!r} lacks whether it is written")
                value = row.get("value")
                if isinstance(value, dict) and "tensor" in value:
                    given: Any = as_tensor(value, storages)
                else:
                    given = decoded(value, lambda _, fields: types.SimpleNamespace(**fields))
                found.append(Value(row["name"], row["output"], given))
            return found

    def _storage(self, row: Any, when: str) -> torch.Tensor:
        require(isinstance(row, dict), "a storage is not an object")
        size, digest = whole(row.get("bytes"), _LARGEST_STORAGE), row.get(when)
        require(isinstance(digest, str) and len(digest) == 64 and digest.isalnum(), "a storage has no sha256")
        data = self._bytes(f"blob/{digest}", size)
        require(len(data) == size, f"a storage has {len(data)} bytes, not {size}")
        require(hashlib.sha256(data).hexdigest() == digest, "a storage's bytes are not those of its sha256")
        # torch's own memory is aligned as the kernels expect it.
        return torch.frombuffer(bytearray(data), dtype=torch.uint8).clone() if size else torch.empty(0).byte()

    def _bytes(self, name: str, largest: int) -> bytes:
        info = self._archive.getinfo(name)
        require(info.file_size <= largest, f"{name} is larger than it should be")
        require(info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED), f"{name} is packed in another way")
        with self._archive.open(info) as file:
            return file.read(largest + 1)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Whatever a damaged or hostile file provokes becomes a DumpError that names the file."""
    try:
        yield
    except DumpError as problem:
        raise DumpError(f"{path} is no dump that can be used: {problem}") from problem
    except KeyError as problem:
        raise DumpError(f"{path} is no dump that can be used: it lacks {problem}") from problem
    except RecursionError as problem:
        raise DumpError(f"{path} is no dump that can be used: its header is nested too deeply") from problem
    # NotImplementedError and RuntimeError are zipfile's, for an archive with another compression than a dump's, and for
    # an encrypted one.
    except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError, RuntimeError, zlib.error) as problem:
        raise DumpError(f"{path} is no dump that can be used: {problem}") from problem
