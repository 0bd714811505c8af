"""What of Docker's images and containers is ours, and how it is removed.

Ours is what carries the project's label *and* bears one of the project's names: an image that somebody derived from one
of ours inherits the label, and a container that somebody started from one does too. While an image is being built all
that belongs to it stays, and while it is being removed no build of it begins: both hold the same lock.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from docker.errors import APIError

from build import cache
from build.clean.words import gb, say
from build.containers import CACHE_LABEL, LABEL, PROCESS_LABEL, Engine, in_use
from build.errors import NothingSelected
from build.matrix.load import load_matrix

REPOSITORIES = ("deepinfer", "deepinfer-base", "deepinfer-builder", "deepinfer-test")
LOCK = "image-"
"""How the lock of an image's build begins."""
_REPLICAS = "replica"
"""The lock of who builds a replica."""
_LAYER = "os-"
"""How the targets of Debian's layers in replicas begin."""
_LOCKABLE = re.compile(r"\w[\w.-]*")


def require_known(engine: Engine, pattern: str) -> None:
    """Raise NothingSelected for names that are neither here nor in the matrix, and where there is no name at all.

    One of the matrix that is not built is no mistake.
    """
    patterns = _patterns(pattern)
    if not patterns:
        raise NothingSelected(f"--image {pattern!r} names no image", next_step="--image NAME, or '*' for all")
    here = our_images(engine)
    owned = {_owning_target(raw) for raw in _our_containers(engine)}
    known = sorted({*load_matrix().targets, *(image.target for image in here if image.target), *owned})
    for part in patterns:
        if not any(image.is_meant([part]) for image in here) and not any(fnmatchcase(name, part) for name in known):
            near = difflib.get_close_matches(part, known, n=1)
            raise NothingSelected(
                f"--image {part!r} names nothing that is here or in matrix.yaml, and nothing was removed",
                next_step=f"did you mean {near[0]!r}?" if near else f"use one of: {', '.join(known)}",
            )


@dataclass(frozen=True)
class OurImage:
    """An image of ours: its id, those of its names that are the project's, what it belongs to, and its size."""

    id: str
    names: tuple[str, ...]
    target: str
    size: int

    def is_meant(self, patterns: Sequence[str]) -> bool:
        """Whether one of the globs names its target or one of its full names."""
        return any(fnmatchcase(text, pattern) for pattern in patterns for text in (self.target, *self.names))


def our_images(engine: Engine) -> list[OurImage]:
    """Every image of the project, newest first, so that an image comes before the one that it was made from."""
    found: dict[str, OurImage] = {}
    for raw in engine.images(label=f"{LABEL}=1"):
        names = tuple(name for name in raw.tags if _is_our_name(name))
        if names or not raw.tags:
            found[str(raw.id)] = OurImage(str(raw.id), names, _target(names, raw.labels), int(raw.attrs["Size"]))
    return list(found.values())


def _is_our_name(name: str) -> bool:
    repository = name.rpartition(":")[0].rpartition("/")[2]
    return repository in REPOSITORIES


def _target(names: Sequence[str], labels: dict[str, str]) -> str:
    for name in names:
        repository, _, tag = name.rpartition(":")
        if repository == "deepinfer-base":
            return tag.removesuffix("-replica")
    return labels.get(f"{LABEL}.image", "")


def being_built(engine: Engine, pattern: str) -> list[str]:
    """The targets that `pattern` names and that somebody builds at this moment, with this cache."""
    return [target for target in _meant_targets(engine, _patterns(pattern)) if cache.is_locked(_lock_of(target))]


def clean_images(engine: Engine, pattern: str, *, keep: Collection[str] = ()) -> list[OurImage]:
    """Remove containers and images of the targets that `pattern` names; returns the images that went.

    What somebody else's container or image still uses stays, and is named; so does what is being built, and the images
    with the ids of `keep`.
    """
    patterns = _patterns(pattern)
    builds = cache.any_locked()  # asked before locks of builds are held here
    targets = _meant_targets(engine, patterns)
    with _held(targets) as busy:
        for target in busy:
            say(f"kept all of {target}: {target} is being built")
        remove_containers(engine, patterns, leave=busy, builds=builds)
        ours = our_images(engine)
        meant = [image for image in ours if image.is_meant(patterns) and image.id not in keep]
        # What somebody has begun to build since then is not held here.
        free = [target for target in targets if target not in busy]
        meant = [image for image in meant if image.target in free or not _LOCKABLE.fullmatch(image.target)]
        if not meant and not busy:
            known = sorted({image.target for image in ours if image.target})
            say(f"no image of ours matches {pattern!r}" + (f"; there are: {', '.join(known)}" if known else ""))
        return _remove_images(engine, meant)


def _patterns(pattern: str) -> list[str]:
    return [part.strip() for part in pattern.split(",") if part.strip()]


