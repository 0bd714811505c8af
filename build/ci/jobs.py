"""The jobs of continuous integration: an image on a base each, with the labels of a runner that has room for it.

A job's room is what the base takes, what the build of an image takes beside it, and the build cache. Where GitHub's
hosted runners have it, they are taken; else a machine of one's own that carries the label of the next size up.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from build import room
from build.errors import MatrixError
from build.matrix.model import Matrix, Target

BaseKind = Literal["vendor", "replica"]

LIMIT = 256
"""GitHub runs at most this many jobs of one matrix."""
HOSTED = ("ubuntu-24.04",)
HOSTED_GB = 14.0
"""What GitHub promises of a hosted runner's disk."""
HOSTED_MINUTES = 360
OWN = ("self-hosted", "linux", "x64")
SIZES_GB = (32, 64, 128, 256, 512)
"""The labels of machines of one's own: `disk-64gb` has 64 GB free for builds."""
MINUTES = 120
"""For one image with cold caches: twice what the slowest took on two cores."""
CACHE_GB = {"cpu": 3.0, "cuda": 8.0}
"""Downloads, parts and compiled components of an image whose torch has no CUDA, or has."""
BESIDE_VENDOR_GB = 20.0
"""The builder, BuildKit's copies and the finished image, where the base is a vendor's."""


@dataclass(frozen=True)
class Job:
    """One or more images, built one after the other on one kind of base and runner."""

    images: tuple[str, ...]
    base: BaseKind
    runs_on: tuple[str, ...]
    disk_gb: int
    timeout_minutes: int

    @property
    def name(self) -> str:
        """What the job is called: `flagtree (vendor)`."""
        more = f" and {len(self.images) - 1} more" if len(self.images) > 1 else ""
        return f"{self.images[0]}{more} ({self.base})"

    @property
    def hosted(self) -> bool:
        """On a runner of GitHub's: a machine of one's own runs no code of a stranger's pull request."""
        return "self-hosted" not in self.runs_on


def make_jobs(
    matrix: Matrix, names: Sequence[str], *, base: str = "all", hosted_only: bool = False, limit: int = LIMIT
) -> list[Job]:
    """The jobs for these images, each on every base that it has.

    Args:
        names: targets of the matrix; the host is none for continuous integration and is left out.
        base: "vendor", "replica" or "all".
        hosted_only: leave out what needs a machine of one's own.

    Raises MatrixError where no runner is large enough, or there are more kinds of runners than jobs are allowed.
    """
    single = [
        _job(target, kind)
        for target in (matrix.targets[name] for name in names)
        for kind in bases_of(target)
        if base in ("all", kind)
    ]
    if hosted_only:
        single = [job for job in single if job.hosted]
    return shard(single, limit)


def bases_of(target: Target) -> list[BaseKind]:
    """The kinds of base that an image can be built on; none for the host."""
    kinds: list[BaseKind] = []
    if target.kind == "image" and target.vendor is not None:
        kinds.append("vendor")
    if target.kind == "image" and target.replica is not None:
        kinds.append("replica")
    return kinds


def room_gb(target: Target, kind: BaseKind) -> float:
    """Free disk that a build from nothing takes."""
    kept = CACHE_GB["cuda" if "cuda" in target.expect else "cpu"]
    if kind == "vendor":
        return target.vendor_gb + BESIDE_VENDOR_GB + kept
    return room.NEEDED_GB.get(target.name, room.DEFAULT_GB) + kept


def runner_labels(target: Target, kind: BaseKind) -> tuple[str, ...]:
    """The labels in matrix.yaml, else those that follow from the room. Raises MatrixError where none is that large."""
    if target.runner:
        return target.runner
    need = room_gb(target, kind)
    if need <= HOSTED_GB:
        return HOSTED
    for size in SIZES_GB:
        if need <= size:
            return (*OWN, f"disk-{size}gb")
    raise MatrixError(
        f"{target.name} on its {kind} base takes {need:.0f} GB, and the largest runner has {SIZES_GB[-1]} GB",
        next_step=f"name the labels of a larger one in matrix.yaml: images: {target.name}: runner",
    )


def shard(jobs: Sequence[Job], limit: int) -> list[Job]:
    """At most `limit` jobs: those of the same runner and base are put together, evenly, as far as it must be."""
    if len(jobs) <= limit:
        return list(jobs)
    alike: dict[tuple[tuple[str, ...], BaseKind], list[Job]] = {}
    for job in jobs:
        alike.setdefault((job.runs_on, job.base), []).append(job)
    if len(alike) > limit:
        raise MatrixError(
            f"there are {len(alike)} kinds of runners and bases, and GitHub runs {limit} jobs of one matrix",
            next_step="name fewer different runners in matrix.yaml, or select images: --image 'a*'",
        )
    each = 2
    while sum(-(-len(group) // each) for group in alike.values()) > limit:
        each += 1
    return [_together(part) for group in alike.values() for part in _evenly(group, -(-len(group) // each))]


def _evenly(group: Sequence[Job], parts: int) -> list[Sequence[Job]]:
    """The group in this many parts whose lengths differ by one at most."""
    ends = [len(group) * index // parts for index in range(parts + 1)]
    return [group[start:end] for start, end in itertools.pairwise(ends)]


def _job(target: Target, kind: BaseKind) -> Job:
    return Job((target.name,), kind, runner_labels(target, kind), round(room_gb(target, kind)), MINUTES)


def _together(jobs: Sequence[Job]) -> Job:
    """One job for several: each image is removed before the next, so that the room is the largest one's."""
    minutes = sum(job.timeout_minutes for job in jobs)
    return Job(
        tuple(name for job in jobs for name in job.images),
        jobs[0].base,
        jobs[0].runs_on,
        max(job.disk_gb for job in jobs),
        min(minutes, HOSTED_MINUTES) if jobs[0].hosted else minutes,
    )


def as_github(jobs: Sequence[Job]) -> Mapping[str, Any]:
    """For `strategy.matrix` of a workflow, whose values are texts and lists."""
    return {"include": [{**_told(job), "images": " ".join(job.images)} for job in jobs]}


def as_json(jobs: Sequence[Job]) -> Mapping[str, Any]:
    """For other programs."""
    return {"limit": LIMIT, "jobs": [_told(job) for job in jobs]}


def _told(job: Job) -> dict[str, Any]:
    lists = {"images": list(job.images), "runs_on": list(job.runs_on)}
    return {"name": job.name, **asdict(job), **lists, "hosted": job.hosted}
