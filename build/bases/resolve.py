"""Which base an image is made from: the vendor's where it can be had, else its replica; said in plain words."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from docker.errors import DockerException
from requests.exceptions import RequestException

from build.bases import disk, registry
from build.bases.replica import make_replica, reference
from build.containers import Engine
from build.errors import EnvironmentCannot, UsageError
from build.matrix.model import Target

MODES = ("auto", "vendor", "replica")


@dataclass(frozen=True)
class Base:
    """A base that is here: its kind, local name, image id, and the digest that names its content.

    digest: of the vendor's manifest in its registry; the image id where no registry knows the image.
    """

    kind: Literal["vendor", "replica"]
    reference: str
    image_id: str
    digest: str


def resolve_base(engine: Engine, target: Target, mode: str = "auto") -> Base:
    """Find, pull or make the base of an image.

    Args:
        mode: `vendor` or `replica` insist; `auto` takes the vendor's image if it is here or can be pulled (its
            registry is asked once a day at most), else the replica.

    Raises:
        UsageError: no such mode.
        EnvironmentCannot: the base can neither be found nor pulled nor made.
    """
    if mode not in MODES:
        raise UsageError(f"--base {mode!r} is not one of {', '.join(MODES)}", next_step="leave --base out for auto")
    if mode == "replica" and target.replica is not None:
        return _replica(engine, target)
    if target.vendor is None:
        if mode == "vendor":
            _say(f"{target.name} has no vendor image: its base is made here")
        return _replica(engine, target)
    found = _local(engine, target.vendor)
    if found is not None:
        _say(f"{target.name}: the vendor's image is here: {target.vendor}")
        return found
    problem = _fetch(engine, target, insist=mode == "vendor")
    if problem is None:
        pulled = _local(engine, target.vendor)
        if pulled is not None:
            return pulled
        problem = "the pull ended well, but the image is not here"
    if mode == "vendor" or target.replica is None:
        raise EnvironmentCannot(
            f"the vendor's image of {target.name} cannot be had: {problem}",
            next_step=f"`docker pull {target.vendor}` on a machine that can, `docker save` it there and `docker load` "
            "it here; or use `--base replica`",
        )
    _say(f"{target.name}: using the REPLICA, not the vendor's image, because {problem}")
    return _replica(engine, target)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _replica(engine: Engine, target: Target) -> Base:
    image = make_replica(engine, target)
    return Base("replica", reference(target), image, image)


def _local(engine: Engine, vendor: str) -> Base | None:
    image = engine.image_id(vendor)
    if image is None:
        return None
    names = engine.image_config(vendor).get("RepoDigests") or ()
    digests = [name.partition("@")[2] for name in names if name.partition("@")[0] == _repository(vendor)]
    return Base("vendor", vendor, image, vendor.partition("@")[2] or (digests[0] if digests else image))


def _repository(reference: str) -> str:
    """A reference without tag and digest, as the engine writes it: Docker Hub's own name is left out."""
    name = reference.partition("@")[0]
    before, _, tag = name.rpartition(":")
    repository = before if before and "/" not in tag else name
    return re.sub(r"^(index\.)?docker\.io/(library/)?", "", repository)


def _fetch(engine: Engine, target: Target, *, insist: bool) -> str | None:
    """Pull the vendor's image; returns why that did not work, None when it did."""
    assert target.vendor is not None
    answer = registry.ask(engine, target.vendor, again=insist)
    if answer.digest is None:
        return f"it is not on this machine, and its registry does not give it ({answer.reason})"
    free = disk.free_gb(engine)
    if free is not None and free < target.vendor_gb:
        return f"it needs {target.vendor_gb:g} GB, and the engine's disk has {free:.1f} GB free"
    room = "free space unknown" if free is None else f"{free:.0f} GB free"
    _say(f"{target.name}: pulling the vendor's image, {target.vendor_gb:g} GB on disk ({room}): {target.vendor}")
    name, _, tag = target.vendor.rpartition("@" if "@" in target.vendor else ":")
    try:
        failure = _follow(engine.client.api.pull(name, tag=tag, stream=True, decode=True))
    except (DockerException, RequestException) as problem:
        failure = " ".join(str(problem).split())[:300]
    return f"its pull failed ({failure})" if failure else None


def _follow(events: Iterable[Mapping[str, Any]]) -> str | None:
    """Print a pull's progress every ten seconds; returns the engine's error, None without one."""
    done: dict[str, tuple[int, int]] = {}
    shown = time.monotonic()
    for event in events:
        if "error" in event:
            return str(event["error"])
        detail = event.get("progressDetail") or {}
        if event.get("status") == "Downloading" and "total" in detail:
            done[str(event.get("id"))] = (int(detail["current"]), int(detail["total"]))
        if time.monotonic() - shown > 10 and done:
            shown = time.monotonic()
            have, total = (sum(column) / 1e9 for column in zip(*done.values(), strict=True))
            _say(f"  {have:.1f} of {total:.1f} GB of {len(done)} layers fetched")
    return None
