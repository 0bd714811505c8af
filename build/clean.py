"""`clean`: removes what the project made, and nothing else; says what goes and how much space that frees.

In Docker, ours is what carries the project's label *and* bears one of the project's names: an image that somebody
derived from one of ours inherits the label, and a container that somebody started from one does too.
"""

from __future__ import annotations

import difflib
import os
import shutil
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from docker.errors import APIError

from build import cache
from build.containers import CACHE_LABEL, LABEL, PROCESS_LABEL, Engine, in_use
from build.errors import EnvironmentCannot, NothingSelected, UsageError
from build.matrix.load import load_matrix
from build.setup import docker_engine

REPOSITORIES = ("deepinfer", "deepinfer-base", "deepinfer-builder", "deepinfer-test")
_SIGNATURE = cache.CACHEDIR_TAG.splitlines()[0]
_LEFTOVER = ".part-*"
CACHE_FOLDERS = (
    "attached", "builder", "ccache", "contexts", "docker", "downloads", "host", "inspections", "locks", "logs",
    "manifests", "packs", "parts", "registry", "rootfs", "test-registry", "test-c", "test-host", "triton",
    "wheelhouse", "work",
)  # fmt: skip
"""What the build system keeps in its cache. Named, lest a DEEPINFER_BUILD_CACHE that was set to a home empties it."""


def run(
    *,
    images: str = "",
    docker: bool = False,
    cache: bool = False,
    host: bool = False,
    yes: bool = False,
    restore_host: Callable[[], list[str]] | None = None,
) -> int:
    """Remove what is named; without anything named, only what interrupted runs left behind.

    Args:
        images: globs and comma lists of image names ("cpu", "fla*", "*"): the image, its builder and its replica.
        docker: stop the dockerd that `./run` started.
        cache: remove the build cache; needs `yes`.
        host: put back the NCCL file that was replaced, and remove the host target's prefix.
        restore_host: what does so, and returns a line for each thing done.

    Raises:
        UsageError: the cache without `yes`.
        NothingSelected: `images` names nothing that is here or in the matrix.
        EnvironmentCannot: something cannot be removed, or is not ours after all.
    """
    if cache and not yes:
        raise UsageError(
            f"the whole build cache would be removed: {_cache_size()}",
            next_step="add --yes if that is meant",
        )
    if host:
        for line in (restore_host or _restore_host)():
            _say(line)
    if images:
        engine = Engine.connect()
        _require_known(engine, images)
        clean_images(engine, images)
    if docker:
        pid = docker_engine.stop()
        _say(f"stopped dockerd (process {pid})" if pid else "no dockerd that ./run started is running")
    if cache:
        remove_cache(_cache_root())
    elif not (images or docker or host):
        clean_leftovers()
    return 0


def _require_known(engine: Engine, pattern: str) -> None:
    """Tell names that are neither here nor in the matrix. One of the matrix that is not built is no mistake."""
    patterns = [part.strip() for part in pattern.split(",") if part.strip()]
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


def clean_images(engine: Engine, pattern: str, *, keep: Collection[str] = ()) -> list[OurImage]:
    """Remove containers and images of the targets that `pattern` names; returns the images that went.

    What somebody else's container or image still uses stays, and is named; so do the images with the ids of `keep`.
    """
    patterns = [part.strip() for part in pattern.split(",") if part.strip()]
    _remove_containers(engine, patterns)
    meant = [image for image in our_images(engine) if image.is_meant(patterns) and image.id not in keep]
    if not meant:
        known = sorted({image.target for image in our_images(engine) if image.target})
        _say(f"no image of ours matches {pattern!r}" + (f"; there are: {', '.join(known)}" if known else ""))
        return []
    gone: list[OurImage] = []
    refused: dict[str, str] = {}
    progress = True
    while meant and progress:  # an image can go only after those that were made from it
        progress = False
        for image in list(meant):
            problem = _remove_image(engine, image)
            refused[image.id] = problem
            if not problem:
                _say(f"removed {', '.join(image.names) or image.id[:19]} ({_gb(image.size)} with what others share)")
                gone.append(image)
                meant.remove(image)
                progress = True
    for image in meant:
        _say(f"kept {', '.join(image.names) or image.id[:19]}: {refused[image.id]}")
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


def _remove_containers(engine: Engine, patterns: Sequence[str]) -> None:
    for raw in _our_containers(engine):
        owner = raw.labels[f"{LABEL}.owner"]
        if "*" not in patterns and not any(fnmatchcase(_owning_target(raw), pattern) for pattern in patterns):
            continue
        if raw.labels.get(CACHE_LABEL) != cache.identity():
            end = f"`docker rm -f {raw.short_id}` ends it"
            _say(f"kept container {raw.short_id} ({owner}): it belongs to another build cache; {end}")
            continue
        if in_use(raw):
            process = raw.labels[PROCESS_LABEL].partition("-")[0]
            _say(f"kept container {raw.short_id} ({owner}): process {process}, which started it, still runs")
            continue
        if raw.status == "running" and _builds_run():
            _say(f"kept container {raw.short_id} ({owner}): a build is running")
            continue
        try:
            raw.remove(force=True)
        except APIError as problem:
            if problem.status_code != 404:
                _say(f"kept container {raw.short_id} ({owner}): {problem.explanation}")
                continue
        _say(f"removed container {raw.short_id} ({owner})")


def _our_containers(engine: Engine) -> list[Any]:
    """Containers that the project itself made: the owner's label is on none of its images, so it is not inherited."""
    return list(engine.client.containers.list(all=True, filters={"label": f"{LABEL}.owner"}, ignore_removed=True))


def _owning_target(container: Any) -> str:
    labels: dict[str, str] = container.labels
    return labels.get(f"{LABEL}.image") or labels[f"{LABEL}.owner"].partition("/")[0]