def _meant_targets(engine: Engine, patterns: Sequence[str]) -> list[str]:
    """The targets that are meant, those too of which nothing but a container is there yet."""
    here = [image.target for image in our_images(engine) if image.is_meant(patterns)]
    owners = [_owning_target(raw) for raw in _our_containers(engine)]
    named = [name for name in (*load_matrix().targets, *owners) if any(fnmatchcase(name, part) for part in patterns)]
    return sorted({name for name in (*here, *named) if _LOCKABLE.fullmatch(name)})


@contextmanager
def _held(targets: Sequence[str]) -> Iterator[list[str]]:
    """Keep builds of these targets from beginning; gives those that somebody builds already."""
    with ExitStack() as stack:
        locks = sorted({_lock_of(target) for target in targets})
        busy = [name for name in locks if not stack.enter_context(cache.held_at_once(name))]
        yield [target for target in targets if _lock_of(target) in busy]


def _lock_of(target: str) -> str:
    """The lock of who builds a target's images; the layers of an operating system belong to all replicas."""
    return _REPLICAS if target.startswith(_LAYER) else f"{LOCK}{target}"


def _remove_images(engine: Engine, meant: list[OurImage]) -> list[OurImage]:
    """Remove these, as far as nothing stands on them; returns those that went."""
    gone: list[OurImage] = []
    refused: dict[str, str] = {}
    progress = True
    while meant and progress:  # an image can go only after those that were made from it
        progress = False
        for image in list(meant):
            problem = _remove_image(engine, image)
            refused[image.id] = problem
            if not problem:
                say(f"removed {', '.join(image.names) or image.id[:19]} ({gb(image.size)} with what others share)")
                gone.append(image)
                meant.remove(image)
                progress = True
    for image in meant:
        say(f"kept {', '.join(image.names) or image.id[:19]}: {refused[image.id]}")
    return gone


def _remove_image(engine: Engine, image: OurImage) -> str:
    """Take our names, and with the last name the image; returns why it stays, empty when it went."""
    try:
        for name in image.names or (image.id,):
            engine.client.images.remove(name)
    except APIError as problem:
        if problem.status_code == 404:
            return ""
        return str(problem.explanation or problem).splitlines()[0]
    return ""


def remove_containers(
    engine: Engine, patterns: Sequence[str], *, leave: Collection[str] = (), builds: bool = False
) -> None:
    """Remove our containers of these targets that nobody uses.

    Args:
        leave: targets whose containers stay.
        builds: whether builds run, whose containers may be among those that run.
    """
    for raw in _our_containers(engine):
        owner = raw.labels[f"{LABEL}.owner"]
        if "*" not in patterns and not any(fnmatchcase(_owning_target(raw), pattern) for pattern in patterns):
            continue
        if _owning_target(raw) in leave:
            continue
        if raw.labels.get(CACHE_LABEL) != cache.identity():
            end = f"`docker rm -f {raw.short_id}` ends it"
            say(f"kept container {raw.short_id} ({owner}): it belongs to another build cache; {end}")
            continue
        if in_use(raw):
            process = raw.labels[PROCESS_LABEL].partition("-")[0]
            say(f"kept container {raw.short_id} ({owner}): process {process}, which started it, still runs")
            continue
        if raw.status == "running" and builds:
            say(f"kept container {raw.short_id} ({owner}): a build is running")
            continue
        try:
            raw.remove(force=True)
        except APIError as problem:
            if problem.status_code != 404:
                say(f"kept container {raw.short_id} ({owner}): {problem.explanation}")
                continue
        say(f"removed container {raw.short_id} ({owner})")


def _our_containers(engine: Engine) -> list[Any]:
    """Containers that the project itself made: the owner's label is on none of its images, so it is not inherited."""
    return list(engine.client.containers.list(all=True, filters={"label": f"{LABEL}.owner"}, ignore_removed=True))


def _owning_target(container: Any) -> str:
    labels: dict[str, str] = container.labels
    return labels.get(f"{LABEL}.image") or labels[f"{LABEL}.owner"].partition("/")[0]


def remove_unused_os_layers(engine: Engine) -> list[OurImage]:
    """Remove the Debian layers of replicas (`deepinfer-base:os-…`) on which no image stands; returns them.

    A replica whose build was interrupted leaves some, which belong to no target's name.
    """
    with cache.held_at_once(_REPLICAS) as held:
        return _remove_unused_os_layers(engine) if held else []


def _remove_unused_os_layers(engine: Engine) -> list[OurImage]:
    layers = {str(raw.id): list(raw.attrs["RootFS"].get("Layers") or ()) for raw in engine.images()}
    gone: list[OurImage] = []
    for image in our_images(engine):
        own = layers.get(image.id, [])
        used = any(id != image.id and other[: len(own)] == own for id, other in layers.items())
        if image.target.startswith(_LAYER) and not used and not _remove_image(engine, image):
            say(f"removed {', '.join(image.names)} ({gb(image.size)}), on which no image stands")
            gone.append(image)
    return gone
