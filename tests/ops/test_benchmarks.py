"""`python -m benchmarks.ops`: what can be known of it without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.ops import column, dry, plan, results, run, timing
from benchmarks.ops.__main__ import main
from benchmarks.ops.entries import entries
from benchmarks.ops.entry import Entry, Inputs, Work, footprint, reads, work, writes
from benchmarks.ops.kernels import obtain
from benchmarks.ops.plan import Column, Order
from deepinfer.errors import DeepInferError, UsageError
from deepinfer.ops.names import FAMILIES

ROOT = Path(__file__).resolve().parents[2]
OF_UPSTREAM = [name for names in FAMILIES.values() for name in names]
ENTRIES = entries(OF_UPSTREAM)
KEYS = {"device", "driver", "torch", "triton", "ptxas", "commit", "copy_bytes_per_second", "columns", "rows", "bars"}


def test_every_factory_has_entries() -> None:
    assert {one.factory for one in ENTRIES} == set(OF_UPSTREAM)
    assert all({1, 8} <= set(one.rows) for one in ENTRIES)
    with pytest.raises(ValueError, match="no entry measures nothing_tl"):
        entries(["nothing_tl"])


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda one: one.key)
def test_dry_run(entry: Entry) -> None:
    """The kernels accept the call, on the reference backend, and it writes its outputs."""
    assert [problem for _, problem in dry.check([entry])] == ["", ""]


def test_dry_run_finds_what_is_wrong() -> None:
    """A call that writes nothing, one that moves more than there is, one that cannot be built."""

    def gathered(count: int, moved: int | None) -> Work:
        y = torch.ones(count, 8, dtype=torch.bfloat16)
        arguments = reads(x=torch.ones(4, 8).bfloat16(), index=torch.zeros(count, dtype=torch.int32)) + writes(y=y)
        return work(arguments, (8, torch.bfloat16, torch.int32, 8), moved=moved)

    def unable(rows: int, inputs: Inputs) -> Work:
        raise TypeError("no such thing")

    makes = (lambda *_: gathered(2, None), lambda *_: work([], ()), unable)
    found = [next(dry.check([Entry("gather_tl", "x", make)]))[1] for make in makes]
    assert found[0] == "the call changed no output"
    assert found[1].startswith("TypeError") and found[2] == "TypeError: no such thing"
    [_, too_much] = [problem for _, problem in dry.check([Entry("gather_tl", "x", lambda *_: _changed())])]
    assert too_much == "1000000000 bytes to move, of buffers of 100 bytes"


def _changed() -> Work:
    x, y = torch.ones(4, 8).bfloat16(), torch.zeros(2, 8, dtype=torch.bfloat16)
    arguments = reads(x=x, index=torch.tensor([1], dtype=torch.int32)) + writes(y=y[:1])
    return work(arguments, (8, torch.bfloat16, torch.int32, 8), moved=10**9)


def test_moved_bytes_by_hand() -> None:
    by_key = {one.key: one for one in ENTRIES}

    def moved(key: str, rows: int) -> int:
        return by_key[key].make(rows, Inputs("cpu")).moved

    assert moved("gather_tl/embedding", 3) == 3 * (2 * 10240 + 4)
    assert moved("norm_tl/hidden", 2) == 2 * 2 * 10240 + 10240
    assert moved("compress_and_update_state_prefill_tl/ratio-2", 200) == 200 * 4096 + 136 * 4096 + 100 * 1024
    assert moved("compress_and_update_state_prefill_tl/ratio-1", 200) == 200 * 2048 + 136 * (2048 + 4096) + 200 * 1024
    assert moved("expand_swa_index_tl/prefill", 5) == 5 * (16 + 512)
    assert moved("random_sampling_tl/full", 2) == 2 * 129280 * 4
    assert moved("store_kv_cache_tl/swa", 4) == 4 * (1024 + 4 + 528)
    assert moved("load_paged_kv_cache_tl/fp8", 130) == 130 * (1024 + 528) + 2 * 16


class Scripted:
    """A clock on which every call takes what the test says."""

    def __init__(self, per_call: float, graphs: bool) -> None:
        self.per_call, self.graphs, self.calls, self.replays = per_call, graphs, 0, 0

    def call(self) -> None:
        self.calls += 1

    def seconds(self, batch: timing.Batch) -> float:
        before = self.calls
        batch()
        return (self.calls - before) * self.per_call

    def captured(self, batch: timing.Batch) -> timing.Batch:
        if not self.graphs:
            raise timing.CannotCapture("no")
        before = self.calls
        batch()
        self.replays = self.calls - before
        return batch


@pytest.mark.parametrize(
    ("per_call", "graphs", "how"), [(5e-6, True, "graph"), (5e-6, False, "stream"), (5e-3, True, "stream")]
)
def test_measure(per_call: float, graphs: bool, how: str) -> None:
    clock = Scripted(per_call, graphs)
    found = timing.measure(clock, [clock.call] * 8, 0.5, budget=0.02)
    assert found.seconds == pytest.approx(per_call) and found.best == pytest.approx(per_call)
    assert found.how == how and found.first_seconds == 0.5
    assert timing.LEAST_SAMPLES <= found.samples <= timing.MOST_SAMPLES
    if how == "graph":
        assert clock.replays == 200, "a batch takes a millisecond: whole rounds over the buffers"


def test_a_graph_that_is_slower_is_not_used() -> None:
    """As one of large copies is."""

    class Slower(Scripted):
        def captured(self, batch: timing.Batch) -> timing.Batch:
            graph = super().captured(batch)
            return lambda: (graph(), graph())

    clock = Slower(1e-4, True)
    found = timing.measure(clock, [clock.call] * 4, 0.5, budget=0.02)
    assert found.how == "stream" and found.seconds == pytest.approx(1e-4)


def test_slow_call_is_measured_once() -> None:
    clock = Scripted(2.0, True)
    found = timing.measure(clock, [clock.call] * 3, 2.0)
    assert (found.how, found.samples, found.seconds, clock.calls) == ("once", 1, 2.0, 1)


@pytest.mark.parametrize(
    ("moved", "footprint", "expected"),
    [
        (10**6, 10**6, 100),
        (10**3, 10**3, timing.MOST_COPIES),
        (10**9, 10**9, 2),
        (10**6, 10**9, 5),
        (10**9, 10**11, 1),
    ],
)
def test_copies_exceed_the_cache(moved: int, footprint: int, expected: int) -> None:
    assert timing.copies(moved, footprint, 50 * 10**6, 5 * 10**9) == min(expected, timing.MOST_COPIES)


def test_most_telling_rows_come_first() -> None:
    two = [Entry("gather_tl", name, lambda *_: None, (1, 256, 16384)) for name in "ab"]  # type: ignore[arg-type,return-value]
    found = [(entry.name, rows) for entry, rows in plan.workloads(two, (), "triton")]
    assert found == [("a", 256), ("b", 256), ("a", 16384), ("b", 16384), ("a", 1), ("b", 1)]
    assert [rows for _, rows in plan.workloads(two, (), "compiled")] == [256, 256, 16384, 16384]
    assert [rows for _, rows in plan.workloads(two, (1, 7), "triton")] == [1, 1]


def order(tmp_path: Path, **changed: object) -> Order:
    fields = {"column": Column("reference", "reference"), "factories": ["expand_swa_index_tl", "gather_tl"],
              "rows": (1, 8), "device": "cpu", "file": str(tmp_path / "r.jsonl"), "cache": ""}  # fmt: skip
    return Order(**{**fields, **changed})  # type: ignore[arg-type]


def test_column_on_a_cpu(tmp_path: Path) -> None:
    one = order(tmp_path, done=["gather_tl/embedding@8"])
    assert Order.from_json(one.to_json()) == Order(**{**vars(one), "factories": [*one.factories], "rows": [*one.rows]})
    column.main(one)
    lines = results.read(Path(one.file))
    assert [line["kind"] for line in lines] == ["facts", "copy", *["begun", "row"] * 3, "end"]
    assert all(line["problem"] == "" and line["seconds"] > 0 for line in lines if line["kind"] == "row")
    assert lines[-1] == {"column": "reference", "kind": "end", "reached": 3, "planned": 3}
    found = results.document(lines, ENTRIES, [])
    [head] = found["columns"]
    assert head["copy_bytes_per_second"] > 0 and head["not_reached"] == 0 and head["implementation"] == "reference"
    for row in found["rows"]:
        assert row["bytes_per_second"] == pytest.approx(row["moved_bytes"] / row["seconds"])
        assert row["fraction"] == pytest.approx(row["bytes_per_second"] / head["copy_bytes_per_second"])


def test_column_tells_what_failed_and_what_was_not_reached(tmp_path: Path) -> None:
    failed = order(tmp_path, column=Column("triton", "triton"), factories=["gather_tl"], rows=(1,))
    column.main(failed)  # a compiled kernel on a CPU
    rows = [line for line in results.read(Path(failed.file)) if line["kind"] == "row"]
    assert len(rows) == 1 and rows[0]["problem"]
    late = order(tmp_path, column=Column("reference", "reference", seconds=0.0), file=str(tmp_path / "late.jsonl"))
    column.main(late)
    lines = results.read(Path(late.file))
    assert lines[-1] == {"column": "reference", "kind": "end", "reached": 0, "planned": 4}
    assert results.document(lines, ENTRIES, [])["columns"][0]["not_reached"] == 4


def test_cut_off_lines_and_crashes(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text(
        '{"kind": "begun", "key": "a@1"}\n{"kind": "row", "key": "a@1"}\n{"kind": "begun", "key": "b@1"}\n{"ki'
    )
    lines = results.read(file)
    assert len(lines) == 3 and results.unfinished(lines) == "b@1" and results.unfinished(lines[:2]) == ""
    assert results.read(tmp_path / "none") == []


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package called as ours, with a module for each kernel, as upstream's is; one cannot be imported."""
    kernels = tmp_path / "deepinfer" / "kernels"
    kernels.mkdir(parents=True)
    for folder in (kernels, kernels.parent):
        (folder / "__init__.py").write_text("")
    (kernels / "broken.py").write_text("import no_such_package")
    (kernels / "gather.py").write_text("def gather_tl(*parameters):\n    return lambda x, index, y: y.fill_(7)\n")
    (kernels / "store.py").write_text(
        "class KVCacheFormat:\n    def __init__(self, **fields): self.fields = fields\n"
        "def store_kv_cache_tl(layout, block_size, *strides):\n    assert layout.fields['quantized_elements'] == 512\n"
        "    return lambda *arguments: None\n"
    )
    return tmp_path


