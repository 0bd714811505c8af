"""The verb `clean`: says what goes and how much space that frees."""

from __future__ import annotations

from pathlib import Path

from build import cache as build_cache
from build.clean.folders import remove, remove_cache, remove_leftovers, size_of
from build.clean.images import (
    being_built,
    clean_images,
    our_images,
    remove_containers,
    remove_unused_os_layers,
    require_known,
)
from build.clean.words import gb, say
from build.containers import Engine
from build.errors import EnvironmentCannot, UsageError
from build.setup import dockerd, engine_answer


def run(
    *,
    images: str = "",
    docker: bool = False,
    cache: bool = False,
    host: bool = False,
    prefix: Path | None = None,
    yes: bool = False,
) -> int:
    """Remove what is named; without anything named, only what interrupted runs left behind.

    Args:
        images: globs and comma lists of image names ("cpu", "fla*", "*"): the image, its builder and its replica.
        docker: stop the dockerd that `./run` started; with containers that run in it only with `yes`.
        cache: remove the build cache; needs `yes`.
        host: put back the NCCL file that was replaced, and remove the host target's prefix.
        prefix: with `host`, the prefix that goes, if it is not the one in the build cache.

    Raises:
        UsageError: the cache without `yes`, a prefix without `host`.
        NothingSelected: `images` names nothing that is here or in the matrix.
        EnvironmentCannot: something cannot be removed, is being built, is in use, or is not ours after all.
    """
    if cache and not yes:
        raise UsageError(
            f"the whole build cache would be removed: {_cache_size()}",
            next_step="add --yes if that is meant",
        )
    if prefix is not None and not host:
        raise UsageError("--prefix goes with --host alone", next_step="add --host if that is meant")
    if docker:
        _refuse_while_dockerd_works(yes=yes)
    busy: list[str] = []
    if host:
        for line in _restore_host(prefix):
            say(line)
    if images:
        engine = Engine.connect()
        require_known(engine, images)
        busy = being_built(engine, images)
        clean_images(engine, images)
    if docker:
        pid = _stop_dockerd()
        say(f"stopped dockerd (process {pid})" if pid else "no dockerd that ./run started is running")
    if cache:
        remove_cache(build_cache.root())
    elif not (images or docker or host):
        clean_leftovers()
    if busy:
        raise EnvironmentCannot(
            f"not removed, for they are being built: {', '.join(busy)}",
            next_step="wait until that build has ended, or end it, and run the command again",
        )
    return 0


def _refuse_while_dockerd_works(*, yes: bool) -> None:
    """Raise EnvironmentCannot where a build, or a container of anybody's, would end with the dockerd of `./run`."""
    if dockerd.started_by_us() is None:
        return
    if build_cache.any_locked():
        raise _in_use()
    if yes or engine_answer.elsewhere() or engine_answer.refusal():
        return
    names = [str(container.name) for container in Engine.connect().client.containers.list(ignore_removed=True)]
    if names:
        raise EnvironmentCannot(
            f"containers run in the engine, and would end with it: {', '.join(names[:5])}",
            next_step="`docker ps` shows them; add --yes if that is meant",
        )


def _stop_dockerd() -> int | None:
    """Stop the dockerd of `./run`, unless a build has begun meanwhile; its process id, None if there is none."""
    with build_cache.alone() as alone:
        if alone:
            return dockerd.stop()
    if dockerd.started_by_us() is not None:
        raise _in_use()
    return None


def _in_use() -> EnvironmentCannot:
    return EnvironmentCannot("a build is using the engine", next_step="wait for its end, or end it")


def clean_leftovers() -> None:
    """Remove what interrupted runs left in the cache and in Docker; says what else there is to clean."""
    with build_cache.alone() as alone:
        if not alone:
            say("a build is running: its unfinished files stay")
            return
        remove_leftovers()
    if not engine_answer.refusal():
        engine = Engine.connect()
        remove_containers(engine, ["*"])
        remove_unused_os_layers(engine)
        there = our_images(engine)
        if there:
            say(f"kept {len(there)} images; `./run clean --image '*'` removes them")
    if dockerd.started_by_us():
        say("dockerd, started by ./run, goes on; `./run clean --docker` stops it")
    say(f"kept the build cache ({gb(size_of(build_cache.root()))}); `./run clean --cache --yes` removes it")


def _cache_size() -> str:
    return f"{build_cache.root()} ({gb(size_of(build_cache.root()))})"


def _restore_host(prefix: Path | None) -> list[str]:
    from build.host.nccl import restore_nccl
    from build.host.prefix import remove_prefix

    with build_cache.held_at_once("host") as held:
        if not held:
            raise EnvironmentCannot(
                "the host is being built: its NCCL and its prefix are left alone",
                next_step="wait until that build has ended, or end it, and run the command again",
            )
        lines = restore_nccl() or ["no NCCL file was replaced"]
        place = prefix or build_cache.root() / "host"
        lines.append(f"removed {place} ({gb(size_of(place))})")
        if prefix:
            remove_prefix(prefix)
        else:
            remove(place)
    return lines
