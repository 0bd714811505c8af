"""CUDA runtimes of another major version that a base keeps where the loader does not look.

The fault: on a CUDA 13 base Triton keeps a CUDA 12 runtime under ~/.triton of the root user, something asks for
libcudart.so.12, and `OSError: libcudart.so.12: cannot open shared object file` follows for everybody, since the folder
is on no search path and root's home is closed to others. An environment variable is no cure: a user who sets
LD_LIBRARY_PATH replaces it. So the library is copied to /opt/deepinfer/lib and that folder goes into the loader's
cache, where every process finds it. torch's own runtime has another soname and stays the only one of its kind.

The rules are here and pure; `examine` asks the base the questions that they need answered, and lay.py copies.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from build.containers import Engine
from build.errors import EnvironmentCannot
from build.image.parts import LIBRARIES
from build.inspection import Inspection, Library

SONAME = re.compile(r"libcudart\.so\.(\d+)")
_VERSION = re.compile(r"\d+(?:\.\d+){1,3}")

# Runs in the base as root, standard library only: what every candidate really is, and what the loader knows.
QUESTIONS = """
import json, os, platform, subprocess, sys
files = {}
for path in sys.argv[1:]:
    entry = {"real": os.path.realpath(path), "head": "", "size": 0}
    try:
        with open(path, "rb") as data:
            entry["head"] = data.read(20).hex()
            entry["size"] = os.fstat(data.fileno()).st_size
    except OSError as problem:
        entry["error"] = problem.strerror
    files[path] = entry
cache = None
for tool in ("/sbin/ldconfig", "/usr/sbin/ldconfig", "ldconfig"):
    try:
        done = subprocess.run([tool, "-p"], capture_output=True, text=True)
    except OSError:
        continue
    if done.returncode == 0:
        cache = done.stdout
        break
# On a line of its own: the base's start-up may print as well.
print("\\n" + json.dumps({"files": files, "cache": cache, "libc": platform.libc_ver()[0]}))
"""


@dataclass(frozen=True)
class Candidate:
    """A libcudart file of the base, as examined. error: why it cannot be read. head: its first 20 bytes."""

    path: str
    soname: str
    version: str | None
    real: str
    head: bytes
    size: int = 0
    error: str = ""

    @property
    def major(self) -> int:
        """The major version that its soname names; 0 if it names none."""
        match = SONAME.match(self.soname)
        return int(match[1]) if match else 0

    @property
    def order(self) -> tuple[tuple[int, ...], str]:
        """Newest last; of equal versions the one whose path sorts last, so that the choice never wavers."""
        text = self.version or _version_in(self.real) or _version_in(self.path) or "0"
        return tuple(int(number) for number in re.findall(r"\d+", text)), self.path


@dataclass(frozen=True)
class Copy:
    """One library to copy: `source` in the base, `target` in the image, and the soname that links to it."""

    source: str
    target: str
    soname: str
    version: str

    def facts(self) -> dict[str, str]:
        """For lay.py and image.json."""
        return {"source": self.source, "target": self.target, "soname": self.soname, "version": self.version}


@dataclass(frozen=True)
class LibraryPath:
    """What is to be done. copies: libraries to put into the loader's cache. notes: what was left alone, and why."""

    copies: tuple[Copy, ...] = ()
    notes: tuple[str, ...] = ()
    problem: str = ""


def needs_examination(inspection: Inspection) -> tuple[Library, ...]:
    """The libraries that may have to be copied: of another CUDA major version than torch's; none without CUDA."""
    own = _major(inspection.cuda)
    if own is None:
        return ()
    return tuple(library for library in inspection.cudart if _soname_major(library) not in (None, own))


