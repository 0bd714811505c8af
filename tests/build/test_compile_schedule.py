"""Several compiles at once: sharing processors and memory, failing together or apart, meeting at one key."""

import hashlib
import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from build import cache
from build.errors import CellFailed, EnvironmentCannot
from build.matrix.model import Component, Source
from build.plan import Cell
from build.wheels.cell import Stop, Stopped
from build.wheels.results import CellResult, results_table
from build.wheels.schedule import OVERHEAD_GIB, Capacity, Schedule
from build.wheels.wheelhouse import Wheelhouse


def cell(name: str, memory_gib: float = 1.0) -> Cell:
    component = Component(name, name.title(), "wheel", "1.0", Source(path="."), memory_gib=memory_gib)
    return Cell("cpu", component, "build", hashlib.sha256(name.encode()).hexdigest())


@dataclass
class Sleeper:
    """A process that takes its time, killed as a compile would be."""

    seconds: float
    raw: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.raw = subprocess.Popen(["sleep", str(self.seconds)])

    def kill(self) -> None:
        if self.raw is not None:
            self.raw.kill()

    def __hash__(self) -> int:
        return id(self)


@dataclass
class SleepShop:
    """A place to compile where a compile is a sleeping process; it keeps account of what went on at once."""

    seconds: float = 0.05
    failing: tuple[str, ...] = ()
    slow: tuple[str, ...] = ()
    builder: str = "sleep"
    stop: Stop = field(default_factory=Stop)
    order: list[str] = field(default_factory=list)
    processes: list[Sleeper] = field(default_factory=list)
    memory: float = 0.0
    peak: float = 0.0
    meeting: threading.Barrier | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def compile(
        self, cell: Cell, source: Path, scratch: Path, log: Path, *, jobs: int, memory_gib: float
    ) -> tuple[Path, dict[str, Any]]:
        name = cell.component.name
        with self.lock:
            self.order.append(name)
            self.memory += memory_gib
            self.peak = max(self.peak, self.memory)
        if self.meeting is not None:
            self.meeting.wait(120)  # for another compile at the same time
        process = Sleeper(60.0 if name in self.slow else self.seconds)
        self.stop.start(process)
        self.processes.append(process)
        try:
            assert process.raw is not None
            process.raw.wait()
        finally:
            self.stop.ended(process)
            with self.lock:
                self.memory -= memory_gib
        if self.stop.asked.is_set():
            raise Stopped
        if name in self.failing:
            raise CellFailed(f"cpu/{name} did not compile", cause="x.cpp:1:1: error: no", next_step="read", log=log)
        artefact = scratch / f"{name}-1.0-py3-none-any.whl"
        artefact.write_bytes(name.encode())
        return artefact, {"seconds": self.seconds, "modules": [], "tools": {}}


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "cache"))


def run(
    shop: SleepShop, cells: list[Cell], capacity: Capacity | None = None, keep_going: bool = False
) -> dict[str, CellResult]:
    house = Wheelhouse(cache.root() / "wheelhouse")
    sources = {one.name: Path() for one in cells}
    return Schedule(shop, house, sources, capacity or Capacity(2, 1, 20.0), keep_going).run(cells)


@pytest.mark.parametrize(
    ("cells", "processes", "workers", "jobs"), [(3, 2, 2, 1), (1, 2, 1, 2), (2, 16, 2, 8), (3, 1, 1, 1), (4, 6, 4, 1)]
)
def test_processors_are_divided_among_cells(cells: int, processes: int, workers: int, jobs: int) -> None:
    assert Capacity.share(cells, processes, 20.0) == Capacity(workers, jobs, 20.0)


def test_a_cell_gets_fewer_processes_where_memory_is_short() -> None:
    assert Capacity(1, 4, 100.0).of_cell(cell("a", 3.0)) == (4, 12.0 + OVERHEAD_GIB)
    assert Capacity(1, 4, 7.0).of_cell(cell("a", 3.0)) == (2, 6.0 + OVERHEAD_GIB)
    assert Capacity(1, 4, 2.0).of_cell(cell("a", 3.0)) == (1, 2.0), "tried alone even where the estimate is too high"


