"""NCCL and CUDA as vendors' images have them, on the flagtree replica: what torch loads is what is replaced."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from build import pipeline
from build.bases.inspect import inspect_base
from build.bases.replica import make_replica, reference
from build.containers import LABEL, Engine
from build.matrix.load import load_matrix
from build.matrix.model import Matrix, Target
from build.outcome import BuildOptions

pytestmark = [pytest.mark.docker, pytest.mark.slow]

RECIPE = Path(__file__).with_name("vendor_stand_in")
SYSTEM = "/usr/lib/x86_64-linux-gnu"
WHEEL = "nvidia/nccl/lib/libnccl.so.2"
OVERLAY = "2.32.3"


@pytest.fixture
def target(engine: Engine, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    """The flagtree image on a stand-in for the vendor's base that is here already; `request.param` names its kind."""
    flagtree = load_matrix().targets["flagtree"]
    make_replica(engine, flagtree)
    assert flagtree.replica is not None
    name = f"stand-in-{request.param}"
    tag = f"deepinfer-test:vendor-{request.param}"
    site = inspect_base(engine, reference(flagtree)).site
    args = {"BASE": reference(flagtree), "SITE": site}
    engine.build(RECIPE, tag=tag, target=request.param, args=args, log=tmp_path / "build.log")
    expect = {**flagtree.expect, **flagtree.replica.expect}
    yield dataclasses.replace(flagtree, name=name, vendor=tag, expect=expect)
    for image in engine.client.images.list(filters={"label": f"{LABEL}.image={name}"}):
        engine.client.images.remove(image.id, force=True)
    engine.client.images.remove(tag, force=True)


def build(engine: Engine, target: Target) -> dict[str, object]:
    """Build the image, all gates and all; returns its image.json."""
    matrix = load_matrix()
    matrix = Matrix(matrix.components, {target.name: target})
    outcome = pipeline.build_image(engine, matrix, target, BuildOptions(base="vendor"))
    assert outcome.status == "built", outcome
    document: dict[str, object] = json.loads(
        engine.run(f"deepinfer:{target.name}", ["cat", "/opt/deepinfer/image.json"]).stdout
    )
    return document


@pytest.mark.parametrize("target", ["system-nccl"], indirect=True)
def test_the_systems_nccl_is_replaced_where_torch_loads_that(engine: Engine, target: Target) -> None:
    assert target.vendor is not None
    before = inspect_base(engine, target.vendor)
    assert before.nccl_loaded == f"{SYSTEM}/libnccl.so.2.28.9"
    assert before.nccl_dist is None
    document = build(engine, target)
    declared = document["declared"]
    assert isinstance(declared, dict)
    assert declared["nccl"] == {"version": OVERLAY, "replaced": "2.28.9", "path": before.nccl_loaded}
    after = inspect_base(engine, f"deepinfer:{target.name}")
    assert (after.nccl_loaded, after.nccl_version) == (before.nccl_loaded, OVERLAY)
    assert [library.path for library in after.nccl] == [before.nccl_loaded], "the wheel's place links to that file"


@pytest.mark.parametrize("target", ["both-nccl"], indirect=True)
def test_an_nccl_of_the_system_beside_the_wheels_is_left_alone(engine: Engine, target: Target) -> None:
    assert target.vendor is not None
    before = inspect_base(engine, target.vendor)
    other = f"{SYSTEM}/libnccl.so.2.20.5"
    assert before.nccl_loaded == f"{before.site}/{WHEEL}"
    assert other in [library.path for library in before.nccl]
    document = build(engine, target)
    notes = document["notes"]
    assert isinstance(notes, list)
    assert f"torch loads {before.nccl_loaded}; {other} was left as it is" in notes
    after = inspect_base(engine, f"deepinfer:{target.name}")
    assert (after.nccl_loaded, after.nccl_version) == (before.nccl_loaded, OVERLAY)
    environment = after.environment
    assert environment["CUDA_HOME"] == "/usr/local/cuda", "the vendor's programs keep theirs"
    assert environment["DG_JIT_NVCC_COMPILER"] == environment["EP_JIT_NVCC_COMPILER"] == "/opt/deepinfer/cuda/bin/nvcc"
