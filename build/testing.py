"""`test`: the repository's own suites. Unit tests, then each image built, checked and tested, one at a time.

The stages are data: a name, a command, the image that it belongs to. The first one that fails ends the run. Docker's
engine is started for the image stages if none answers, and stopped again; what a stage added in Docker is removed
after it, so that the disk has to hold one image at a time.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from build import cache
from build.bases.disk import engine_folder
from build.call import show
from build.clean.folders import remove
from build.clean.images import LOCK, clean_images, our_images
from build.containers import Engine
from build.errors import EnvironmentCannot, GateFailed, NothingSelected, UsageError
from build.matrix.load import load_matrix
from build.room import Disks, check_room, peak_use
from build.setup import docker_engine

IMAGES = ("cpu", "flagtree")
OF_AN_IMAGE = ("builder", "contexts", "parts")
"""Folders of the cache with a folder for each image, of which some GB are of use to further builds of it alone."""
NO_TESTS_COLLECTED = 5
"""pytest's status when its selection is empty."""
OF_PYTEST = {
    1: GateFailed.exit_code,
    2: 130,
    3: EnvironmentCannot.exit_code,
    4: UsageError.exit_code,
    NO_TESTS_COLLECTED: NothingSelected.exit_code,
}
"""What pytest's own statuses are among the exit codes of `./run`: tests that failed, interrupted, broken, wrong words,
nothing collected."""


@dataclass(frozen=True)
class Stage:
    """A command of the run; `image` is the image that it needs, empty for none."""

    name: str
    argv: tuple[str, ...]
    image: str = ""
    may_be_empty: bool = False

    @property
    def of_pytest(self) -> bool:
        """Whether its status is one of pytest, whose statuses are its own."""
        return self.argv[1:3] in (("-m", "pytest"), ("-m", "build.shards"))


@dataclass(frozen=True)
class Result:
    """How a stage ended.

    status: None where it was not run.  peak_gb: the most that the disks had grown by meanwhile, since it began.
    held_gb: what earlier stages had left on them when it began.
    """

    stage: Stage
    status: int | None = None
    seconds: float = 0.0
    peak_gb: float = 0.0
    held_gb: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """For the record of a run."""
        facts: dict[str, Any] = {"name": self.stage.name, "image": self.stage.image, "status": self.status}
        if self.status is not None:
            figures = {"seconds": self.seconds, "peak_gb": self.peak_gb, "held_gb": self.held_gb}
            facts |= {name: round(value, 2) for name, value in figures.items()}
        return facts


def every_image() -> tuple[str, ...]:
    """The images of `--all-images`: those of the usual run, then the others of the matrix."""
    named = [target.name for target in load_matrix().targets.values() if target.kind == "image"]
    return (*IMAGES, *(name for name in named if name not in IMAGES))


def stages(images: Sequence[str] = IMAGES, *, pull_back: bool = False) -> list[Stage]:
    """The run: unit tests; then for each image its build with gates, and the Docker tests that belong to it.

    A Docker test belongs to the image of the matrix whose name stands in the test's path or name, else to the first.
    pull_back: each image is also pushed whole to a registry and compared with what comes back.
    """
    python = sys.executable
    pytest = (python, "-m", "pytest", "--timeout=900")
    # Some GB go to a registry and come back, on whatever disk there is: what stands still is ended, not what is slow.
    endless = (python, "-m", "pytest", "--timeout=0")
    program = str(cache.REPOSITORY / "build" / "setup" / "program.py")
    verb = (python, "-P", program, "alone", "--search-root", str(cache.REPOSITORY))
    unit = (python, "-m", "build.shards", "--timeout=900", "-m", "not docker and not gpu and not multi_gpu")
    plan = [Stage("unit tests", unit)]
    for index, image in enumerate(images):
        others = " and ".join(f"not {other}" for other in every_image() if other != image)
        selection = others if index == 0 else image
        plan.append(Stage(f"{image}: build and gates", (*verb, "build", "--image", image, "--base", "replica"), image))
        docker = ("-m", "docker and not gpu and not multi_gpu", "-k")
        tests = (*pytest, *docker, f"{selection} and not pull_back")
        plan.append(Stage(f"{image}: Docker tests", tests, image, may_be_empty=index > 0))
        if pull_back:
            back = (*endless, *docker, f"{image} and pull_back")
            plan.append(Stage(f"{image}: publish and pull back", back, image))
    return plan


def run(
    arguments: str | Sequence[str] = (),
    *,
    keep: bool = False,
    all_images: bool = False,
    plan: Sequence[Stage] | None = None,
) -> int:
    """Run everything, or pytest with exactly these arguments.

    Args:
        arguments: pytest's own arguments; a string is taken apart as a shell would.
        keep: leave the images and BuildKit's cache that the stages add.
        all_images: every image of the matrix, not those of IMAGES only.
        plan: the stages, `stages()` by default.

    Returns:
        0, or the exit code of the stage that failed: for pytest see OF_PYTEST.

    Raises:
        EnvironmentCannot: no Docker engine, or not enough room for an image.
    """
    words = shlex.split(arguments) if isinstance(arguments, str) else list(arguments)
    if words:
        stage = Stage("pytest", (sys.executable, "-m", "pytest", *words))
        return exit_code(stage, _execute(stage))
    todo = list(_wanted(all_images) if plan is None else plan)
    results: list[Result] = []
    disks = Disks()
    try:
        for image, group in groupby(todo, key=lambda stage: stage.image):
            if not _run_group(image, list(group), results, disks, keep=keep):
                break
    finally:
        ended = [*results, *(Result(stage) for stage in todo[len(results) :])]
        print(as_table(ended), file=sys.stderr, flush=True)
        print(f"the same as JSON: {write_record(ended)}", file=sys.stderr, flush=True)
    return next((result.status for result in results if result.status), 0)


