"""How builds end: codes, the lines that tell of it, and which components a pattern means for a target."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

import pytest

from build.errors import EnvironmentCannot, NothingSelected
from build.gates.result import GateResult
from build.matrix.load import load_matrix
from build.outcome import Outcome, Status, Stopwatch, describe, plan_target, selected_components, summary
from build.plan import Cell
from build.wheels.results import CellResult
from tests.image_stand_ins import base_facts

MATRIX = load_matrix()


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ("built", 0),
        ("unchanged", 0),
        ("components only", 0),
        ("component failed", 6),
        ("gate failed", 5),
    ],
)
def test_exit_codes(status: Status, code: int) -> None:
    assert Outcome("x", status).exit_code == code
    assert Outcome("x", status, error=EnvironmentCannot("no space")).exit_code == 4


def test_a_finished_image_is_told_with_gates_sizes_times_manifest_and_the_next_command() -> None:
    outcome = Outcome(
        "cpu",
        "built",
        "deepinfer:cpu",
        gates=(GateResult("imports", True, "all", 0.5),),
        sizes={"nccl": 361_000_000, "ours": 12_340_000},
        times={"base": 1.26, "gates": 20.0},
        manifest=Path("/m/manifest.md"),
    )
    text = describe(outcome)
    for part in ("imports", "nccl 361.0 MB, ours 12.3 MB", "base 1.3 s, gates 20.0 s", "manifest: /m/manifest.md"):
        assert part in text
    assert text.splitlines()[-1] == "  docker run --rm deepinfer:cpu env"


def test_the_next_command_of_a_prefix_can_be_typed_whatever_its_name() -> None:
    last = describe(Outcome("host", "built", "/a b/it's")).splitlines()[-1]
    assert shlex.split(last) == ["/a b/it's/bin/deepinfer", "env"]


def test_a_build_without_any_component_says_so() -> None:
    cells = [Cell("host", MATRIX.components[name], "unsupported") for name in ("_C", "deep_ep")]
    nothing = tuple(CellResult(cell, "unsupported") for cell in cells)
    first = describe(Outcome("host", "built", "/p", nothing)).splitlines()[0]
    assert first == "host: built without any component (_C, deep_ep: unsupported, see above): /p"
    some = (nothing[0], CellResult(cells[1], "cached"))
    assert describe(Outcome("host", "built", "/p", some)).startswith("host: built: /p")


def test_failures_say_where_to_look() -> None:
    assert "keeps its name" in describe(Outcome("cpu", "gate failed", "deepinfer:0.1.0-cpu-x"))
    assert "a rerun compiles only what is missing" in describe(Outcome("cpu", "component failed"))


def test_the_table_has_a_line_a_target_and_failed_component() -> None:
    component = MATRIX.components["deep_ep"]
    cells = (
        CellResult(Cell("a", component, "build"), "failed", reason="no nccl.h", log=Path("/l/a.log")),
        CellResult(Cell("a", MATRIX.components["_C"], "build"), "built"),
    )
    rows = summary(
        [
            Outcome("a", "component failed", cells=cells, times={"base": 1, "compile": 2}),
            Outcome("b", "unchanged", "d:b"),
        ],
        not_begun=["c"],
    ).splitlines()
    assert [row.split()[0] for row in rows] == ["a", "a/deep_ep:", "b", "c"]
    assert "3.0 s" in rows[0] and rows[1].strip() == "a/deep_ep: no nccl.h (log: /l/a.log)"
    assert "not begun" in rows[3]


def test_as_json_an_image_has_its_name_id_gates_and_seconds_and_a_failure_the_parts_of_an_error() -> None:
    gates = (GateResult("imports", True, "all", 0.5), GateResult("elf", False, "no libx", 0.1))
    times = {"base": 1.26, "gates": 20.0}
    built = Outcome("cpu", "built", "deepinfer:cpu", gates=gates[:1], times=times, image_id="sha256:1").to_json()
    assert built == {
        "image": "cpu", "status": "built", "tag": "deepinfer:cpu", "image_id": "sha256:1", "seconds": 21.26,
        "times": times, "gates": [gates[0].to_json()],
    }  # fmt: skip
    failed = Outcome("cpu", "gate failed", "deepinfer:0.1.0-cpu-x", gates=gates, image_id="sha256:2").to_json()
    assert (failed["error"], failed["exit_code"]) == ("gates failed: elf", 5)
    assert failed["tag"] == "deepinfer:0.1.0-cpu-x" and len(failed["gates"]) == 2
    cells = (
        CellResult(Cell("a", MATRIX.components["deep_ep"], "build", "f" * 64), "failed", 2.0, reason="no nccl.h",
                   log=Path("/l/a.log")),
        CellResult(Cell("a", MATRIX.components["_C"], "cached", "e" * 64), "cached"),
    )  # fmt: skip
    lost = Outcome("a", "component failed", cells=cells).to_json()
    assert (lost["error"], lost["log"], lost["exit_code"]) == ("a/deep_ep: no nccl.h", "/l/a.log", 6)
    assert lost["cells"][0]["log"] == "/l/a.log" and lost["cells"][1] == {
        "cell": "a/_C", "version": MATRIX.components["_C"].version, "status": "cached", "key": "e" * 64, "seconds": 0,
    }  # fmt: skip
    prefix = Outcome("host", "built", "/opt/p", cells=cells[1:]).to_json()
    assert prefix["folder"] == "/opt/p" and "tag" not in prefix and "error" not in prefix


def test_components_of_a_pattern_are_those_that_the_target_has_in_its_order() -> None:
    cpu, host = MATRIX.targets["cpu"], MATRIX.targets["host"]
    assert selected_components(MATRIX, cpu, "*") == list(cpu.components)
    assert selected_components(MATRIX, cpu, "nccl,deep_*") == ["deep_gemm", "deep_ep"]
    assert selected_components(MATRIX, host, "deep_ep,nccl") == ["nccl", "deep_ep"]
    with pytest.raises(NothingSelected, match="cpu has no component nccl") as nothing:
        selected_components(MATRIX, cpu, "nccl")
    assert "_C" in nothing.value.next_step
    with pytest.raises(NothingSelected, match="did you mean 'deep_gemm'"):
        selected_components(MATRIX, cpu, "_C,deepgemm")


def test_planning_makes_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "cache"))
    plan = plan_target(MATRIX, MATRIX.targets["flagtree"], "*", "replica", base_facts(glibc="2.41"))
    assert plan.complete and plan.image_key and {cell.status for cell in plan.cells} <= {"build", "unsupported"}
    assert not (tmp_path / "cache").exists()


def test_a_step_that_fails_is_timed_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    watch = Stopwatch()
    with pytest.raises(ValueError), watch.step("compile", "cpu: components"):
        time.sleep(0.02)
        raise ValueError
    assert watch.times["compile"] >= 0.02
    assert capsys.readouterr() == ("", "== cpu: components\n")
