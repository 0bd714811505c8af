"""An image with warm caches: its kernels are found whoever runs it and whatever lies over its cache, and made anew only
where something of them changed. Of the kernels the probe's alone, so that it takes seconds."""

from __future__ import annotations

import dataclasses
import json
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from build import cache, pipeline
from build.bases.inspect import inspect_base
from build.bases.resolve import Base, resolve_base
from build.containers import LABEL, Engine
from build.errors import EnvironmentCannot, GateFailed
from build.image.assemble import Built, assemble, image_is_current, is_warm, promote
from build.inspection import Inspection
from build.matrix.load import load_matrix
from build.matrix.model import Matrix
from build.outcome import BuildOptions
from build.plan import TargetPlan, make_plan, with_warm, without_warm
from build.sources import collect_sources
from build.wheels.results import CellResult
from tests import pipeline_bench
from tests.image_stand_ins import make_extension

pytestmark = pytest.mark.docker
NAME = "warm-test"
LAUNCH = (cache.REPOSITORY / "tests" / "warm_launch.py").read_text()
KERNELS = 9
SOURCES = ("deepinfer", "images", "pyproject.toml", "setup.py", "setup.cfg", "README.md", "LICENSE")


@dataclass(frozen=True)
class Ground:
    """A copy of what an image is made from, which tests may change, and the cpu replica to put it on."""

    engine: Engine
    matrix: Matrix
    base: Base
    inspection: Inspection
    sources: Path
    extension: Path

    def plan(self) -> TargetPlan:
        target = dataclasses.replace(self.matrix.targets["cpu"], name=NAME)
        plan = make_plan(
            self.matrix, target, list(target.components), inspection=self.inspection, base_kind="replica",
            sources=collect_sources(self.matrix, target, self.sources), cached=lambda key: False,
        )  # fmt: skip
        return with_warm(plan)

    def assemble(self) -> Built:
        plan = self.plan()
        results = tuple(
            CellResult(cell, "unsupported", reason=cell.reason)
            if cell.status == "unsupported"
            else CellResult(cell, "built", artefact=self.extension)
            for cell in plan.cells
        )
        return assemble(
            self.engine, plan, base=self.base, inspection=self.inspection, results=results, matrix=self.matrix
        )

    def change(self, name: str, before: str, after: str) -> None:
        path = self.sources / name
        text = path.read_text()
        assert text.count(before) == 1, f"{name} has changed, and this test with it: {before!r}"
        path.write_text(text.replace(before, after))

    def names(self) -> set[str]:
        images = self.engine.client.images.list(filters={"label": f"{LABEL}.image={NAME}"})
        return {tag for image in images for tag in image.tags}

    def remove(self) -> None:
        for image in self.engine.client.images.list(filters={"label": f"{LABEL}.image={NAME}"}):
            self.engine.client.images.remove(str(image.id), force=True)
        for folder in ("manifests", "parts", "builder", "contexts"):
            shutil.rmtree(cache.root() / folder / NAME, ignore_errors=True)


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    try:
        engine = Engine.connect()
    except EnvironmentCannot as problem:
        pytest.skip(f"needs a Docker engine: {problem.what}")
    sources = tmp_path_factory.mktemp("sources")
    for name in SOURCES:
        source = cache.REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, sources / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            shutil.copyfile(source, sources / name)
    matrix = load_matrix()
    base = resolve_base(engine, matrix.targets["cpu"], "replica")
    inspection = inspect_base(engine, base.reference)
    extension = make_extension(tmp_path_factory.mktemp("compiled"), inspection)
    ground = Ground(engine, matrix, base, inspection, sources, extension)
    ground.change("deepinfer/warm/providers.py", "for family in ALL_FAMILIES)", "for family in ())")
    ground.remove()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "REPOSITORY", sources)
        yield ground
    ground.remove()


@pytest.fixture(scope="module")
def built(ground: Ground) -> Built:
    return ground.assemble()