def _wanted(all_images: bool) -> list[Stage]:
    return stages(every_image(), pull_back=True) if all_images else stages()


def _run_group(image: str, group: Sequence[Stage], results: list[Result], disks: Disks, *, keep: bool) -> bool:
    """Run the stages of one image, or those that need none; whether all went well."""
    if not image:
        return all(_timed(stage, disks, results) for stage in group)
    with docker_engine.running(may_install=os.environ.get("DEEPINFER_SETUP") == "1"):
        engine = Engine.connect()
        folder = engine_folder(engine)
        places = [*([folder] if folder is not None else []), cache.root()]
        for place in places:
            disks.watch(place)
        check_room(image, places)
        with _freed(engine, image, keep=keep):
            return all(_timed(stage, disks, results) for stage in group)


def _timed(stage: Stage, disks: Disks, results: list[Result]) -> bool:
    print(f"\n==== {stage.name}", file=sys.stderr, flush=True)
    start, held = time.monotonic(), disks.grown()
    with peak_use(disks.places) as peak:
        status = _execute(stage)
    if status == NO_TESTS_COLLECTED and stage.may_be_empty:
        print(f"{stage.name}: there are none", file=sys.stderr)
        status = 0
    status = exit_code(stage, status)
    results.append(Result(stage, status, time.monotonic() - start, peak[0], held))
    return status == 0


def exit_code(stage: Stage, status: int) -> int:
    """What a stage's status is among the exit codes of `./run`."""
    if status < 0:
        return 128 - status
    return OF_PYTEST.get(status, status) if stage.of_pytest else status


def _execute(stage: Stage) -> int:
    show(stage.argv)
    # Tests see the environment as a user's shell would have it, without what `./run` tells its verbs.
    environment = {name: value for name, value in os.environ.items() if name != "DEEPINFER_SETUP"}
    return subprocess.run(
        stage.argv, cwd=cache.REPOSITORY, env=environment, stdin=subprocess.DEVNULL, check=False
    ).returncode


@contextmanager
def _freed(engine: Engine, image: str, *, keep: bool) -> Iterator[None]:
    """Afterwards remove what was not there before: images of the target, BuildKit's records, parts in the cache."""
    images = {known.id for known in our_images(engine)}
    records = build_records(engine)
    folders = [cache.root() / name / image for name in OF_AN_IMAGE if not (cache.root() / name / image).exists()]
    try:
        yield
    finally:
        if not keep:
            clean_images(engine, f"{image},deepinfer-test:*,os-*", keep=images)
            pruned = prune_records(engine, build_records(engine) - records)
            print(f"pruned {pruned / 1e9:.1f} GB of BuildKit's cache", file=sys.stderr, flush=True)
            with cache.held_at_once(f"{LOCK}{image}") as free:  # else somebody else builds it
                for folder in folders if free else ():
                    remove(folder)


def build_records(engine: Engine) -> set[str]:
    """The ids of what BuildKit's cache holds; it keeps the layers of removed images until they are pruned."""
    return {str(record["ID"]) for record in engine.client.df().get("BuildCache") or ()}


def prune_records(engine: Engine, ids: set[str]) -> int:
    """Remove these records, and no others, from BuildKit's cache; returns the bytes. Records in use stay."""
    if not ids:
        return 0
    expression = '"^(' + "|".join(sorted(ids)) + ')$"'
    api: Any = engine.client.api  # the package's types do not know the filter
    answer = api.prune_builds(filters={"id": [expression]}, all=True)
    return int(answer.get("SpaceReclaimed") or 0)


def as_table(results: Sequence[Result]) -> str:
    """Stages with status, time and the growth of the disks."""
    width = max(len(result.stage.name) for result in results)
    lines = ["", f"{'stage':<{width}}  {'status':<10} {'time':>8} {'disk':>9}"]
    for result in results:
        status = "not run" if result.status is None else "passed" if result.status == 0 else f"failed ({result.status})"
        spent = "" if result.status is None else f"{result.seconds:.0f} s"
        disk = "" if result.status is None else f"{result.peak_gb:+.1f} GB"
        lines.append(f"{result.stage.name:<{width}}  {status:<10} {spent:>8} {disk:>9}")
    total = sum(result.seconds for result in results)
    peak = peak_of(results)
    lines.append(f"{'together':<{width}}  {'':<10} {total:>6.0f} s {f'{peak:+.1f} GB':>9}")
    return "\n".join(lines)


def peak_of(results: Sequence[Result]) -> float:
    """The most that the disks had grown by since the run began, in GB."""
    return max((result.held_gb + result.peak_gb for result in results if result.status is not None), default=0.0)


def write_record(results: Sequence[Result]) -> Path:
    """Write the table for programs; returns the file."""
    total = sum(result.seconds for result in results)
    document = {
        "stages": [result.to_json() for result in results],
        "seconds": round(total, 2), "peak_gb": round(peak_of(results), 2),
    }  # fmt: skip
    file = cache.folder("logs") / "test.json"
    cache.atomic_write(file, json.dumps(document, indent=1) + "\n")
    return file
