"""The GPU stage: real child processes, with stand-ins for the libraries where the machine has no GPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from build.call import call
from build.gpu.shipping import as_text
from build.gpu.stage import StageResult, as_table, last_json, run_stage

STAND_INS = Path(__file__).with_name("gpu_stand_ins")
REPOSITORY = Path(__file__).resolve().parents[2]
CHECKS = ("element-wise add", "ptx target")


def _run(program: str, *arguments: str, fault: str = "", **extra: str) -> tuple[int, dict[str, Any], str]:
    """A program as it is shipped, as text, from `/`; (status, its verdict, its stderr)."""
    env = {**os.environ, "PYTHONPATH": f"{STAND_INS}:{REPOSITORY}", "STAND_IN_FAULT": fault, **extra}
    argv = [sys.executable, "-c", as_text(program), *arguments]
    done = subprocess.run(argv, env=env, cwd="/", capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stderr


def _deep_ep(ranks: int, fault: str = "", limit: int = 60, **extra: str) -> tuple[int, dict[str, Any], str]:
    sizes = ("--tokens", "16", "--hidden", "32", "--experts", "12", "--topk", "4")
    where = ("--device", "cpu", "--limit", str(limit), "--ranks", str(ranks))
    return _run("deep_ep_check", *sizes, *where, fault=fault, **extra)


@pytest.mark.parametrize("ranks", [1, 3])
def test_deep_ep_passes_with_a_right_library(ranks: int) -> None:
    status, verdict, stderr = _deep_ep(ranks, EP_DISABLE_GIN="0")
    assert (status, verdict["reason"]) == (0, ""), stderr
    figures = verdict["figures"]
    assert figures["ranks"] == ranks
    assert len(figures["received"]) == ranks
    assert figures["latency_us"] > 0
    assert figures["version"] == "stand-in"
    # The user's EP_DISABLE_GIN=0 was not looked at: there is no InfiniBand device here, so deepinfer turned GIN off.
    assert figures["gin"] == ("on" if Path("/sys/class/infiniband").is_dir() else "off")
    assert ("note" in figures) == (ranks == 1)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("row", "dispatch: 1 of"),
        ("lost", "dispatch: rows were received"),
        ("expert", "dispatch: the experts"),
        ("weight", "dispatch: the weights"),
        ("sum", "combine: 1 of 512 values differ"),
    ],
)
def test_deep_ep_finds_wrong_data_and_the_rank_that_has_it(fault: str, words: str) -> None:
    status, verdict, _ = _deep_ep(2, f"{fault}:1")
    assert status == 5
    assert verdict["ok"] is False
    assert f"rank 1: {words}" in re.sub(r"(?<=dispatch: )\d+ (?=rows)", "", verdict["reason"])


def test_deep_ep_names_the_rank_that_died_and_shows_the_logs() -> None:
    status, verdict, stderr = _deep_ep(2, "segfault:1")
    assert status == 5
    assert verdict["reason"].startswith("rank 1: killed by SIGSEGV without a result; rank 0: ")
    assert "--- rank 0" in stderr
    assert "--- rank 1" in stderr


def test_deep_ep_tells_what_the_library_said() -> None:
    status, verdict, stderr = _deep_ep(2, "raise:0")
    assert status == 5
    assert verdict["reason"].startswith("rank 0: RuntimeError: NCCL GIN is unavailable")
    assert "Traceback" in stderr


def test_deep_ep_ends_a_hang_at_its_limit() -> None:
    status, verdict, _ = _deep_ep(2, "hang:0", limit=5)
    assert status == 5
    assert "rank 0: stopped without a result: the time limit of 5 s is over" in verdict["reason"]


def test_deep_ep_refuses_experts_that_cannot_be_shared() -> None:
    argv = [sys.executable, "-c", as_text("deep_ep_check"), "--ranks", "5"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "64 experts cannot be shared by 5 ranks" in done.stderr


def test_deep_ep_without_the_library_or_a_gpu_says_so() -> None:
    status, verdict, _ = _run("deep_ep_check", "--ranks", "1", PYTHONPATH=str(REPOSITORY))
    assert status == 5
    if not torch.cuda.is_available():
        assert verdict["reason"] == "rank 0: 1 ranks need as many GPUs, torch sees 0"


def _deep_gemm(fault: str = "", shapes: str = "128x256x256") -> tuple[int, dict[str, Any], str]:
    return _run("deep_gemm_check", "--device", "cpu", "--shapes", shapes, fault=fault)


def test_deep_gemm_passes_with_a_right_library() -> None:
    status, verdict, stderr = _deep_gemm(shapes="256x384x512,128x256x256")
    assert (status, verdict["reason"]) == (0, ""), stderr
    figures = verdict["figures"]["256x384x512"]
    # bf16 rounding alone: under half a unit in the last place, and not zero.
    assert 2.0**-12 < figures["relative_error"] < 2.0**-9
    assert figures["fp8_tflops"] > 0
    assert figures["bf16_tflops"] > 0


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("scales", "relative error"),
        ("block", "relative error"),
        ("nothing written", "relative error nan"),
        ("nan", "relative error nan"),
        ("value", "a single value"),
        ("raise", "RuntimeError: NVCC compilation failed"),
    ],
)
def test_deep_gemm_finds_wrong_results(fault: str, words: str) -> None:
    status, verdict, _ = _deep_gemm(fault)
    assert status == 5
    assert words in verdict["reason"]


def test_devices_tells_why_there_is_none() -> None:
    status, verdict, _ = _run("devices")
    assert (status == 0) == verdict["ok"]
    if not torch.cuda.is_available():
        assert verdict["reason"] == "torch sees no GPU"
        assert verdict["figures"]["count"] == 0


# The aggregation: small programs of our own answer in place of the stage's, in real processes.

Answer = Callable[[Sequence[str]], str]


def _report(version: str, ran: bool | None = True, reason: str = "") -> dict[str, Any]:
    column = {"ok": ran, "reason": reason or None}
    checks = [{"name": name, "compiled": {"ok": True, "reason": None}, "ran": column} for name in CHECKS]
    return {
        "triton": version,
        "torch": "2.11.0",
        "device": "NVIDIA H200 (sm_90)",
        "compiled": "7/7",
        "ran": "7/7" if ran else "0/7",
        "checks": checks,
        "error": None,
    }


def _printing(value: object, status: int = 0, noise: str = "") -> str:
    return f"import sys; print({noise!r}); print({json.dumps(value)!r}); sys.exit({status})"


def _good(argv: Sequence[str]) -> str:
    if "deepinfer.probe" in argv:
        if "--triton" not in argv:
            return _printing(_report("3.6.0"))
        version = Path(argv[-1]).name
        return _printing({"ok": True, "probes": [_report(version)]})
    if argv[2] == as_text("devices"):
        return _printing({"ok": True, "reason": "", "figures": {"count": 2, "names": ["NVIDIA H200"]}})
    return _printing({"ok": True, "reason": "", "figures": {"8x8x8": {"fp8_tflops": 1400.5}}}, noise="a library talks")


def _stage(answer: Answer = _good, gpus: int = 2, **changes: Any) -> list[StageResult]:
    def launch(argv: Sequence[str], limit: float) -> subprocess.CompletedProcess[str]:
        return call(sys.executable, "-c", answer(argv), timeout=changes.pop("limit", limit), quiet=True, check=False)

    tritons = changes.pop("tritons", {"3.5.1": "/t/3.5.1", "3.7.1": "/t/3.7.1"})
    return run_stage(launch, gpus, tritons, **changes)


NAMES = ["gpus", "probe", "probe 3.5.1", "probe 3.6.0", "probe 3.7.1", "deep_gemm", "deep_ep"]


def _failed(rows: list[StageResult]) -> dict[str, str]:
    return {row.name: row.reason for row in rows if not row.ok}


def test_everything_passes() -> None:
    seen: list[str] = []
    rows = _stage(on_row=lambda row: seen.append(row.name))
    assert _failed(rows) == {}
    assert [row.name for row in rows] == NAMES == seen
    assert rows[3].figures["triton"] == "3.6.0"  # the environment's own Triton needs no folder
    table = as_table(rows)
    assert "8x8x8: fp8_tflops 1400" in table
    assert table.endswith("GPU stage passed")
    assert json.loads(json.dumps([row.to_json() for row in rows]))[5]["state"] == "passed"


def test_fewer_gpus_than_asked_for_is_a_failure_and_the_rest_still_runs() -> None:
    rows = _stage(gpus=4)
    assert _failed(rows) == {
        "gpus": "4 GPUs were asked for, 2 are here",
        "deep_ep": "not run: needs 4 GPUs, 2 are here",
    }


def test_no_gpu_fails_every_row() -> None:
    def answer(argv: Sequence[str]) -> str:
        assert argv[2] == as_text("devices"), "nothing else is started without a GPU"
        return _printing({"ok": False, "reason": "torch sees no GPU", "figures": {"count": 0}}, 5)

    rows = _stage(answer)
    assert list(_failed(rows)) == NAMES
    assert rows[-1].reason == "not run: torch sees no GPU"


def test_a_triton_that_was_not_given_is_a_failure() -> None:
    assert _failed(_stage(tritons={"3.5.1": "/t/3.5.1"})) == {
        "probe 3.7.1": "not run: no folder with Triton 3.7.1 was given"
    }


def test_what_the_plan_calls_unsupported_is_no_failure() -> None:
    why = {"deep_ep": "NCCL 2.28.9 < 2.32.3", "deep_gemm": "CUDA 12.8 < 12.9", "probe 3.7.1": "no pack"}
    rows = _stage(tritons={"3.5.1": "/t/3.5.1"}, unsupported=why)
    assert _failed(rows) == {}
    assert [row.state for row in rows] == ["passed"] * 4 + ["unsupported"] * 3
    assert "NCCL 2.28.9 < 2.32.3" in as_table(rows)


def test_a_probe_that_only_compiled_is_not_enough() -> None:
    def answer(argv: Sequence[str]) -> str:
        return _printing(_report("3.6.0", None, "no GPU")) if argv[-1] == "--json" else _good(argv)

    reasons = _failed(_stage(answer))
    assert reasons["probe"] == "element-wise add: ran: no GPU; ptx target: ran: no GPU"
    assert "probe 3.6.0" in reasons


def test_a_probe_of_another_triton_than_named_is_a_failure() -> None:
    reasons = _failed(_stage(tritons={"3.5.1": "/t/3.7.1", "3.7.1": "/t/3.7.1"}))
    assert reasons == {"probe 3.5.1": "Triton 3.7.1 is not 3.5.1"}


@pytest.mark.parametrize(
    ("compiled", "words"),
    [
        ((0, 0), ""),
        ((2, 1), "in an image with warm caches the run compiled 2 kernels and 1 modules"),
        (None, "in an image with warm caches the run compiled nobody knows what"),
    ],
)
def test_in_an_image_with_warm_caches_the_probe_compiles_nothing(compiled: tuple[int, int] | None, words: str) -> None:
    def answer(argv: Sequence[str]) -> str:
        if argv[-1] != "--json":
            return _good(argv)
        counts = zip(("kernels", "modules"), compiled, strict=True) if compiled else ()
        cache = {kind: {"compiled": made, "found": 9 - made} for kind, made in counts}
        return _printing({**_report("3.6.0"), "cache": cache or None})

    rows = _stage(answer, warm=True)
    assert _failed(rows) == ({"probe": words, "probe 3.6.0": words} if words else {})
    assert rows[1].figures.get("kernels_compiled") == (compiled[0] if compiled else None)
    assert _failed(_stage(answer)) == {}  # elsewhere it may compile


HANGS = "import time; time.sleep(60)"


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("import os; os.kill(os.getpid(), 11)", "ended with status -11 and printed no verdict"),
        ("import sys; sys.exit('no such module')", "ended with status 1 and printed no verdict: no such module"),
        ("print('not json')", "ended with status 0 and printed no verdict: not json"),
        (HANGS, "ended with status 124"),
        (_printing({"ok": True, "reason": "", "figures": {}}, 139), "printed a verdict but ended with status 139"),
        (_printing({"ok": False, "reason": "error 3e-1", "figures": {}}, 5), "error 3e-1"),
        (_printing({"ok": False}, 5), "gives no reason"),
        (_printing([1, 2]), "printed no verdict"),
        (_printing({"figures": {}}), "gives no reason"),
    ],
)
def test_however_a_program_ends_it_is_a_row(program: str, words: str) -> None:
    def answer(argv: Sequence[str]) -> str:
        return program if argv[2] == as_text("deep_gemm_check") else _good(argv)

    def launch(argv: Sequence[str], limit: float) -> subprocess.CompletedProcess[str]:
        short = answer(argv) == HANGS  # the others get the time that a busy machine takes to start a Python
        return call(sys.executable, "-c", answer(argv), timeout=1 if short else 60, quiet=True, check=False)

    rows = run_stage(launch, 2, {"3.5.1": "/t/3.5.1", "3.7.1": "/t/3.7.1"})
    reasons = _failed(rows)
    assert list(reasons) == ["deep_gemm"]
    assert words in reasons["deep_gemm"]


def test_the_verdict_is_the_end_of_what_was_printed() -> None:
    assert last_json('{"a": 1}\n{"b": 2}\n') == {"b": 2}
    assert last_json('noise\n{\n  "a": {\n    "b": 2\n  }\n}\n') == {"a": {"b": 2}}
    assert last_json("") is None
    assert last_json("{") is None
    assert last_json("3") is None


def test_shipped_text_is_small_enough_for_one_argument() -> None:
    for program in ("devices", "deep_gemm_check", "deep_ep_check"):
        assert len(as_text(program).encode()) < 128 * 1024  # Linux's limit for one argument
