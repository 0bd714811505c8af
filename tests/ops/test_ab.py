"""The A/B harness as its users call it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from deepinfer.command_line import exit_code
from deepinfer.errors import DeepInferError, UsageError
from deepinfer.ops.ab.__main__ import main
from deepinfer.ops.ab.compare import Skips, compare
from deepinfer.ops.ab.selection import digests, factories, selected
from deepinfer.ops.ab.sides import Here
from deepinfer.ops.case import Argument, Call, Case
from deepinfer.ops.names import FAMILY_OF
from deepinfer.ops.reference import gather as reference

ROOT = Path(__file__).resolve().parents[2]
Run = Callable[..., subprocess.CompletedProcess[str]]
GATHER = """
def gather_tl(D, dtype, index_dtype, x_stride, threads=256):
    def run(x, index, y):
        for row, picked in enumerate(index.tolist()):
            y[row] = x[picked] if 0 <= picked < len(x) else 0
    return run
"""


def _ab(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "deepinfer.ops.ab", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def _interpreted(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    return _ab(*arguments, "--device", "cpu", TRITON_INTERPRET="1", **variables)


def _in_process(*arguments: object) -> int:
    """The same without a process of its own; the reference stands in for what is examined, unless it is named."""
    return exit_code(lambda: main(["gather", "--device", "cpu", "--got", "reference", *map(str, arguments)]))


def _other(folder: Path, source: str = GATHER) -> Path:
    """Another package that is called deepinfer, as upstream's is."""
    (folder / "deepinfer").mkdir(parents=True)
    (folder / "deepinfer" / "__init__.py").write_text("__version__ = '9.9'\n")
    (folder / "deepinfer" / "ops.py").write_text(source)
    return folder


# ---- names


def test_names_are_families_kernels_and_globs() -> None:
    assert factories([]) == list(FAMILY_OF)
    assert factories(["swa_index", "gather_tl"]) == ["gather_tl", "expand_swa_index_tl"]
    assert factories(["state_*"]) == ["select_state_slice_tl", "load_state_to_cache_tl"]
    assert set(factories(["gather*"])) == {"gather_tl", "gather_engram_tokens_zos_tl", "gather_input_ids_zos_tl"}
    assert {case.factory for case in selected(["gather_tl"])} == {"gather_tl"}


def test_an_unknown_name_is_refused_with_near_ones() -> None:
    with pytest.raises(UsageError, match="no family and no kernel is called 'gahter'") as caught:
        factories(["gather", "gahter"])
    assert "gather" in caught.value.next_step and caught.value.exit_code == 1
    with pytest.raises(UsageError) as caught:
        factories(["zzz*"])
    assert "swa_index" in caught.value.next_step


def test_digests_of_families_are_their_own(tmp_path: Path) -> None:
    found = digests(selected(["gather", "swa_index"]))
    assert set(found) == {"gather", "swa_index"} and found["gather"] != found["swa_index"]


# ---- comparing


def test_the_interpreter_agrees_and_what_was_left_out_is_told() -> None:
    done = _interpreted("gather")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "AB_OK: 16 cases of 1 kernels agree"
    assert "skipped 4: large: for a GPU only" in done.stdout and "gather_tl/odd-i32 ... ok" in done.stderr


def test_json_is_alone_on_stdout() -> None:
    done = _interpreted("gather", "--json")
    told = json.loads(done.stdout)
    assert told["ok"] is True and len(told["rows"]) == 20
    assert told["expected"]["backend"] == "reference" and told["got"]["triton"].endswith("interpreted")
    assert {"torch", "device", "commit", "deepinfer", "source"} <= set(told["got"])