def test_upstream_in_a_process_of_its_own(tmp_path: Path, package: Path) -> None:
    one = Order(Column("upstream", "upstream", str(package), "deepinfer.kernels"),
                ["gather_tl", "store_kv_cache_tl", "norm_tl"], (1,), "cpu", str(tmp_path / "u.jsonl"), "")  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.ops.column", one.to_json()],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(package)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = {line["key"]: line["problem"] for line in results.read(Path(one.file)) if line["kind"] == "row"}
    assert rows["gather_tl/embedding@1"] == rows["store_kv_cache_tl/swa@1"] == ""
    told = rows["norm_tl/hidden@1"]
    assert "deepinfer.kernels has no norm_tl; broken: ModuleNotFoundError" in told


def test_run_goes_on_behind_a_crash(tmp_path: Path, package: Path) -> None:
    """The kernel ends its process; the workload is named, and the ones behind it are measured in another."""
    (package / "deepinfer" / "kernels" / "crash.py").write_text(
        "import os\ndef expand_swa_index_tl(*parameters):\n    return lambda *arguments: os._exit(9)\n"
    )
    column = Column("upstream", "upstream", str(package), "deepinfer.kernels", seconds=60.0)
    wanted = order(tmp_path, factories=["gather_tl", "expand_swa_index_tl", "store_kv_cache_tl"], rows=(1,))
    said: list[str] = []
    found = run.run([column], wanted, tmp_path / "out", said.append)
    problems = {row["factory"]: row["problem"] for row in found["rows"]}
    assert problems == {"gather_tl": "", "expand_swa_index_tl": "ended with exit code 9", "store_kv_cache_tl": ""}
    assert said[-1] == "upstream: 2 of 3 workloads" and found["columns"][0]["problem"] == ""


