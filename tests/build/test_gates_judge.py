"""What the gates make of facts: the first cause is named once, what cannot apply says why, nothing is dropped."""

from __future__ import annotations

import pytest

from build.cache import REPOSITORY
from build.gates.catalogue import NAMES, as_markdown
from build.gates.judge.processes import judge_imports
from build.gates.judge.rows import Ending, Row, Verdicts
from build.gates.place import Place, absent, modules, replaced
from build.gates.result import as_text
from tests.build.gates_ground import PLACE, image_plan

SEGFAULT = 'Fatal Python error: Segmentation fault\n  File "<frozen importlib>", line 1\n  File "/x/y.py", line 7 in f'


def test_the_page_is_what_the_catalogue_says() -> None:
    page = REPOSITORY / "docs" / "gates.md"
    assert page.read_text() == as_markdown(), "python -m build.gates.catalogue > docs/gates.md"
    assert len(set(NAMES)) == len(NAMES)


def test_what_the_plan_puts_in_is_what_is_asked_of_it() -> None:
    plan = image_plan()
    assert modules(plan) == ("deepinfer", "deep_gemm")
    assert absent(plan) == {"deep_ep": "no NCCL"}
    assert replaced(plan) == {"nvidia-nccl-cu13": "2.32.3"}
    assert replaced(image_plan("host")) == {}
    prefix = Place("/p", "/pre", "/pre/site", "/pre/site/deepinfer", ("/pre/bin/deepinfer",))
    assert prefix.environment() == {"PYTHONPATH": "/pre/site"}
    assert PLACE.environment() == {}


def test_a_fault_is_counted_by_the_first_gate_that_names_it() -> None:
    verdicts = Verdicts()
    verdicts.add("symbols", [Row(False, "a.so: undefined f", "a"), Row(True, "b", "b")])
    verdicts.add("imports", [Row(False, "import a fails", "a"), Row(True, "b")])
    verdicts.add("ours", [Row(False, "a is missing", "a")])
    symbols, imports, ours = verdicts.results
    assert (symbols.state, imports.state, ours.state) == ("failed", "passed", "n/a")
    assert "a already fails symbols" in imports.detail
    assert ours.skipped_reason == "a already fails symbols"
    text = as_text(verdicts.results)
    assert "failed: symbols" in text
    assert "a.so: undefined f" in text


def test_nothing_is_told_twice() -> None:
    verdicts = Verdicts()
    verdicts.add("symbols", [Row(True, "deepinfer._C (246)"), Row(True, "deepinfer._C (246)")])
    judge_imports(verdicts, {"a": Ending(0)}, Ending(0), {"b": "needs gcc >= 13", "c": "needs gcc >= 13"})
    assert verdicts.results[0].detail == "deepinfer._C (246)"
    assert "b, c: unsupported" in verdicts.results[1].detail and "gcc" not in verdicts.results[1].detail


def test_a_long_list_of_faults_is_cut_and_counted() -> None:
    verdicts = Verdicts()
    verdicts.add("readable", [Row(False, f"file {number}") for number in range(40)])
    assert "file 11\nand 28 more\ncure: " in verdicts.results[0].detail


def test_a_file_name_that_is_no_text_can_be_shown() -> None:
    verdicts = Verdicts()
    verdicts.add("layers", [Row(False, "/x/odd\udcff.pem: a key")])
    assert "odd\\udcff.pem" in verdicts.results[0].detail


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        (Ending(-11, "SIGSEGV", stderr=SEGFAULT), "killed by SIGSEGV at /x/y.py:7"),
        (Ending(-9, "SIGKILL"), "killed by SIGKILL"),
        (Ending(-9, "SIGKILL", timed_out=True, seconds=120), "hung: no end after 120 s"),
        (Ending(1, stderr="Traceback\nImportError: no\n\n"), "status 1: ImportError: no"),
        (Ending(3), "status 3: it said nothing"),
    ],
)
def test_an_ending_says_why(ending: Ending, words: str) -> None:
    assert ending.problem() == words