def test_a_variable_that_asks_for_a_fallback_does_not_fool_it(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    done = _interpreted("gather", DEEPINFER_OPS_FALLBACK="gather_tl", DEEPINFER_TRACE_KERNELS=str(trace))
    assert done.returncode == 0 and "interpreted" in done.stdout and "reference backend" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ([], 1, "both sides are reference"),
        (["--got", "tilelang"], 1, "there is no backend 'tilelang'"),
        (["--device", "tpu"], 1, "invalid choice"),
        (["--frobnicate"], 1, "has no option '--frobnicate'"),
        (["--comapre", "d"], 1, "did you mean '--compare'?"),
        (["--skip", "gather_tl"], 1, "lists no reason"),
        (["--skip", "=why"], 1, "lists no reason"),
        (["--timeout", "soon"], 1, "not a number of seconds"),
        (["--backend", "deepinfer.ops"], 1, "--backend and --path go together"),
        (["--backend", "deepinfer.ops", "--path", "/nowhere"], 1, "--path /nowhere is no folder"),
        (["--dump", "a", "--compare", "b"], 1, "exclude each other"),
        (["--compare", "/nowhere"], 1, "/nowhere holds no dump"),
        (["--dump", "/dev/null/x"], 1, "cannot be written"),
        (["--got", "triton"], 1, "set TRITON_INTERPRET=1"),
    ],
)
def test_mistakes_are_told_in_words(
    arguments: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert _in_process(*arguments) == code
    told = capsys.readouterr()
    assert told.err.startswith("error: ") and text in told.err and told.out == ""


def test_a_mistake_has_no_traceback() -> None:
    done = _ab("gahter")
    assert done.returncode == 1 and done.stderr.startswith("error: no family") and done.stdout == ""


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_it_is_the_environment_that_cannot() -> None:
    done = _ab("gather")
    assert done.returncode == 4 and "PyTorch sees no GPU" in done.stderr and "TRITON_INTERPRET=1" in done.stderr


def test_help_needs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "AB_OK" in capsys.readouterr().out


class _Side:
    """A side whose kernel adds `amount`."""

    def __init__(self, amount: float) -> None:
        self.versions = {"backend": f"adds {amount}"}
        self._amount = amount

    def outcome(self, case: Case, call: Call) -> object:
        from deepinfer.ops.execution import execute

        def body(x: torch.Tensor) -> None:
            if self._amount != self._amount:
                raise RuntimeError("the device is lost")
            x.add_(self._amount)

        return execute(lambda: body, call, "cpu")


def _case(name: str = "one", *, large: bool = False) -> Case:
    return Case("gather_tl", name, lambda _: Call([Argument("x", torch.zeros(4), output=True)]), large=large)


def _rows(expected: float, got: float, skips: Skips | None = None, *cases: Case) -> list[tuple[str, ...]]:
    sides = [_Side(amount) for amount in (expected, got)]
    return [row.problems for row in compare(cases or [_case()], *sides, skips)]  # type: ignore[arg-type]


def test_what_differs_is_found_case_by_case() -> None:
    assert _rows(1.0, 1.0) == [()]
    ((problem,),) = _rows(1.0, 2.0)
    assert problem.startswith("x: largest error 1.000e+00, 4 of 4 values wrong")


def test_a_side_that_raises_is_a_finding_and_the_others_go_on() -> None:
    nan = float("nan")
    assert _rows(1.0, nan, None, _case(), _case("two")) == [("RuntimeError: the device is lost",)] * 2
    assert _rows(nan, 1.0) == [("expected side: RuntimeError: the device is lost",)]


def test_a_case_that_cannot_be_built_is_a_finding() -> None:
    def make(generator: torch.Generator) -> Call:
        raise ZeroDivisionError("no rows")

    assert _rows(1.0, 1.0, None, Case("gather_tl", "bad", make)) == [("the case itself: ZeroDivisionError: no rows",)]


def test_a_skip_needs_to_be_listed() -> None:
    skips = Skips("too large", [("gather_tl/o*", "no reason of ours")])
    cases = [_case(), _case("two"), _case("three", large=True)]
    rows = list(compare(cases, _Side(1.0), _Side(2.0), skips))  # type: ignore[arg-type]
    assert [row.skipped for row in rows] == ["no reason of ours", "", "too large"]
    assert [row.ok for row in rows] == [True, False, True]


def test_a_backend_that_hands_out_another_s_factory_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from deepinfer.ops.triton import gather

    monkeypatch.setattr(gather, "gather_tl", reference.gather_tl)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    (row, *_) = compare(selected(["gather"]), Here("reference", "cpu"), Here("triton", "cpu"))
    assert "gather_tl of the triton backend" in row.problems[0]


# ---- another package's kernels


def test_another_package_of_our_name_is_compared_in_a_process_of_its_own(tmp_path: Path) -> None:
    done = _interpreted("gather", "--backend", "deepinfer.ops", "--path", _other(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "expected: module deepinfer.ops" in done.stdout and "AB_OK: 16 cases" in done.stdout


def test_what_it_makes_of_the_cases_can_be_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump = tmp_path / "dump"
    theirs = ("--backend", "deepinfer.ops", "--path", _other(tmp_path / "other"))
    assert _in_process(*theirs, "--dump", dump) == 0
    assert _in_process("--compare", dump) == 0
    told = capsys.readouterr().out
    assert "expected: module deepinfer.ops" in told and "AB_OK: 16 cases" in told
    assert _in_process(*theirs, "--compare", dump) == 1
    assert "both sides are module deepinfer.ops" in capsys.readouterr().err


@pytest.mark.gpu
def test_triton_agrees_on_this_gpu_and_its_dump_with_the_reference(tmp_path: Path) -> None:
    done = _ab("gather")
    assert done.returncode == 0 and "AB_OK: 20 cases of 1 kernels agree" in done.stdout, done.stderr
    assert _ab("gather", "--dump", tmp_path).returncode == 0
    done = _ab("gather", "--got", "reference", "--compare", tmp_path)
    assert done.returncode == 0 and "AB_OK: 16 cases of 1 kernels agree" in done.stdout, done.stderr


def test_what_it_gets_wrong_is_in_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = GATHER.replace("0 <= picked < len(x)", "picked < len(x)")
    assert _in_process("--backend", "deepinfer.ops", "--path", _other(tmp_path, wrong)) == 1
    told = capsys.readouterr().out
    assert "gather_tl/odd-i32-outside" in told and "AB_DIFFERS: 6 of 16 cases" in told


def test_a_kernel_that_raises_there_is_a_case_that_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _in_process("--backend", "deepinfer.ops", "--path", _other(tmp_path, "gather_tl = None")) == 1
    assert "expected side: TypeError" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("module", "source", "text"),
    [
        ("deepinfer.ops.nothing", GATHER, "deepinfer.ops.nothing cannot be imported: ModuleNotFoundError"),
        ("deepinfer.ops", "raise OSError('libtvm.so is missing')", "OSError: libtvm.so is missing"),
        (
            "deepinfer.ops",
            GATHER.replace("        for", "        import os; os.abort()\n        for"),
            "by SIGABRT, in gather_tl",
        ),
        ("deepinfer.ops", "import os; os._exit(9)", "ended with exit code 9, in no case"),
    ],
)
def test_a_module_that_cannot_be_used_is_told(
    tmp_path: Path, module: str, source: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _in_process("--backend", module, "--path", _other(tmp_path, source)) == 4
    told = capsys.readouterr().err
    assert text in told and "error: " in told


def test_a_module_that_hangs_is_ended_and_its_case_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, plain = tmp_path / "hangs", subprocess.Popen.wait
    source = f"import time\ndef gather_tl(*_, **__):\n    open({str(hangs)!r}, 'w').close()\n    time.sleep(600)\n"

    def wait(self: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        deadline = time.monotonic() + 300
        while timeout is not None and not hangs.exists() and self.poll() is None:
            assert time.monotonic() < deadline  # its time begins when it hangs
            time.sleep(0.02)
        return plain(self, None if timeout is None else 0.1)

    monkeypatch.setattr(subprocess.Popen, "wait", wait)
    assert _in_process("--backend", "deepinfer.ops", "--path", _other(tmp_path, source), "--timeout", 15) == 4
    assert "gave no answer within 15 s, in gather_tl odd-i32" in capsys.readouterr().err


def test_our_own_package_is_not_taken_for_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert _in_process("--backend", "deepinfer.ops", "--path", ROOT) == 4
    assert "comes from this project's own package" in capsys.readouterr().err


def test_here_refuses_what_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(UsageError, match="there is no backend"):
        Here("cuda", "cpu")
    with pytest.raises(UsageError, match="interpreter only"):
        Here("triton", "cpu")
    if not torch.cuda.is_available():
        with pytest.raises(DeepInferError, match="sees no GPU"):
            Here("reference", "cuda")
