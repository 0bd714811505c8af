"""One cell compiled in one container: source in by archive, no network, product out, compiler cache carried along."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
import sys
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from docker.errors import DockerException

from build import cache
from build.container import Container
from build.containers import Engine
from build.errors import CellFailed, EnvironmentCannot
from build.inspection import Inspection
from build.plan import Cell
from build.wheels.builder import CUDA_HOME, MASQUERADE, SCRIPTS, SITE
from build.wheels.diagnose import check_linking, compile_failed
from build.wheels.recipe import INSIDE, Places, make_recipe
from build.wheels.unpack import unpack_cell

ROOT = "/build"
USUAL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TIMEOUT = 4 * 3600.0
OWNER = "cell:"
"""Begins the owner of a compile's container; its key follows. Of which cache it is, the engine's label says."""
_SCRATCH = re.compile(r"[0-9a-f]{12}")


class Stopped(Exception):
    """Somebody asked for an end: another cell failed, or Ctrl-C."""


class Startable(Protocol):
    """A compile that can be started once and killed: a container, or a process of the host."""

    def start(self) -> None: ...
    def kill(self) -> None: ...


@dataclass
class Stop:
    """A request to end, with the compiles that have to be killed for it."""

    asked: threading.Event = field(default_factory=threading.Event)
    running: set[Startable] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def now(self) -> None:
        """Kill what runs and let nothing start."""
        self.asked.set()
        with self.lock:
            for compile in self.running:
                compile.kill()

    def start(self, compile: Startable) -> None:
        """Start a compile unless an end was asked for."""
        with self.lock:
            if self.asked.is_set():
                raise Stopped
            self.running.add(compile)
            compile.start()

    def ended(self, compile: Startable) -> None:
        """The compile's program has ended."""
        with self.lock:
            self.running.discard(compile)


@dataclass(frozen=True)
class Workshop:
    """What all cells of one image share: compiles happen in containers of `builder`."""

    engine: Engine
    builder: str
    inspection: Inspection
    stop: Stop

    def compile(
        self, cell: Cell, source: Path, scratch: Path, log: Path, *, jobs: int, memory_gib: float
    ) -> tuple[Path, dict[str, Any]]:
        """See `compile_in_container`."""
        return compile_in_container(self, cell, source, scratch, log, jobs=jobs, memory_gib=memory_gib)


def lock_name(key: str) -> str:
    """The lock that a compile of this key holds."""
    return f"cell-{key[:12]}"


def sweep_abandoned(engine: Engine) -> None:
    """Remove the containers that killed runs left compiling: those whose lock nobody holds."""
    for owner in sorted(engine.owners(OWNER)):
        name = lock_name(owner.removeprefix(OWNER))
        with cache.held_at_once(name) as held:
            if held and engine.sweep(owner):
                print(f"removed a compile that an interrupted run had left ({name})", file=sys.stderr)
    for left in scratch_folders():
        with cache.held_at_once(lock_name(left.name)) as held:
            if held:
                shutil.rmtree(left, ignore_errors=True)


def scratch_folders() -> list[Path]:
    """The scratch folders of compiles. What else lies beside them, half an archive or a download, is not theirs."""
    return [path for path in cache.folder("work").iterdir() if _SCRATCH.fullmatch(path.name)]


@contextlib.contextmanager
def workplace(cell: Cell) -> Iterator[Path]:
    """An empty scratch folder for one compile, in the cache, so that it can be swept. The cell's lock is held."""
    scratch = cache.folder("work") / cell.key[:12]
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def compile_in_container(
    shop: Workshop, cell: Cell, source: Path, scratch: Path, log: Path, *, jobs: int, memory_gib: float
) -> tuple[Path, dict[str, Any]]:
    """Compile one cell; its artefact is left in `scratch`, an empty folder of ours.

    Args:
        source: as `fetch_source` gave it.
        jobs: compiler processes at once.  memory_gib: the container's limit.

    Returns the artefact and inside.py's record (modules with sizes and NEEDED, seconds, tools).
    Raises CellFailed, or Stopped.
    """
    tree = unpack_cell(cell, source, scratch / "source")
    files: dict[str, bytes | Path] = {f"{ROOT}/src": tree, f"{ROOT}/inside.py": INSIDE.read_bytes()}
    shims = []
    for number, shim in enumerate(cell.component.shims):
        shims.append(f"{ROOT}/shims/{number}-{Path(shim).name}")
        files[shims[-1]] = (cache.REPOSITORY / shim).read_bytes()
    recipe = make_recipe(cell.component, _places(shop.inspection, tuple(shims)), jobs=jobs)
    files[f"{ROOT}/job.json"] = json.dumps(recipe.to_job()).encode()
    argv = [shop.inspection.executable, f"{ROOT}/inside.py", f"{ROOT}/job.json"]
    owner = OWNER + cell.key[:12]
    try:
        with shop.engine.container(
            shop.builder,
            argv,
            user="0",
            env=_search_path(shop.inspection),
            workdir=ROOT,
            memory_gib=memory_gib,
            owner=owner,
        ) as container:
            container.put(files)
            _restore_ccache(cell, container)
            _run(shop, cell, container, log, memory_gib)
            result = _take(container, scratch)
            record = json.loads((result / "result.json").read_text())
            check_linking(cell.name, record, log)
            _save_ccache(cell, container)
    except DockerException as problem:
        if shop.stop.asked.is_set():  # what was killed answers no more
            raise Stopped from problem
        raise EnvironmentCannot(
            f"the Docker engine failed during the compile of {cell.name}",
            cause=str(problem)[:300],
            next_step="see whether it runs and has space (`docker info`, `docker system df`), then run again",
        ) from problem
    return result / str(record["artefact"]), record