def test_module_that_cannot_be_imported_is_told(tmp_path: Path, package: Path) -> None:
    column = Column("upstream", "upstream", str(package), "deepinfer.kernels.broken", seconds=60.0)
    found = run.run([column], order(tmp_path, factories=["gather_tl"], rows=(1,)), tmp_path / "out", print)
    assert found["rows"] == [] and "No module named 'no_such_package'" in found["columns"][0]["problem"]


def test_a_call_that_is_not_accepted_exits_5(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "benchmarks.ops.dry.check", lambda _: [("gather_tl/embedding@1", "ValueError: no"), ("b@1", "")]
    )
    assert main(["--dry-run", "gather"]) == 5
    assert capsys.readouterr().out == "1 of 2 calls accepted\n"


def test_a_dry_run_needs_no_triton() -> None:
    hidden = "import sys; sys.modules['triton'] = None; from benchmarks.ops.__main__ import main; "
    done = subprocess.run(
        [sys.executable, "-c", hidden + "sys.exit(main(['--dry-run', 'swa_index']))"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "2 of 2 calls accepted\n"), done.stderr


def test_compiles_without_a_gpu() -> None:
    command = [sys.executable, "-m", "benchmarks.ops", "swa_index", "--compile", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["problems"] == [] and set(found["variants"]) == {"swa_index._expand_swa_index"}


def test_whole_run_on_a_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Triton fails without a GPU, the reference does not; what was measured is in the files."""
    words = ["swa_index", "--rows", "1", "--device", "cpu", "--columns", "reference", "--out", str(tmp_path), "--json"]
    assert main([*words, "--seconds", "60"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads((tmp_path / "results.json").read_text()) and set(found) >= KEYS
    assert [(one["column"], bool(one["problem"])) for one in found["rows"]] == [("triton", True), ("reference", False)]
    assert "expand_swa_index" in (tmp_path / "table.md").read_text()
    (tmp_path / "results.json").unlink()
    assert main(["--report", str(tmp_path)]) == 0 and "expand_swa_index" in capsys.readouterr().out
    assert {file.stem for file in tmp_path.iterdir()} == {"rows", "log", "results", "table", "fraction"}


@pytest.mark.parametrize(
    ("words", "error", "text"),
    [
        (["nothing"], UsageError, "no family and no kernel is called 'nothing'"),
        (["--rows", "0"], UsageError, "'0' is no whole number from 1 to 2147483647"),
        (["--rows", "2147483648"], UsageError, "'2147483648' is no whole number from 1 to 2147483647"),
        (["--seconds", "soon"], UsageError, "not a number of seconds"),
        (["--report", "/no/such"], UsageError, "/no/such has no rows.jsonl"),
        (["--device", "cpu", "--columns", "fast"], UsageError, "--columns has no 'fast'"),
        (["--device", "cpu", "--triton", "/no/such"], UsageError, "/no/such is no folder"),
        (["--device", "cpu", "--triton", "/proc"], UsageError, "there is no Triton in /proc"),
        (["--device", "cpu", "--upstream", "/no/such"], UsageError, "/no/such is no folder"),
        (["--device", "cpu", "--out", "/dev/null/out"], UsageError, "/dev/null/out cannot be made"),
    ],
)
def test_refused(words: list[str], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        main(words)


def test_no_gpu_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeepInferError, match="PyTorch sees no GPU"):
        main(["gather"])


@pytest.mark.gpu
def test_measures_on_a_gpu(tmp_path: Path) -> None:
    """In a process of its own: in this one, another test may have compiled the kernel, and its variants go untold."""
    wanted = order(tmp_path, factories=["gather_tl"], rows=(8, 16384), device="cuda")
    found = run.run([Column("triton", "triton", seconds=60.0)], wanted, tmp_path / "out", print)
    rows = {row["rows"]: row for row in found["rows"]}
    assert {number: row["problem"] for number, row in rows.items()} == {8: "", 16384: ""}
    assert rows[8]["how"] == "graph" and {one for row in rows.values() for one in row["variants"]}
    assert 0.2 < rows[16384]["fraction"] < 1.5


def test_buffers_are_counted_once() -> None:
    one = Inputs("cpu").normal(4, 8)
    assert footprint(work(reads(x=one, again=one[1:])).call) == 64
    assert obtain(Column("r", "reference"))("gather_tl", entries(["gather_tl"])[0].make(1, Inputs("cpu")).call)