def choose(candidates: Sequence[Candidate], known: Iterable[str], *, libc: str, has_ldconfig: bool) -> LibraryPath:
    """Decide which candidates to copy.

    Of every major version the newest readable x86-64 library is taken, for a CUDA runtime serves every program built
    for its major version or an older minor one. What the loader finds already (`known` sonames) is left alone.
    """
    notes: list[str] = []
    chosen: dict[int, Candidate] = {}
    known = set(known)
    for candidate in sorted(candidates, key=lambda one: one.order):
        reason = _unfit(candidate)
        if not reason and candidate.soname in known:
            reason = f"the loader finds a {candidate.soname} already"
        if reason:
            notes.append(f"{candidate.path}: {reason}")
            continue
        other = chosen.get(candidate.major)
        if other is not None and other.real != candidate.real:
            notes.append(f"{other.path}: {candidate.path} is taken, the newest of that major version")
        chosen[candidate.major] = candidate
    if not chosen:
        return LibraryPath(notes=tuple(notes))
    if libc != "glibc" or not has_ldconfig:
        what = "its C library is not glibc" if libc != "glibc" else "it has no ldconfig"
        sonames = ", ".join(candidate.soname for candidate in chosen.values())
        problem = f"{sonames} cannot be put on the base's library path: {what}, so there is no loader cache for it"
        return LibraryPath(notes=tuple(notes), problem=problem)
    return LibraryPath(tuple(_copy(candidate) for _, candidate in sorted(chosen.items())), tuple(notes))


def _unfit(candidate: Candidate) -> str:
    """Why a file is no library that a process here could load; empty if it is one."""
    if candidate.error:
        broken = candidate.real != candidate.path
        return f"a link to {candidate.real}, which is not there" if broken else f"cannot be read: {candidate.error}"
    head = candidate.head
    if head[:4] != b"\x7fELF":
        return "not an ELF file"
    is_shared = int.from_bytes(head[16:18], "little") == 3
    if head[4:6] != b"\x02\x01" or int.from_bytes(head[18:20], "little") != 0x3E or not is_shared:
        return "not a shared library for x86-64"
    if candidate.major == 0:
        return f"its soname {candidate.soname!r} names no version"
    return ""


def _copy(candidate: Candidate) -> Copy:
    version = candidate.version or _version_in(candidate.real) or _version_in(candidate.path) or ""
    name = candidate.soname
    if version and version.split(".")[0] == str(candidate.major):
        name = f"libcudart.so.{version}"
    return Copy(candidate.real, str(LIBRARIES / name), candidate.soname, version)


def _version_in(path: str) -> str | None:
    """The version that a path tells: of the file's own name, else of the nearest folder that tells one."""
    for part in reversed(PurePosixPath(path).parts):
        match = _VERSION.search(part.removeprefix("libcudart.so."))
        if match and not part.startswith("python"):
            return match[0]
    return None


def _major(version: str | None) -> int | None:
    match = re.match(r"\d+", version or "")
    return int(match[0]) if match else None


def _soname_major(library: Library) -> int | None:
    match = SONAME.match(library.soname) or SONAME.match(PurePosixPath(library.path).name)
    return int(match[1]) if match else None


def examine(engine: Engine, reference: str, inspection: Inspection) -> LibraryPath:
    """Ask the base about its candidates and decide. Starts a container only if there are candidates.

    Raises EnvironmentCannot if the base cannot answer.
    """
    libraries = needs_examination(inspection)
    if not libraries:
        return LibraryPath()
    argv = [inspection.executable, "-I", "-c", QUESTIONS, *(library.path for library in libraries)]
    done = engine.run(reference, argv, user="0", env={"LC_ALL": "C"}, owner=f"{reference}/library path")
    if done.returncode != 0:
        raise EnvironmentCannot(
            f"{reference} could not be asked for its CUDA runtimes: {done.stderr.strip()[-300:]}",
            next_step=f"try `docker run --rm --entrypoint {inspection.executable} {reference} --version`",
        )
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    candidates = [_candidate(library, answer["files"][library.path]) for library in libraries]
    cache: str | None = answer["cache"]
    return choose(
        candidates, sonames_in_cache(cache or ""), libc=answer["libc"] or "unknown", has_ldconfig=cache is not None
    )


def _candidate(library: Library, entry: Mapping[str, str | int]) -> Candidate:
    match = SONAME.match(library.soname) or SONAME.match(PurePosixPath(library.path).name)
    return Candidate(
        library.path,
        match[0] if match else library.soname,
        library.version,
        str(entry["real"]),
        bytes.fromhex(str(entry["head"])),
        int(entry["size"]),
        str(entry.get("error", "")),
    )


def sonames_in_cache(printed: str) -> set[str]:
    """The 64-bit sonames that `ldconfig -p` lists."""
    found = set()
    for line in printed.splitlines():
        name, arrow, _ = line.strip().partition(" => ")
        if arrow and "x86-64" in name:
            found.add(name.split(" ")[0])
    return found
