"""A real image from the CPU base: what it holds, how it is rebuilt, and what a kill in the middle leaves."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from build import cache
from build.bases.inspect import inspect_base
from build.bases.resolve import Base, resolve_base
from build.containers import LABEL, Engine
from build.errors import EnvironmentCannot
from build.image.assemble import Built, assemble, image_is_current, promote
from build.inspection import Inspection
from build.matrix.load import load_matrix
from build.matrix.model import Matrix
from build.plan import TargetPlan, make_plan
from build.sources import collect_sources
from build.wheels.results import CellResult
from tests.image_stand_ins import make_extension

pytestmark = pytest.mark.docker

NAME = "image-test"


@dataclass(frozen=True)
class Ground:
    """Everything that an image is made from; the compiled part is a stand-in, so `deepinfer` uses its twin."""

    engine: Engine
    matrix: Matrix
    base: Base
    inspection: Inspection
    plan: TargetPlan
    results: tuple[CellResult, ...]

    def assemble(self, **changes: object) -> Built:
        plan = dataclasses.replace(self.plan, **changes)  # type: ignore[arg-type]
        return assemble(
            self.engine, plan, base=self.base, inspection=self.inspection, results=self.results, matrix=self.matrix
        )


def remove_images(engine: Engine) -> None:
    for image in engine.client.images.list(filters={"label": f"{LABEL}.image={NAME}"}):
        engine.client.images.remove(image.id, force=True)


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    engine = Engine.connect()
    matrix = load_matrix()
    target = dataclasses.replace(matrix.targets["cpu"], name=NAME)
    base = resolve_base(engine, matrix.targets["cpu"], "replica")
    inspection = inspect_base(engine, base.reference)
    plan = make_plan(
        matrix,
        target,
        list(target.components),
        inspection=inspection,
        base_kind="replica",
        sources=collect_sources(matrix, target, cache.REPOSITORY),
        cached=lambda key: False,
    )
    extension = make_extension(tmp_path_factory.mktemp("compiled"), inspection)
    results = tuple(
        CellResult(cell, "unsupported", reason=cell.reason)
        if cell.status == "unsupported"
        else CellResult(cell, "built", artefact=extension)
        for cell in plan.cells
    )
    remove_images(engine)
    yield Ground(engine, matrix, base, inspection, plan, results)
    remove_images(engine)


@pytest.fixture(scope="module")
def built(ground: Ground) -> Built:
    return ground.assemble()


def run(ground: Ground, built: Built, *argv: str, user: str | None = None, **options: object) -> str:
    done = ground.engine.run(built.image_id, argv, user=user, owner=NAME, **options)  # type: ignore[arg-type]
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_command_answers_for_its_user_and_for_any_other(ground: Ground, built: Built) -> None:
    for user in (None, "12345"):
        report = json.loads(run(ground, built, "deepinfer", "env", "--json", user=user))
        assert report


def test_the_user_is_not_root_and_the_cache_is_writable_by_any(ground: Ground, built: Built) -> None:
    assert run(ground, built, "id", "-un").strip() == "deepinfer"
    assert run(ground, built, "id", "-u").strip() == "10001"
    run(ground, built, "sh", "-c", "mkdir /cache/a && rmdir /cache/a", user="12345")
    assert run(ground, built, "stat", "-c", "%a %u", "/cache", "/home/deepinfer").split() == [
        "1777",
        "0",
        "755",
        "10001",
    ]


def test_what_asks_for_a_users_name_works_under_a_bare_uid(ground: Ground, built: Built) -> None:
    run(ground, built, ground.inspection.executable, "-c", "import deepinfer, torch._inductor.codecache", user="12345")


def test_what_the_image_is_set_to_do(ground: Ground, built: Built) -> None:
    config = ground.engine.image_config(built.image_id)["Config"]
    below = ground.engine.image_config(ground.base.image_id)["Config"]
    assert (config["Entrypoint"], config["Cmd"]) == (["deepinfer"], ["env"])
    assert (config["User"], config["WorkingDir"]) == ("10001:10001", "/")
    assert config.get("ExposedPorts") is None
    assert set(config["Env"]) == {*below["Env"], "DEEPINFER_CACHE_DIR=/cache", "USER=deepinfer"}
    kind, *check = config["Healthcheck"]["Test"]
    assert kind == "CMD"
    run(ground, built, *check, user="12345")


def test_image_json_is_what_the_label_vouches_for(ground: Ground, built: Built) -> None:
    digest = run(ground, built, "sha256sum", "/opt/deepinfer/image.json").split()[0]
    assert built.labels[f"{LABEL}.manifest"] == f"sha256:{digest}"
    document = json.loads(run(ground, built, "cat", "/opt/deepinfer/image.json"))
    assert document == built.document
    assert document["components"]["deep_gemm"]["status"] == "unsupported"
    assert document["components"]["deep_gemm"]["reason"]
    assert document["tag"] == built.tags[0]
    assert "-replica-" in built.tags[0]
    assert built.labels["org.opencontainers.image.base.name"] == ground.base.reference


def test_dependencies_work_without_pip_in_the_base(ground: Ground, built: Built) -> None:
    program = "import numpy, safetensors, tokenizers, deepinfer; print(numpy.__spec__.cached, deepinfer.__file__)"
    cached, engine = run(ground, built, ground.inspection.executable, "-c", program, user="12345").split()
    run(ground, built, "test", "-f", cached)
    assert engine == f"{ground.inspection.site}/deepinfer/__init__.py"


def test_every_addition_has_its_licence(ground: Ground, built: Built) -> None:
    names = set(run(ground, built, "ls", "/opt/deepinfer/licenses").split())
    added = {name for name, fact in built.document["runtime"].items() if fact["status"] == "added"}
    assert names == {"deepinfer", *added}


def test_nothing_of_the_making_is_left_and_the_base_is_below(ground: Ground, built: Built) -> None:
    names = ["lay.py", "*.whl", "steps", "*.tar"]
    wanted = [word for name in names for word in ("-o", "-name", name)][1:]
    found = run(ground, built, "find", "/opt", "/usr/local", "/tmp", "/root", "/cache", "/home", *wanted, user="0")
    assert found == ""
    layers = ground.engine.image_config(built.image_id)["RootFS"]["Layers"]
    below = ground.engine.image_config(ground.base.image_id)["RootFS"]["Layers"]
    assert layers[: len(below)] == below


def test_sizes_are_told_apart_and_add_up(ground: Ground, built: Built) -> None:
    assert set(built.sizes) == {"nccl", "toolchain", "runtime", "warm", "ours"}
    assert built.sizes["nccl"] == built.sizes["toolchain"] == built.sizes["warm"] == 0
    assert built.sizes["runtime"] > 20_000_000
    assert 0 < built.sizes["ours"] < 60_000_000
    whole = (
        ground.engine.image_config(built.image_id)["Size"] - ground.engine.image_config(ground.base.image_id)["Size"]
    )
    assert sum(built.sizes.values()) == whole


def test_the_same_again_is_the_same_image(ground: Ground, built: Built) -> None:
    assert ground.assemble().image_id == built.image_id


def test_a_change_of_python_repeats_the_last_layers_only(ground: Ground, built: Built) -> None:
    changed = ground.assemble(image_key="f" * 64)
    assert changed.image_id != built.image_id
    before, after = (ground.engine.image_config(one.image_id)["RootFS"]["Layers"] for one in (built, changed))
    differ = [number for number, (one, other) in enumerate(zip(before, after, strict=True)) if one != other]
    assert min(differ) >= len(before) - 2


def test_the_moving_tag_is_moved_by_promotion_alone(ground: Ground, built: Built) -> None:
    assert not image_is_current(ground.engine, ground.plan)
    promote(ground.engine, built)
    assert image_is_current(ground.engine, ground.plan)
    later = ground.assemble(image_key="e" * 64)
    assert ground.engine.image_id(f"deepinfer:{NAME}") == built.image_id != later.image_id


def test_a_base_that_was_moved_meanwhile_is_noticed(ground: Ground) -> None:
    with ground.engine.container(ground.base.image_id, ["touch", "/grown"], owner=NAME) as container:
        container.start()
        container.wait()
        container.raw.commit("deepinfer-test", f"{NAME}-moved", changes=[f"LABEL {LABEL}.image={NAME}"])
    inspected = ground.engine.image_id(f"deepinfer-test:{NAME}-moved")
    assert inspected is not None
    moved = dataclasses.replace(ground.base, image_id=inspected)
    with pytest.raises(EnvironmentCannot, match="was moved to another image"):
        dataclasses.replace(ground, base=moved).assemble(image_key="d" * 64)


def test_killed_in_the_middle_the_old_image_stays_and_the_next_run_ends_well(ground: Ground, built: Built) -> None:
    promote(ground.engine, built)
    child = os.fork()
    if child == 0:
        try:
            dataclasses.replace(ground, engine=Engine.connect()).assemble(image_key="a" * 64)
        finally:
            os._exit(0)
    folder = cache.folder("contexts") / NAME
    deadline = time.monotonic() + 60
    while not folder.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert folder.exists(), "the child never came to its build"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert ground.engine.image_id(f"deepinfer:{NAME}") == built.image_id
    finished = ground.assemble(image_key="a" * 64)
    assert not folder.exists()
    assert run(ground, finished, "id", "-u").strip() == "10001"


def test_two_assemblies_at_once_make_one_image(ground: Ground) -> None:
    key = "b" * 64
    children = []
    for _ in range(2):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                dataclasses.replace(ground, engine=Engine.connect()).assemble(image_key=key)
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]
    made = ground.engine.client.images.list(filters={"label": f"{LABEL}.key={key}"})
    assert len(made) == 1
