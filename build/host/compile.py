"""Compile cells on this machine itself: the recipes of the images, run by the interpreter whose torch they are for."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build import cache
from build.host_memory import host_memory
from build.inspection import Inspection
from build.plan import Cell
from build.wheels.cell import Stop, Stopped, lock_name, scratch_folders
from build.wheels.diagnose import check_linking, compile_failed
from build.wheels.fetch import fetch_source, told_space
from build.wheels.recipe import INSIDE, Places, make_recipe
from build.wheels.results import CellResult
from build.wheels.schedule import USABLE_MEMORY, Capacity, Schedule
from build.wheels.unpack import unpack_cell
from build.wheels.wheelhouse import Wheelhouse

GOODBYE = 20.0
"""Seconds that a killed run's compilers get to end."""
MASQUERADE = "/usr/lib/ccache"
"""Where Debian's ccache keeps links called like the compilers."""


class Process:
    """One compile as a process group of its own, so that its compilers end with it."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self.argv = list(argv)
        self.env = dict(env)
        self.log = log
        self.raw: subprocess.Popen[bytes] | None = None
        self.known = threading.Lock()

    def start(self) -> None:
        """Start it, its output appended to the log."""
        with self.log.open("ab") as out, self.known:
            self.raw = subprocess.Popen(
                self.argv, cwd="/", env=self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip

    def kill(self) -> None:
        """End it and its children."""
        with self.known:
            if self.raw is not None and self.raw.poll() is None:
                with contextlib.suppress(ProcessLookupError):  # who waits for it has just seen it end
                    os.killpg(self.raw.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Its exit status; 128+signal when it was killed."""
        assert self.raw is not None
        status = self.raw.wait()
        return status if status >= 0 else 128 - status


@dataclass(frozen=True)
class HostShop:
    """This machine as a place to compile.

    cuda_home: the tool kit, None without.  include: further header folders (elfutils from a pack).
    nccl: folder with NCCL's include and lib, where DeepEP looks; None without.
    """

    inspection: Inspection
    cuda_home: str | None
    include: tuple[str, ...]
    nccl: Path | None
    stop: Stop
    builder: str = "host"

    def compile(
        self, cell: Cell, source: Path, scratch: Path, log: Path, *, jobs: int, memory_gib: float
    ) -> tuple[Path, dict[str, Any]]:
        """Compile one cell below `scratch`; returns its artefact and the record of inside.py.

        Raises CellFailed, or Stopped.
        """
        tree = unpack_cell(cell, source, scratch / "src")
        recipe = make_recipe(cell.component, self._places(cell, tree, scratch), jobs=jobs)
        job = recipe.to_job()
        if self.nccl is not None:
            # The name that DeepEP reads second: the first one would be written into its wheel for good.
            job["env"] = {**job["env"], "NCCL_DIR": str(self.nccl)}
        job_file = scratch / "job.json"
        job_file.write_text(json.dumps(job))
        # TMPDIR for inside.py too: it is what the compile of a killed run is known by.
        env = {**os.environ, "TMPDIR": job["env"]["TMPDIR"]}
        process = Process([self.inspection.executable, str(INSIDE), str(job_file)], env, log)
        self.stop.start(process)
        try:
            status = process.wait()
        finally:
            self.stop.ended(process)
        if self.stop.asked.is_set():
            raise Stopped
        if status != 0:
            raise compile_failed(cell.component, cell.name, status, log, memory_gib=memory_gib, out_of_memory=False)
        record = json.loads((scratch / "result" / "result.json").read_text())
        check_linking(cell.name, record, log)
        return scratch / "result" / str(record["artefact"]), record

    def _places(self, cell: Cell, tree: Path, scratch: Path) -> Places:
        cached = Path(MASQUERADE, "g++").exists() and shutil.which("ccache") is not None
        beside = str(Path(self.inspection.executable).parent)
        path = [*([MASQUERADE] if cached else []), beside, *os.environ.get("PATH", os.defpath).split(":")]
        return Places(
            python=self.inspection.executable,
            source=str(tree),
            out=str(scratch / "out"),
            work=str(scratch / "work"),
            result=str(scratch / "result"),
            path=tuple(path),
            pythonpath=tuple(part for part in os.environ.get("PYTHONPATH", "").split(":") if part),
            cuda_home=self.cuda_home,
            libstdcxx=self.inspection.libstdcxx,
            ccache=str(cache.folder("ccache") / "host") if cached else None,
            include=self.include,
            shims=tuple(str(cache.REPOSITORY / shim) for shim in cell.component.shims),
        )


def host_capacity(cells: int, jobs: int | None) -> Capacity:
    """What this machine, or the container that this is, allows: processors that we may use, and memory."""
    return Capacity.share(cells, jobs or len(os.sched_getaffinity(0)), host_memory() / 2**30 * USABLE_MEMORY)


def compile_on_host(
    shop: HostShop, cells: Sequence[Cell], *, keep_going: bool, jobs: int | None, offline: Path | None
) -> list[CellResult]:
    """Make or find the artefact of every cell; overlays are the caller's and are not among them.

    Raises as `build.wheels.compile.compile_cells` does.
    """
    house = Wheelhouse(cache.root() / "wheelhouse")
    _sweep()
    results: dict[str, CellResult] = {}
    for cell in cells:
        found = house.find(cell.key) if cell.key else None
        if cell.status == "unsupported":
            results[cell.name] = CellResult(cell, "unsupported", reason=cell.reason)
        elif found is not None:
            results[cell.name] = CellResult(cell, "cached", artefact=found)
    missing = [cell for cell in cells if cell.name not in results]
    sources = {cell.name: fetch_source(cell.component, offline=offline) for cell in missing}
    if missing:
        schedule = Schedule(shop, house, sources, host_capacity(len(missing), jobs), keep_going)
        results |= schedule.run(missing)
    return [results[cell.name] for cell in cells]


def _sweep() -> None:
    """Remove what killed runs left: compilers that went on without them, and scratch folders."""
    for name in {*_orphans(), *(left.name for left in scratch_folders())}:
        with cache.held_at_once(lock_name(name)) as held, told_space(cache.root()):
            if not held:
                continue
            deadline = time.monotonic() + GOODBYE
            while (pids := _orphans().get(name)) and time.monotonic() < deadline:
                for pid in pids:  # again and again: ninja and g++ may start others meanwhile
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                time.sleep(0.02)
            shutil.rmtree(cache.folder("work") / name, ignore_errors=True)


def _orphans() -> dict[str, list[int]]:
    """Processes of compiles in this cache, by the name of their scratch folder: known by their TMPDIR."""
    mark = re.compile(rb"(?:^|\0)TMPDIR=" + re.escape(os.fsencode(cache.root() / "work")) + rb"/([0-9a-f]{12})/work\0")
    found: dict[str, list[int]] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            match = mark.search((process / "environ").read_bytes())
            if match is not None:
                found.setdefault(match[1].decode(), []).append(int(process.name))
    return found