def _search_path(inspection: Inspection) -> dict[str, str]:
    """The base's LD_LIBRARY_PATH without empty elements, which would mean the source's folder; {} where it has none."""
    given = inspection.environment.get("LD_LIBRARY_PATH", "")
    searched = ":".join(part for part in given.split(":") if part)
    return {"LD_LIBRARY_PATH": searched} if searched != given else {}


def _places(inspection: Inspection, shims: tuple[str, ...]) -> Places:
    path = inspection.environment.get("PATH") or USUAL_PATH
    further = inspection.environment.get("PYTHONPATH", "")
    return Places(
        python=inspection.executable,
        source=f"{ROOT}/src",
        out=f"{ROOT}/out",
        work=f"{ROOT}/work",
        result=f"{ROOT}/result",
        path=(MASQUERADE, str(SCRIPTS), *path.split(":")),
        pythonpath=(str(SITE), *(part for part in further.split(":") if part)),
        cuda_home=CUDA_HOME if inspection.cuda else None,
        libstdcxx=inspection.libstdcxx,
        ccache=f"{ROOT}/ccache",
        shims=shims,
    )


def _run(shop: Workshop, cell: Cell, container: Container, log: Path, memory_gib: float) -> None:
    shop.stop.start(container)
    try:
        container.follow(log)
        status = container.wait(TIMEOUT)
    finally:
        shop.stop.ended(container)
    if shop.stop.asked.is_set():
        raise Stopped
    if status != 0:
        container.raw.reload()
        killed = bool(container.raw.attrs["State"].get("OOMKilled"))
        raise compile_failed(
            cell.component, cell.name, status, log, memory_gib=memory_gib, out_of_memory=killed and status in (1, 137)
        )


def _take(container: Container, target: Path) -> Path:
    """Unpack the container's result folder into `target`: plain files only."""
    archive_path = target / ".part-result.tar"
    archive_path.write_bytes(container.get_tar(f"{ROOT}/result"))
    result = target / "result"
    result.mkdir()
    with tarfile.open(archive_path) as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isfile() else None
            if content is not None:
                place = result / Path(member.name).name
                with place.open("wb") as out:
                    shutil.copyfileobj(content, out)
                place.chmod(0o755 if member.mode & 0o100 else 0o644)
    archive_path.unlink()
    if not (result / "result.json").is_file():
        raise CellFailed("a compile ended well and left no record", next_step="run the command again")
    return result


# The compiler cache travels as one archive a component; it only saves time, so that trouble with it is no failure.


def ccache_archive(cell: Cell) -> Path:
    """Where a component's compiler cache is kept between compiles."""
    return cache.folder("ccache") / f"{cell.component.name}.tar"


def _restore_ccache(cell: Cell, container: Container) -> None:
    archive = ccache_archive(cell)
    try:
        data = archive.read_bytes()  # once: a build of another image may put another in its place
    except FileNotFoundError:
        return
    if tarfile.is_tarfile(io.BytesIO(data)):
        container.put_tar(ROOT, data)
    else:
        print(f"{archive} is damaged; compiling without it", file=sys.stderr)


def _save_ccache(cell: Cell, container: Container) -> None:
    try:
        cache.atomic_write(ccache_archive(cell), container.get_tar(f"{ROOT}/ccache"))
    except FileNotFoundError:
        return  # a base without ccache
    except OSError as problem:
        print(f"the compiler cache of {cell.name} was not kept: {problem.strerror}", file=sys.stderr)
