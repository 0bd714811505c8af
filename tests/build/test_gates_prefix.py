"""The gates on a prefix of this machine: the same programs as in an image, started by the local launcher."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from build.bases.inspect import inspect_host
from build.cache import REPOSITORY
from build.gates.catalogue import NAMES
from build.gates.launcher import local_launcher
from build.gates.place import Place
from build.gates.result import GateResult
from build.gates.run import run_prefix_gates
from build.matrix.model import Component, Source, Target
from build.plan import Cell, TargetPlan


def _gates(prefix: Path) -> dict[str, GateResult]:
    inspection = inspect_host(Path(sys.executable))
    component = Component("tiny_part", "Tiny", "wheel", "1.0", Source(path="."), module="tiny_part")
    absent = Component("deep_ep", "DeepEP", "wheel", "2.5.0", Source(path="."), module="deep_ep")
    cells = (Cell("host", component, "build", key="1" * 64), Cell("host", absent, "unsupported", reason="no CUDA"))
    plan = TargetPlan(Target("host", "host", "host", ("tiny_part",)), inspection, "host", cells, "2" * 64)
    site = prefix / "site"
    place = Place(sys.executable, str(prefix), str(site), str(site / "deepinfer"), (str(prefix / "bin" / "deepinfer"),))
    with local_launcher() as launcher:
        results = run_prefix_gates(launcher, place, plan, inspection)
    assert tuple(result.name for result in results) == NAMES
    return {result.name: result for result in results}


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prefix with the engine, a component without binaries, and the command."""
    folder = tmp_path_factory.mktemp("prefix")
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(REPOSITORY / "deepinfer", folder / "site" / "deepinfer", ignore=ignored)
    part = folder / "site" / "tiny_part"
    part.mkdir()
    (part / "__init__.py").write_text('__version__ = "1.0"\n')
    command = folder / "bin" / "deepinfer"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nPYTHONPATH={folder}/site exec {sys.executable} -m deepinfer "$@"\n')
    command.chmod(0o755)
    return folder


def test_a_sound_prefix_passes_and_leaves_the_interpreter_alone(prefix: Path) -> None:
    gates = _gates(prefix)
    assert [(gate.name, gate.detail) for gate in gates.values() if not gate.ok] == []
    passed = {name for name, gate in gates.items() if gate.state == "passed"}
    assert passed >= {"readable", "imports", "ours", "vendor", "pins", "flaggems_off", "probe", "entrypoint"}
    assert gates["layers"].skipped_reason == "a prefix has no layers"
    assert "deep_ep: unsupported" in gates["imports"].detail
    assert "tiny_part leads to nothing" in gates["vendor"].detail


def test_a_prefix_on_everybodys_path_and_a_crash_are_named(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = prefix / "site" / "tiny_part" / "__init__.py"
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(prefix / "site"), *filter(None, [os.environ.get("PYTHONPATH")])])
    )
    sound = part.read_text()
    part.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGABRT)\n")
    try:
        gates = _gates(prefix)
    finally:
        part.write_text(sound)
    assert {name for name, gate in gates.items() if not gate.ok} == {"imports", "vendor"}
    assert f"import tiny_part: killed by SIGABRT at {part}:2" in gates["imports"].detail
    assert f"`import tiny_part` leads to {part}, which is ours" in gates["vendor"].detail
