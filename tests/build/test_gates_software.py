"""What the gates make of the vendor's software, of pins, FlagGems, the tool chain and Triton's probe."""

from __future__ import annotations

import json
from typing import Any

import pytest

from build.gates.judge.rows import Ending, Verdicts
from build.gates.judge.software import judge_flaggems, judge_pins, judge_probe, judge_toolchain, judge_vendor
from tests.build.gates_ground import PLACE, base_inspection, import_line


def _neighbours(*modules: dict[str, str], **origins: str) -> Ending:
    lines = [
        {"paths": ["/usr/lib/p"]},
        *({"module": one["name"], "version": "", **one} for one in modules),
        {"origins": origins, "engine_loaded": False},
    ]
    return Ending(0, stdout="\n".join(json.dumps(line) for line in lines))


def test_a_vendor_module_that_needs_a_gpu_is_not_our_fault() -> None:
    failing = _neighbours({"name": "flag_gems", "error": "no GPU"}, deep_gemm="/v/deep_gemm/__init__.py")
    verdicts = Verdicts()
    judge_vendor(verdicts, PLACE, base_inspection(), failing, failing, ["flag_gems"])
    assert verdicts.results[0].ok
    assert "flag_gems does not import in the base either, without a GPU: no GPU" in verdicts.results[0].detail


def test_a_vendor_module_that_we_broke_is() -> None:
    before = _neighbours({"name": "vllm", "error": ""})
    verdicts = Verdicts()
    now = _neighbours({"name": "vllm", "error": "ImportError: x"}, {"name": "torch", "error": "", "version": "2.12.0"})
    judge_vendor(verdicts, PLACE, base_inspection(), now, before, ["vllm", "torch"])
    assert "import vllm without deepinfer: ImportError: x" in verdicts.results[0].detail
    assert "torch is 2.12.0 now; the base has 2.11.0+cu130" in verdicts.results[0].detail


@pytest.mark.parametrize(
    ("version", "kept"), [("3.8.10", True), ("3.8.10.post1", True), ("3.8.1", False), ("3.8.11", False)]
)
def test_a_module_may_say_less_than_its_metadata(version: str, kept: bool) -> None:
    verdicts = Verdicts()
    now = _neighbours({"name": "tokenspeed_triton", "error": "", "version": version})
    judge_vendor(verdicts, PLACE, base_inspection(), now, None, ["tokenspeed_triton"])
    assert verdicts.results[0].ok is kept


def _pins(*rows: tuple[str, str, str]) -> list[dict[str, Any]]:
    listed = [{"name": name, "version": version, "folder": folder} for name, version, folder in rows]
    return [{"distributions": listed, "ours": []}]


SAME = (("torch", "2.11.0+cu130", "/s"), ("nvidia-nccl-cu13", "2.32.3", "/s"), ("vllm", "0.24.0", "/s"))


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (SAME, ""),
        ((*SAME, ("numpy", "2.4.6", "/s"), ("vllm", "0.1", "/later")), ""),
        ((*SAME, ("vllm", "0.25.0", "/s")), "/s holds vllm 2 times: 0.24.0, 0.25.0"),
        (SAME[:2], "vllm 0.24.0 of the base is gone"),
        ((("torch", "2.12.0", "/s"), *SAME[1:]), "torch's family: torch is 2.12.0 in /s; the base has 2.11.0+cu130"),
        ((SAME[0], ("nvidia-nccl-cu13", "2.28.9", "/s"), SAME[2]), "and 2.32.3 was declared"),
    ],
)
def test_pins(rows: tuple[tuple[str, str, str], ...], words: str) -> None:
    verdicts = Verdicts()
    judge_pins(verdicts, base_inspection(), _pins(*rows), {"nvidia-nccl-cu13": "2.32.3"})
    assert verdicts.results[0].ok is (words == "")
    assert words in verdicts.results[0].detail


@pytest.mark.parametrize(
    ("now", "startup", "loaded", "words"),
    [
        ({"USE_FLAGGEMS": "1"}, {}, [], "the image sets USE_FLAGGEMS=1, the base has it unset"),
        ({"VLLM_PLUGINS": "fl"}, {}, [], "VLLM_PLUGINS=fl"),
        ({}, {"/s/x.pth": "import flag_gems"}, [], "/s/x.pth"),
        ({}, {}, ["flag_gems"], "`import deepinfer` loads flag_gems"),
        ({"KEPT_FLAGGEMS": "1", "VLLM_PLUGINS": ""}, {"/s/y.pth": "/opt/x"}, [], ""),
    ],
)
def test_flaggems(now: dict[str, str], startup: dict[str, str], loaded: list[str], words: str) -> None:
    verdicts = Verdicts()
    lines = [{**import_line("torch"), "flaggems": loaded}]
    judge_flaggems(verdicts, now, {"KEPT_FLAGGEMS": "1"}, startup, lines)
    assert verdicts.results[0].ok is (words == "")
    assert words in verdicts.results[0].detail


def test_a_tool_chain_is_only_asked_for_where_something_compiles() -> None:
    verdicts = Verdicts()
    judge_toolchain(verdicts, [], [], {}, None)
    judge_toolchain(verdicts, ["deep_gemm"], [], {}, None)
    judge_toolchain(verdicts, ["deep_gemm"], ["/c"], {"error": "nvcc fatal", "nvcc": "/c/bin/nvcc"}, Ending(0))
    judge_toolchain(verdicts, ["deep_gemm"], ["/c"], {}, Ending(-9, "SIGKILL", timed_out=True, seconds=120))
    made = {"error": "", "nvcc": "/c/bin/nvcc", "version": "13.0.88", "bytes": 5368}
    judge_toolchain(verdicts, ["deep_gemm"], ["/c"], made, Ending(0))
    assert [result.state for result in verdicts.results] == ["n/a", "failed", "failed", "failed", "passed"]
    assert "nvcc fatal" in verdicts.results[2].detail
    assert "hung" in verdicts.results[3].detail


def _probe(bad: int, count: int = 7) -> Ending:
    checks = [{"name": f"c{n}", "compiled": {"ok": n >= bad, "reason": "no"}} for n in range(count)]
    report = {"triton": "3.6.0", "compiled": f"{count - bad}/{count}", "checks": checks, "error": None}
    return Ending(5 if bad else 0, stdout=json.dumps(report))


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        (_probe(0), ""),
        (_probe(2), "not compiled: c0: no"),
        (_probe(0, 6), "7 are expected"),
        (Ending(1, stderr="ImportError: x"), "status 1: ImportError: x"),
        (Ending(0, stdout="hello"), "it printed something else than the report"),
    ],
)
def test_probe(ending: Ending, words: str) -> None:
    verdicts = Verdicts()
    judge_probe(verdicts, ending, "3.6.0")
    assert verdicts.results[0].ok is (words == "")
    assert words in verdicts.results[0].detail