def _builds_run() -> bool:
    """Whether somebody works in this cache: builds, inspections and downloads hold a lock meanwhile."""
    names = [path.stem for path in cache.folder("locks").glob("*.lock")]
    return any(cache.is_locked(name) for name in names)


def clean_leftovers() -> None:
    """Remove what interrupted runs left in the cache and in Docker; says what else there is to clean."""
    if _builds_run():
        _say("a build is running: its unfinished files stay")
        return
    freed = 0
    for path in sorted(cache.root().rglob(_LEFTOVER)):
        freed += size_of(path)
        remove(path)
    _say(f"removed unfinished files from {cache.root()} ({_gb(freed)})")
    if not docker_engine.refusal():
        engine = Engine.connect()
        _remove_containers(engine, ["*"])
        remove_unused_os_layers(engine)
        there = our_images(engine)
        if there:
            _say(f"kept {len(there)} images; `./run clean --image '*'` removes them")
    if docker_engine.started_by_us():
        _say("dockerd, started by ./run, goes on; `./run clean --docker` stops it")
    _say(f"kept the build cache ({_gb(size_of(cache.root()))}); `./run clean --cache --yes` removes it")


def remove_unused_os_layers(engine: Engine) -> list[OurImage]:
    """Remove the Debian layers of replicas (`deepinfer-base:os-…`) on which no image stands; returns them.

    A replica whose build was interrupted leaves some, which belong to no target's name.
    """
    if cache.is_locked("replica"):
        return []
    layers = {str(raw.id): list(raw.attrs["RootFS"].get("Layers") or ()) for raw in engine.images()}
    gone: list[OurImage] = []
    for image in our_images(engine):
        own = layers.get(image.id, [])
        used = any(id != image.id and other[: len(own)] == own for id, other in layers.items())
        if image.target.startswith("os-") and not used and not _remove_image(engine, image):
            _say(f"removed {', '.join(image.names)} ({_gb(image.size)}), on which no image stands")
            gone.append(image)
    return gone


def remove_cache(root: Path) -> None:
    """Remove the build cache, if it is one.

    Raises:
        EnvironmentCannot: no CACHEDIR.TAG of ours says so, a build or dockerd uses it, or NCCL's old file is kept
            by a record in it.
    """
    tag = root / "CACHEDIR.TAG"
    if root.is_symlink() or not tag.is_file() or not tag.read_text(errors="replace").startswith(_SIGNATURE):
        raise EnvironmentCannot(
            f"{root} is not removed: no CACHEDIR.TAG in it says that it is a cache",
            next_step="look at DEEPINFER_BUILD_CACHE; remove the folder by hand if it is the right one",
        )
    if (root / "host" / "nccl-replaced.json").exists():
        raise EnvironmentCannot(
            "the cache holds the record of an NCCL file that was replaced, without which it cannot be put back",
            next_step="run `./run clean --host` first",
        )
    if docker_engine.started_by_us():
        raise EnvironmentCannot(
            "the cache holds the log and the record of a dockerd that runs",
            next_step="run `./run clean --docker` first",
        )
    if _builds_run():
        raise EnvironmentCannot("a build is using the cache", next_step="wait for its end, or end it")
    freed = sum(size_of(root / name) for name in CACHE_FOLDERS)
    for name in (*CACHE_FOLDERS, *(path.name for path in root.glob(_LEFTOVER))):
        remove(root / name)
    strangers = sorted(path.name for path in root.iterdir() if path != tag)
    if strangers:
        _say(f"kept {root} itself: {', '.join(strangers[:5])} in it are not the build system's")
    else:
        remove(root)  # with the tag, which goes last: an interrupted removal can be repeated
    _say(f"removed the build cache {root} ({_gb(freed)})")


def _cache_root() -> Path:
    return cache.root()


def _cache_size() -> str:
    return f"{cache.root()} ({_gb(size_of(cache.root()))})"


def _restore_host() -> list[str]:
    from build.host.nccl import restore_nccl

    if cache.is_locked("host"):
        raise EnvironmentCannot(
            "the host is being built: its NCCL and its prefix are left alone",
            next_step="wait until that build has ended, or end it, and run the command again",
        )
    with cache.locked("host", waiting_for="build of the host"):
        lines = restore_nccl() or ["no NCCL file was replaced"]
        prefixes = cache.root() / "host"
        lines.append(f"removed {prefixes} ({_gb(size_of(prefixes))})")
        remove(prefixes)
    return lines


def size_of(path: Path) -> int:
    """Bytes on disk below a path; files with several links count once, links themselves are not followed."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for place in [path, *(path.rglob("*") if path.is_dir() and not path.is_symlink() else [])]:
        try:
            facts = place.lstat()
        except FileNotFoundError:
            continue
        if (facts.st_dev, facts.st_ino) not in seen:
            seen.add((facts.st_dev, facts.st_ino))
            total += facts.st_blocks * 512
    return total


def remove(path: Path) -> None:
    """Remove a file, a link (not what it names) or a whole folder, folders without write permission too."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return

    def unlock(function: Callable[..., Any], name: str, problem: Any) -> None:
        Path(name).parent.chmod(0o700)
        if Path(name).is_dir() and not Path(name).is_symlink():
            Path(name).chmod(0o700)
        function(name)

    try:
        shutil.rmtree(path, onerror=unlock)
    except OSError as problem:
        raise EnvironmentCannot(
            f"{path} cannot be removed whole: {problem.strerror or problem}",
            cause=f"a file in it belongs to another user than {os.geteuid()}",
            next_step="run the same command as that user or as root",
        ) from problem


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


def _say(text: str) -> None:
    print(f"clean: {text}", file=sys.stderr, flush=True)
