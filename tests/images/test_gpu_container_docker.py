"""The GPU stage's containers on an engine that knows no GPUs: refused in its own words, nothing left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from build.bases.inspect import inspect_base
from build.bases.resolve import resolve_base
from build.call import CallFailed
from build.containers import LABEL, Engine
from build.errors import EnvironmentCannot
from build.gpu.container import PLACE, container_launch
from build.matrix.load import load_matrix

pytestmark = pytest.mark.docker


def test_an_engine_without_gpus_says_so_and_leaves_no_container(tmp_path: Path) -> None:
    try:
        engine = Engine.connect()
    except EnvironmentCannot as problem:
        pytest.skip(f"needs a Docker engine: {problem.what}")
    if "nvidia" in engine.client.info().get("Runtimes", {}):
        pytest.skip("this engine has GPUs: `./run check --image X --gpus N` tries the real thing")
    base = resolve_base(engine, load_matrix().targets["cpu"], "replica")
    (tmp_path / "triton").mkdir()
    inspection = inspect_base(engine, base.reference)
    launch, inside = container_launch(engine, base.reference, inspection, {"3.7.1": tmp_path})
    assert inside == {"3.7.1": f"{PLACE}/3.7.1"}
    with pytest.raises(CallFailed) as refused:
        launch(["python3", "-c", "pass", inside["3.7.1"]], 30.0)
    assert refused.value.returncode == 125
    assert "device" in refused.value.output and "gpu" in refused.value.output
    assert engine.client.containers.list(all=True, filters={"label": f"{LABEL}.owner=gpu"}) == []
