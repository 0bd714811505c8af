"""Triton's cache with a second, read-only folder below it, and a count of what was found and what was made.

Triton asks for a cache manager by name (TRITON_CACHE_MANAGER), which `import deepinfer` sets where there are warm
entries. Looking entries up where they lie, instead of copying them at the first start, needs nothing that can be
written, cannot race, leaves nothing stale behind in a volume that outlives the image, and costs one look at a folder.
"""

# Triton's classes are untyped.
# mypy: disable-error-code="misc,no-untyped-call,no-any-return"

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from triton import knobs
from triton.runtime.cache import FileCacheManager

from deepinfer.activation import activate

MODULE_SUFFIX = ".so"


class WarmCacheManager(FileCacheManager):
    """Triton's own manager, which also finds the entries of the warm folder.

    What the writable cache has comes first: there is something only if it was compiled anew on purpose
    (TRITON_ALWAYS_COMPILE), or because the warm entry could not be used. Where the warm folder has the entry, nothing
    is made in the writable one, which then need not be writable at all.
    """

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        warm = activate().warm
        self.warm: Path | None = warm / key if warm is not None and not (override or dump) else None
        if self.warm is None or not self.warm.is_dir():
            self.warm = None
            super().__init__(key, override=override, dump=dump)
            return
        self.key = key
        self.cache_dir = str(Path(knobs.cache.dir, key))
        self.lock_path = str(Path(self.cache_dir, "lock"))

    def get_file(self, filename: str) -> str | None:
        """The path of a file of this entry, None if neither folder has it."""
        own = super().get_file(filename)
        if own is not None or self.warm is None:
            return own
        held = self.warm / filename
        return str(held) if held.is_file() else None

    def get_group(self, filename: str) -> dict[str, str] | None:
        """The files of this entry by name; None unless all that belong to it are there."""
        own = super().get_group(filename)
        if own or self.warm is None:
            return own
        try:
            # Of the paths only the names count: the folder may lie elsewhere than where the entry was made.
            names = json.loads((self.warm / f"__grp__{filename}").read_text())["child_paths"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        held = {name: str(self.warm / name) for name in names}
        return held if all(Path(path).is_file() for path in held.values()) else None

    def put(self, data: Any, filename: str, binary: bool = True) -> str:
        """Write a file into the writable cache."""
        Path(self.cache_dir).mkdir(parents=True, exist_ok=True)
        return super().put(data, filename, binary=binary)


@dataclass
class Counts:
    """compiled: keys of what was made in this process.  found: keys of what a cache had."""

    compiled: set[str] = field(default_factory=set)
    found: set[str] = field(default_factory=set)

    def to_json(self) -> dict[str, int]:
        """How many there are of each; what was made here and then found counts as made."""
        return {"compiled": len(self.compiled), "found": len(self.found - self.compiled)}


@dataclass
class Record:
    """What this process asked Triton's cache for: kernels, and the C modules beside them. entries: key -> folder."""

    kernels: Counts = field(default_factory=Counts)
    modules: Counts = field(default_factory=Counts)
    entries: dict[str, str] = field(default_factory=dict)


def count() -> Record:
    """Count from now on what this process asks its cache for, whichever manager it has, into what is returned."""
    record = Record()
    manager: Any = knobs.cache.manager_class or FileCacheManager

    class Counting(manager):
        def __init__(self, key: str, **kind: bool) -> None:
            self._counted = key
            super().__init__(key, **kind)

        def get_file(self, filename: str) -> str | None:
            path = super().get_file(filename)
            if path is not None and filename.endswith(MODULE_SUFFIX):
                self._note(record.modules.found, path)
            return path

        def get_group(self, filename: str) -> dict[str, str] | None:
            group = super().get_group(filename)
            if group and not knobs.compilation.always_compile:
                self._note(record.kernels.found, next(iter(group.values())))
            return group

        def put(self, data: Any, filename: str, binary: bool = True) -> str:
            path = super().put(data, filename, binary=binary)
            if filename.endswith(MODULE_SUFFIX):
                self._note(record.modules.compiled, path)
            return path

        def put_group(self, filename: str, group: dict[str, str]) -> str:
            path = super().put_group(filename, group)
            self._note(record.kernels.compiled, path)
            return path

        def _note(self, keys: set[str], path: str) -> None:
            keys.add(self._counted)
            record.entries[self._counted] = str(Path(path).parent)

    knobs.cache.manager_class = Counting
    return record
