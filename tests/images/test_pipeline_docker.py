"""An image from base to tag through the whole pipeline: once, again, twice at once, and with faults planted in it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from build import cache, pipeline
from build.bases.replica import reference
from build.bases.resolve import resolve_base
from build.cache import REPOSITORY
from build.clean.images import clean_images
from build.containers import LABEL, Engine
from build.errors import EnvironmentCannot
from build.matrix.load import load_matrix
from build.outcome import BuildOptions
from tests.pipeline_bench import NAME, ground, pure_component

pytestmark = pytest.mark.docker
MOVING = f"deepinfer:{NAME}"


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """The engine, with the cpu replica in it and, before and after, nothing of this test's."""
    try:
        engine = Engine.connect()
    except EnvironmentCannot as problem:
        pytest.skip(f"needs a Docker engine: {problem.what}")
    resolve_base(engine, load_matrix().targets["cpu"], "replica")
    clean_images(engine, NAME)
    yield engine
    clean_images(engine, NAME)
    for folder in ("manifests", "parts", "builder", "contexts"):
        shutil.rmtree(cache.root() / folder / NAME, ignore_errors=True)


@pytest.fixture(scope="module")
def two(engine: Engine) -> list[tuple[dict[str, str], str]]:
    """Two builds begun at once, with nothing there yet: how each ended, and what it said."""
    argv = [sys.executable, "-m", "tests.pipeline_bench"]
    runs = [
        subprocess.Popen(argv, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    ended = [run.communicate(timeout=800) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], ended
    return sorted(((json.loads(out), said) for out, said in ended), key=lambda one: one[0]["status"])


def test_of_two_builds_at_once_one_waits_and_finds_it_done(
    two: list[tuple[dict[str, str], str]], engine: Engine
) -> None:
    (built, first), (unchanged, second) = two
    assert (built["status"], unchanged["status"]) == ("built", "unchanged")
    assert built["where"] == unchanged["where"] == MOVING
    assert f"waiting for another build of {NAME}" in second and "waiting for another build" not in first
    for step in ("image", "gates"):
        assert f"== {NAME}: {step}" in first and f"== {NAME}: {step}" not in second
    assert len(engine.client.images.list(filters={"label": [f"{LABEL}.image={NAME}", f"{LABEL}.key"]})) == 1


def test_the_manifest_is_valid_and_names_the_image(two: list[tuple[dict[str, str], str]], engine: Engine) -> None:
    import jsonschema

    page = Path(two[0][0]["manifest"])
    document = json.loads(page.with_suffix(".json").read_text())
    jsonschema.validate(document, json.loads((REPOSITORY / "docs" / "manifest.schema.json").read_text()))
    assert engine.image_id(MOVING) in json.dumps(document)
    assert page.with_suffix(".md").read_text().startswith("# ")


def test_again_it_is_unchanged_and_nothing_is_done(
    two: list[tuple[dict[str, str], str]], engine: Engine, capfd: pytest.CaptureFixture[str]
) -> None:
    before = engine.image_id(MOVING)
    outcome = pipeline.build_image(engine, *ground(), BuildOptions())
    assert (outcome.status, outcome.where, outcome.exit_code) == ("unchanged", MOVING, 0)
    said = capfd.readouterr().err
    assert "docker build" not in said and "gates" not in said
    assert engine.image_id(MOVING) == before


def test_the_finished_image_passes_a_check(two: list[tuple[dict[str, str], str]]) -> None:
    gates, stage = pipeline.check_image(*ground(), gpus=0)
    assert gates and {gate.name: gate.detail for gate in gates if not gate.ok} == {}
    assert stage == []


def test_a_failed_gate_leaves_the_last_good_image_where_it_was(
    two: list[tuple[dict[str, str], str]], engine: Engine, tmp_path: Path
) -> None:
    good = engine.image_id(MOVING)
    faulty = pure_component("faulty_part", tmp_path / "faulty", "import os\nos.abort()\n")
    outcome = pipeline.build_image(engine, *ground(faulty_part=faulty), BuildOptions())
    assert (outcome.status, outcome.exit_code) == ("gate failed", 5)
    (imports,) = (gate for gate in outcome.gates if gate.name == "imports")
    assert not imports.ok and "faulty_part" in imports.detail
    assert engine.image_id(MOVING) == good
    assert outcome.where != MOVING and engine.image_id(outcome.where) not in (None, good)
    assert outcome.manifest is not None and outcome.manifest.is_file()


def test_a_failed_component_makes_no_image_and_with_keep_going_the_others_are_done(
    two: list[tuple[dict[str, str], str]], engine: Engine, tmp_path: Path
) -> None:
    good = engine.image_id(MOVING)
    broken = pure_component("broken_part", tmp_path / "broken", "", setup="raise SystemExit('no such header')\n")
    sound = pure_component("sound_part", tmp_path / "sound", f"of = {str(tmp_path)!r}\n")
    outcome = pipeline.build_image(engine, *ground(broken_part=broken, sound_part=sound), BuildOptions(keep_going=True))
    assert (outcome.status, outcome.exit_code) == ("component failed", 6)
    ended = {cell.cell.component.name: cell for cell in outcome.cells}
    assert {name: cell.status for name, cell in ended.items()} == {
        "_C": "cached", "broken_part": "failed", "sound_part": "built",
    }  # fmt: skip
    log = ended["broken_part"].log
    assert log is not None and "no such header" in log.read_text()
    assert engine.image_id(MOVING) == good and outcome.gates == ()
    (kept,) = (cell.artefact for cell in outcome.cells if cell.cell.component.name == "sound_part")
    assert kept is not None
    shutil.rmtree(kept.parent)


def test_what_cannot_be_checked_is_told(engine: Engine) -> None:
    matrix, target = ground()
    clean_images(engine, NAME)
    with pytest.raises(EnvironmentCannot, match=f"there is no image {MOVING} here"):
        pipeline.check_image(matrix, target, gpus=0)
    engine.client.images.get(reference(load_matrix().targets["cpu"])).tag("deepinfer", NAME)
    try:
        with pytest.raises(EnvironmentCannot, match=r"it is not ours|is not here any more"):
            pipeline.check_image(matrix, target, gpus=0)
    finally:
        engine.client.images.remove(MOVING)
