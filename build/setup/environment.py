"""The project's environment `.venv`: made, filled from the locks, recorded, and made anew when it cannot be trusted.

The record `.venv/.deepinfer.json` says which sets are in it (by the hash of their lock) and for which Python. While
something is installed it says `busy`; an environment whose record still says so was interrupted and is made anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from build import cache
from build.setup import system
from build.setup.lockfile import normalised, read_pins


@dataclass(frozen=True)
class Record:
    """What `.venv` holds: the Python it was made for, key by set, and whether an install is under way."""

    python: str = ""
    sets: dict[str, str] = field(default_factory=dict)
    busy: bool = False


class Environment:
    """`.venv` of a repository."""

    def __init__(self, repository: Path) -> None:
        self.repository = repository
        self.folder = repository / ".venv"
        self.python = self.folder / "bin" / "python"
        self._record = self.folder / ".deepinfer.json"

    @property
    def site(self) -> Path:
        """Where packages lie, for the Python that runs this."""
        return self.folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"

    def record(self) -> Record | None:
        """What was recorded, None without a record; one that cannot be read counts as interrupted."""
        try:
            return Record(**json.loads(self._record.read_text()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, RecursionError):
            return Record(busy=True)

    def key(self, name: str) -> str:
        """What a set is made of, as a hash."""
        digest = hashlib.sha256()
        for path in self._sources(name):
            digest.update(f"{path.relative_to(self.repository)}\n".encode() + path.read_bytes())
        return digest.hexdigest()

    def _sources(self, name: str) -> list[Path]:
        if name != "engine":
            return [self.lock(name)]
        files = [self.repository / name for name in ("pyproject.toml", "setup.py", "setup.cfg")]
        files += sorted((self.repository / "deepinfer" / "csrc").rglob("*"))
        return [path for path in files if path.is_file()]

    def lock(self, name: str) -> Path:
        """The file that pins a set."""
        return self.repository / "locks" / f"{name}.lock"

    def wanted(self, sets: Sequence[str]) -> list[str]:
        """`sets`, and test-cuda after test where the torch that is there is a CUDA build."""
        names: list[str] = []
        for name in sets:
            names.append(name)
            if name == "test" and (self.site / "torch" / "lib" / "libtorch_cuda.so").exists():
                names.append("test-cuda")
        return names

    def distrusted(self) -> str:
        """Why what is there has to be made anew; empty when it can stay (or nothing is there)."""
        record = self.record()
        if not os.path.lexists(self.folder):
            return ""
        if record is not None and record.busy:
            return "an install into it was interrupted"
        if not self.site.is_dir() or not os.access(self.python, os.X_OK):
            return "its Python is gone or is another version"
        if record is not None and record.python != platform.python_version():
            return f"it was made for Python {record.python}, and this is {platform.python_version()}"
        changed = [name for name, key in (record.sets if record else {}).items() if key != self.key(name)]
        changed = [name for name in changed if name != "engine"]  # installed over itself, see `missing`
        return f"{', '.join(f'locks/{name}.lock' for name in changed)} changed" if changed else ""

    def missing(self, sets: Sequence[str]) -> list[str]:
        """Those of `sets` that a trusted environment does not hold."""
        if not os.path.lexists(self.folder) or self.distrusted():
            return list(sets)
        record = self.record()
        if record is None:  # made by hand, with the commands that --no-setup prints
            return [name for name in self.wanted(sets) if not self._holds(name)]
        return [name for name in self.wanted(sets) if name not in record.sets or record.sets[name] != self.key(name)]

    def _holds(self, name: str) -> bool:
        """Whether packages installed by hand are those of the lock. An installer writes INSTALLER at the end."""
        held: dict[str, str] = {}
        for proof in self.site.glob("*.dist-info/INSTALLER"):
            distribution, _, version = proof.parent.name.removesuffix(".dist-info").rpartition("-")
            held[normalised(distribution)] = version.partition("+")[0]
        if name == "engine":
            return "deepinfer-hopper" in held
        return all(held.get(pin.name) == pin.version for pin in read_pins(self.lock(name)).values())

    def write_record(self, *, add: str = "", busy: bool = False, anew: bool = False) -> None:
        """Record that an install starts (`busy`) or that the set `add` is in; `anew` forgets what was there."""
        known = self.record()
        sets = dict(known.sets) if known is not None and not anew else {}
        if add:
            sets[add] = self.key(add)
        cache.atomic_write(self._record, json.dumps(asdict(Record(platform.python_version(), sets, busy)), indent=1))

    def being_set_up(self) -> bool:
        """Whether another start is at it: what it has written of its install so far is no interrupted one."""
        number = os.open(self.repository, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # a file system without such locks on folders
            pass
        finally:
            os.close(number)
        return False

    def use(self) -> bool:
        """Keep others from removing it as long as this process runs, whatever program it becomes; False where it is
        not there any more, or another start is filling it.
        """
        try:
            number = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return False
        with contextlib.suppress(OSError):  # a file system without such locks
            fcntl.flock(number, fcntl.LOCK_SH)
        with contextlib.suppress(FileNotFoundError):
            record = self.record()
            whole = record is None or not record.busy
            if whole and os.path.samestat(os.fstat(number), self.folder.stat()):
                os.set_inheritable(number, True)
                return True
        os.close(number)
        return False

    @contextlib.contextmanager
    def unused(self) -> Iterator[bool]:
        """Whether no program uses it; none begins to in the block."""
        number = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            free = True
            try:
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                free = False
            except OSError:  # a file system without such locks on folders
                pass
            yield free
        finally:
            os.close(number)

    @contextlib.contextmanager
    def locked(self) -> Iterator[int]:
        """Keep another start out. Gives the lock's file number: an installer that inherits it keeps the lock alive.

        The lock is on the repository's folder itself, so that it needs no file, and a killed start leaves none.
        """
        number = os.open(self.repository, os.O_RDONLY | os.O_DIRECTORY)
        try:
            try:
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                system.say(f"another start is setting up {self.folder}; waiting for it")
                fcntl.flock(number, fcntl.LOCK_EX)
            yield number
        finally:
            os.close(number)