def test_the_hungriest_begins_and_all_are_kept() -> None:
    shop = SleepShop()
    cells = [cell("small", 1.0), cell("large", 3.0), cell("middle", 2.0)]
    results = run(shop, cells, Capacity(1, 1, 20.0))
    assert shop.order == ["large", "middle", "small"]
    assert {result.status for result in results.values()} == {"built"}
    for one in cells:
        artefact = results[one.name].artefact
        assert artefact is not None and artefact.read_text() == one.component.name
    assert list(cache.folder("work").iterdir()) == []


def test_memory_is_never_promised_twice() -> None:
    shop = SleepShop(meeting=threading.Barrier(2))
    cells = [cell(name, 3.0) for name in "abcd"]
    run(shop, cells, Capacity(4, 1, 8.0))
    assert len(shop.order) == 4
    assert shop.peak == 2 * (3.0 + OVERHEAD_GIB)


def test_a_failure_ends_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    shop = SleepShop(failing=("bad",), slow=("slow",))
    results = run(shop, [cell("slow", 3.0), cell("bad", 2.0), cell("later", 1.0)])
    assert {name: result.status for name, result in results.items()} == dict.fromkeys(results, "failed")
    assert results["cpu/bad"].reason == "x.cpp:1:1: error: no"
    for name in ("cpu/slow", "cpu/later"):
        assert results[name].reason == "not compiled: cpu/bad failed (--keep-going goes on)"
    assert "later" not in shop.order
    told = capsys.readouterr().err
    assert "x.cpp:1:1: error: no" in told and "next step: read" in told and "cpu-bad.log" in told


def test_keep_going_compiles_the_others() -> None:
    shop = SleepShop(failing=("bad",))
    results = run(shop, [cell("bad", 3.0), cell("good"), cell("fine")], keep_going=True)
    assert {name: result.status for name, result in results.items()} == {
        "cpu/bad": "failed", "cpu/good": "built", "cpu/fine": "built",
    }  # fmt: skip
    again = run(SleepShop(), [cell("bad", 3.0), cell("good"), cell("fine")])
    assert {name: result.status for name, result in again.items()} == {
        "cpu/bad": "built", "cpu/good": "cached", "cpu/fine": "cached",
    }  # fmt: skip


def test_two_builds_of_one_key_compile_it_once() -> None:
    shops = [SleepShop(seconds=0.5), SleepShop(seconds=0.5)]
    found: list[str] = []

    def build(shop: SleepShop) -> None:
        found.append(run(shop, [cell("same")])["cpu/same"].status)

    threads = [threading.Thread(target=build, args=(shop,)) for shop in shops]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == ["built", "cached"]
    assert len(shops[0].order + shops[1].order) == 1


def test_trouble_of_the_machine_ends_all_and_is_raised() -> None:
    class Full(SleepShop):
        def compile(self, cell: Cell, *args: Any, **options: Any) -> tuple[Path, dict[str, Any]]:
            if cell.component.name == "first":
                raise OSError(28, "No space left on device")
            return super().compile(cell, *args, **options)

    shop = Full(slow=("slow",))
    with pytest.raises(EnvironmentCannot, match="no space is left under"):
        run(shop, [cell("first", 3.0), cell("slow", 2.0)])
    assert [process.raw.returncode for process in shop.processes if process.raw is not None] in ([-9], [])
    assert list(cache.folder("work").iterdir()) == []


def test_a_scratch_folder_left_by_a_kill_does_not_get_in_the_way() -> None:
    one = cell("one")
    left = cache.folder("work") / one.key[:12]
    (left / "source").mkdir(parents=True)
    assert run(SleepShop(), [one])["cpu/one"].status == "built"
    assert not left.exists()


def test_the_table_tells_what_and_why(tmp_path: Path) -> None:
    wheel = tmp_path / "a-1.0.whl"
    wheel.write_bytes(b"x" * 1_500_000)
    table = results_table([
        CellResult(cell("a"), "built", 12.34, wheel),
        CellResult(cell("b"), "unsupported", reason="needs gcc >= 13, the base has 12.2.0"),
    ]).splitlines()  # fmt: skip
    assert len({line.index("file or reason") for line in table[:1]}) == 1
    assert table[1].split() == ["cpu/a", "built", "12.3", "1.5", "a-1.0.whl"]
    assert table[2].endswith("needs gcc >= 13, the base has 12.2.0")