def run(ground: Ground, built: Built, *argv: str, **options: Any) -> str:
    done = ground.engine.run(built.image_id, argv, owner=NAME, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_image_says_how_many_kernels_it_carries_and_their_size(ground: Ground, built: Built) -> None:
    carried = built.document["warm"]
    assert (carried["kernels"], carried["target"], carried["triton"]) == (KERNELS, "sm_90a", ground.inspection.triton)
    assert carried["modules"] > 0
    assert built.labels[f"{LABEL}.warm"] == str(KERNELS)
    assert 0 < carried["bytes"] <= built.sizes["warm"] < 5_000_000
    assert json.loads(run(ground, built, "cat", "/opt/deepinfer/image.json")) == dict(built.document)
    assert ground.names() == {built.tags[0]}  # the image in which they were compiled is gone


ANYBODY: dict[str, dict[str, Any]] = {
    "the image's own user": {},
    "root": {"user": "0"},
    "a bare uid": {"user": "12345"},
    "an empty folder over the cache": {"user": "12345", "tmpfs": {"/cache": "mode=1777"}},
    # `exec` for the stand-in of the driver's library; the modules that a run needs lie in the image.
    "a read-only file system": {"read_only": True, "tmpfs": {"/tmp": "mode=1777,exec"}},
    "a cache that only root can write": {"user": "12345", "tmpfs": {"/cache": "mode=755"}},
    "a cache elsewhere": {"env": {"DEEPINFER_CACHE_DIR": "/tmp/mine"}},
    "Triton's cache elsewhere": {"env": {"TRITON_CACHE_DIR": "/proc/nowhere"}},
}


def launch(ground: Ground, built: Built, **options: Any) -> dict[str, Any]:
    # As an argument: no file can be put into a container whose file system is read-only.
    found: dict[str, Any] = json.loads(run(ground, built, ground.inspection.executable, "-c", LAUNCH, **options))
    assert found["launches"] == KERNELS
    return found


@pytest.mark.parametrize("who", ANYBODY)
def test_a_launch_finds_every_kernel_and_compiles_none(ground: Ground, built: Built, who: str) -> None:
    found = launch(ground, built, **ANYBODY[who])
    assert found["kernels"] == {"compiled": 0, "found": KERNELS}
    assert found["modules"] == {"compiled": 0, "found": built.document["warm"]["modules"]}


def test_so_it_does_with_a_volume_and_leaves_nothing_in_it(ground: Ground, built: Built) -> None:
    name = f"deepinfer-{NAME}-{uuid.uuid4().hex[:8]}"
    volumes = {name: {"bind": "/cache", "mode": "rw"}}
    try:
        assert launch(ground, built, volumes=volumes)["kernels"] == {"compiled": 0, "found": KERNELS}
        report = json.loads(run(ground, built, "deepinfer", "warm", "--json", volumes=volumes))
        assert report["kernels"] == {"compiled": 0, "found": KERNELS}
        assert run(ground, built, "ls", "-A", "/cache", volumes=volumes) == ""
    finally:
        ground.engine.client.volumes.get(name).remove()


def test_the_plain_image_is_another_and_each_is_current_by_itself(ground: Ground, built: Built) -> None:
    promote(ground.engine, built)
    plan = ground.plan()
    assert is_warm(ground.engine.labels(f"deepinfer:{NAME}"))
    assert image_is_current(ground.engine, plan)
    assert image_is_current(ground.engine, without_warm(plan))  # publish and check ask so: it is what it says it is
    assert without_warm(plan).image_key != plan.image_key
    assert ground.assemble().image_id == built.image_id  # found by its name: nothing is compiled


def test_after_a_change_of_one_kernel_that_one_is_compiled(
    ground: Ground, built: Built, capfd: pytest.CaptureFixture[str]
) -> None:
    ground.change("deepinfer/probe/kernels.py", "x * tl.load(cos_ptr + angle) + partner", "partner * 1.0 + partner")
    changed = ground.assemble()
    assert f"{NAME}: kernels of the warm caches: compiled 2, found {KERNELS - 2}" in capfd.readouterr().err
    assert not image_is_current(ground.engine, ground.plan())
    assert launch(ground, changed)["kernels"] == {"compiled": 0, "found": KERNELS}


def test_python_alone_changed_leaves_the_layer_as_it_was(ground: Ground, built: Built) -> None:
    before = ground.assemble()
    ground.change("deepinfer/probe/report.py", '"""The probe', '"""The  probe')
    after = ground.assemble()
    layers = [ground.engine.image_config(one.image_id)["RootFS"]["Layers"] for one in (before, after)]
    assert before.image_id != after.image_id
    assert layers[0][:-2] == layers[1][:-2]  # the engine and its byte code come last


def test_the_whole_pipeline_makes_it_checks_it_and_is_done_at_once_the_second_time(
    ground: Ground, built: Built, capfd: pytest.CaptureFixture[str]
) -> None:
    matrix, target = pipeline_bench.ground()
    target = dataclasses.replace(target, name=NAME)
    matrix = Matrix(matrix.components, {NAME: target})
    outcome = pipeline.build_image(ground.engine, matrix, target, BuildOptions(warm=True))
    assert (outcome.status, outcome.exit_code) == ("built", 0), outcome.gates
    (gate,) = (gate for gate in outcome.gates if gate.name == "warm")
    assert gate.detail.startswith(f"kernels: {KERNELS} found of {KERNELS}; modules: ")
    assert outcome.sizes["warm"] > 0
    assert outcome.manifest is not None
    manifest = json.loads(outcome.manifest.read_text())
    assert manifest["image_inputs"]["warm"] == "yes"
    assert manifest["document"]["warm"]["kernels"] == KERNELS
    capfd.readouterr()
    again = pipeline.build_image(ground.engine, matrix, target, BuildOptions(warm=True))
    assert again.status == "unchanged"
    assert "docker build" not in capfd.readouterr().err


def test_a_kernel_that_does_not_compile_makes_no_image(ground: Ground, built: Built) -> None:
    names = ground.names()
    ground.change("deepinfer/probe/kernels.py", "tl.store(total_ptr, tl.sum(mass, 0))", "tl.store(total_ptr, nothing)")
    with pytest.raises(GateFailed, match="`deepinfer warm` in the image ended with status 5") as told:
        ground.assemble()
    assert "pick_by_cdf" in told.value.cause
    assert ground.names() == names
