"""The plan as people and programs see it."""

import json
from typing import Any

from build.matrix.load import load_matrix
from build.matrix.show import as_json, as_table
from build.plan import TargetPlan, make_plan

MATRIX = load_matrix()


def expected(name: str, components: list[str] | None = None) -> TargetPlan:
    """A plan without an inspection."""
    target = MATRIX.targets[name]
    chosen = components or list(target.components)
    return make_plan(MATRIX, target, chosen, inspection=None, base_kind="replica", sources={}, cached=lambda key: False)


def printed(*plans: TargetPlan, width: int = 200) -> str:
    """The table as plain text."""
    return as_table(plans, width=width)


def test_the_table_says_what_and_why() -> None:
    text = printed(expected("flagtree"), expected("cpu"))
    assert "flagtree on its replica, torch 2.11.0+cu130, CUDA 13.0" in text
    assert "build (expected)" in text
    assert "unsupported (expected)" in text
    assert "needs gcc >= 13, the base has 12.2" in text
    assert "the library of nvidia-nccl-cu13 2.32.3, after every other install" in text
    assert "deep_gemm in /opt/deepinfer/site; needs nvcc and a host compiler at run time" in text
    assert "Left out" not in text


def test_the_table_says_what_a_selection_leaves_out() -> None:
    assert "Left out by the selection: _C, deep_gemm." in printed(expected("flagtree", ["deep_ep"]))


def test_a_narrow_terminal_loses_nothing() -> None:
    narrow = "".join(printed(expected("cpu"), width=80).split())
    for word in ("cpu/deep_gemm", "unsupported", "12.2"):
        assert word in narrow


def test_a_narrow_terminal_has_remarks_under_the_row_cut_between_words() -> None:
    for width in (40, 60, 80):
        lines = printed(expected("cpu"), width=width).splitlines()
        assert max(map(len, lines)) <= width
        row = next(number for number, line in enumerate(lines) if line.startswith("cpu/deep_gemm"))
        assert lines[row].split() == ["cpu/deep_gemm", "2.8.2", "unsupported"]
        assert lines[row + 1].startswith("    needs CUDA >= 12.9, the base has")


def test_square_brackets_are_not_markup() -> None:
    import dataclasses

    plan = expected("cpu")
    odd = dataclasses.replace(plan.cells[1], reason="[red]needs[/red] [/x]")
    text = printed(dataclasses.replace(plan, cells=(odd,)))
    assert "[red]needs[/red] [/x]" in text


def test_json_counts_and_survives() -> None:
    made: dict[str, Any] = as_json([expected("flagtree"), expected("cpu")])
    assert json.loads(json.dumps(made)) == made
    assert made["cells"] == {"cached": 0, "build": 5, "unsupported": 2}
    assert [plan["image"] for plan in made["plans"]] == ["flagtree", "cpu"]


def test_the_table_has_no_colours_in_a_pipe_and_fits() -> None:
    text = as_table([expected("flagtree")], width=100)
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 100
