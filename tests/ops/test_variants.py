"""Every variant of the kernels compiles for sm_90a under the Tritons of the vendor images, without a GPU."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deepinfer.ops import variants
from deepinfer.ops.names import ALL_FAMILIES
from deepinfer.ops.variants import MORE, MOST, Report
from tests.ops.compiler import SUMMARY, Compiler, Row

VERSIONS = ("3.5.1", "3.6.0", "3.7.1")
lacking = [name for name in ("docker", "yaml") if importlib.util.find_spec(name) is None]
needs_build = pytest.mark.skipif(
    bool(lacking), reason=f"the build system, which fetches Tritons, lacks {', '.join(lacking)} (`./run test` has them)"
)


@pytest.fixture(scope="session")
def compiler(request: pytest.FixtureRequest) -> Iterator[Compiler]:
    """At work on what the tests that were collected ask for, in their order."""
    wanted: dict[tuple[str, str], None] = {}
    for item in request.session.items:
        if isinstance(item, pytest.Function) and "compiler" in item.fixturenames:
            chosen = item.callspec.params if hasattr(item, "callspec") else {}
            families = [chosen["family"]] if "family" in chosen else ALL_FAMILIES
            wanted |= {(chosen.get("version", VERSIONS[-1]), family): None for family in families}
    running = Compiler(wanted)
    try:
        yield running
    finally:
        SUMMARY.extend(running.summary())
        running.close()


@needs_build
def test_versions_are_those_that_are_pinned() -> None:
    from build.triton_versions import versions

    assert tuple(versions()) == VERSIONS


@needs_build
@pytest.mark.parametrize("family", ALL_FAMILIES)
@pytest.mark.parametrize("version", VERSIONS)
def test_every_variant_compiles(version: str, family: str, compiler: Compiler) -> None:
    row = compiler.row(version, family)
    assert row["problems"] == []
    assert row["triton"] == version
    assert row["variants"], f"no case of {family} launches a kernel"


@needs_build
@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_few_variants_in_a_run_of_the_engine(family: str, compiler: Compiler) -> None:
    row = compiler.row(VERSIONS[-1], family)
    assert _report(row).too_many() == []


def _report(row: Row) -> Report:
    sides = ({name: frozenset(hashes) for name, hashes in row[side].items()} for side in ("variants", "engine"))
    return Report(*sides, row["compiled"], row["found"], tuple(row["problems"]))


@needs_build
def test_reasons_are_listed_for_kernels_that_have_more_only(compiler: Compiler) -> None:
    engine: dict[str, list[str]] = {}
    for family in ALL_FAMILIES:
        engine |= compiler.row(VERSIONS[-1], family)["engine"]
    assert {name for name in MORE if len(engine.get(name, ())) <= MOST} == set()


def test_reports_add_up() -> None:
    first = Report({"a.k": frozenset({"1", "2"})}, {"a.k": frozenset({"1"})}, 2, 0)
    both = first + Report({"a.k": frozenset({"2", "3"}), "b.k": frozenset({"4"})}, {}, 1, 1, ("wrong",))
    assert both.counts == {"a.k": 3, "b.k": 1} and both.total == 4
    assert (both.compiled, both.found, both.problems) == (3, 1, ("wrong",))
    assert dict(both.engine) == {"a.k": frozenset({"1"})}


def test_too_many_variants_are_told_unless_a_reason_is_listed() -> None:
    report = Report(engine={"a.k": frozenset(map(str, range(9))), "b.k": frozenset("1")})
    assert report.too_many(8, {}) == ["a.k: 9 variants in a run of the engine, 8 at most"]
    assert report.too_many(8, {"a.k": "a size each"}) == []


def _variants(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), **variables}
    command = [sys.executable, "-m", "deepinfer.ops.variants", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_what_is_compiled_is_found_the_next_time(tmp_path: Path) -> None:
    first, second = (
        json.loads(_variants("gather", "--engine", "--json", TRITON_CACHE_DIR=str(tmp_path)).stdout) for _ in range(2)
    )
    assert first["compiled"] == first["total"] > 0 and first["found"] == 0
    assert second["compiled"] == 0 and second["found"] == first["total"]
    assert first["engine"] == first["variants"] == second["variants"] and first["too_many"] == []
    assert first["target"] == variants.TARGET == "sm_90a"


def test_nothing_is_compiled_in_the_interpreter() -> None:
    done = _variants("gather", TRITON_INTERPRET="1")
    assert done.returncode == 1 and "TRITON_INTERPRET is set" in done.stderr and "Traceback" not in done.stderr


def test_an_unknown_family_is_refused_with_near_names() -> None:
    done = _variants("gathr")
    assert done.returncode == 1 and "did you mean" in done.stderr and "gather" in done.stderr


def test_code_for_another_target_is_a_problem() -> None:
    assert variants._wrong_target("//\n.version 8.7\n.target sm_90a\n") == ""
    assert variants._wrong_target(".target sm_90, debug\n") == "compiled for sm_90, not sm_90a"
    assert variants._wrong_target("") == "compiled for no target, not sm_90a"


@pytest.mark.parametrize(
    ("code", "right"),
    [
        ("griddepcontrol.wait;\nld.global.v4.b32 {%r1}, [%rd1];\nst.global.b32 [%rd2], %r1;", True),
        ("ld.param.b64 %rd1, [p];\ngriddepcontrol.wait;\natom.global.gpu.relaxed.add.u64 %rd3, [%rd1], 1;", True),
        ("ld.global.b32 %r1, [%rd1];\ngriddepcontrol.wait;", False),
        ("red.relaxed.gpu.global.add.u32 [%rd1], 1;\ngriddepcontrol.wait;", False),
        ("st.global.b32 [%rd1], 1;", False),
    ],
)
def test_a_kernel_that_is_started_early_waits_before_it_touches_memory(code: str, right: bool) -> None:
    assert (variants._early(code) == "") is right
