"""Build contexts that leave no copy behind.

BuildKit keeps what it was sent, one copy for each path of a context, until somebody prunes it: for a base that is 3 GB
of wheels. So a context has a fixed path, under which a second build sends only what differs, and in the end an empty
context is sent from there, which empties the copy.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from docker.errors import APIError

from build import cache
from build.call import CallFailed
from build.containers import Engine

_NOTHING = "deepinfer-base:nothing"


@contextlib.contextmanager
def build_context(engine: Engine, name: str) -> Iterator[Path]:
    """An empty folder `contexts/<name>` of the cache to be filled and built from; removed, with the engine's copy.

    The caller holds a lock: two builds must not fill one context.
    """
    folder = cache.folder("contexts") / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _empty_copy(engine, folder)


def _empty_copy(engine: Engine, folder: Path) -> None:
    recipe = cache.folder("contexts/nothing") / "Dockerfile"
    cache.atomic_write(recipe, "FROM scratch\nCOPY . /\n")
    folder.mkdir()
    # Only space is at stake: a build that fails here (a full disk, an engine that died) has said so before.
    with contextlib.suppress(CallFailed, APIError):
        engine.build(folder, tag=_NOTHING, dockerfile=recipe, log=cache.folder("logs") / "contexts.log", timeout=60)
        engine.client.images.remove(_NOTHING)
    folder.rmdir()


def place(source: Path, target: Path) -> None:
    """Put a file into a context without copying it, where the file system allows that."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copy2(source, target)
