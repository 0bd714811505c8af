"""How full the disks are: before a build of an image, and at most during it."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from build import cache
from build.errors import EnvironmentCannot

NEEDED_GB = {"cpu": 10.0}
"""Room for an image with its replica, its builder and BuildKit's copies; DEFAULT_GB where none is named."""
DEFAULT_GB = 22.0


class Disks:
    """The disks that a run fills: of the build cache, of temporary files, and of the engine once it is known."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[Path, int]] = {}
        for place in (cache.root(), Path(tempfile.gettempdir())):
            self.watch(place)

    def watch(self, place: Path) -> None:
        """Count the disk of this folder as well, from now on."""
        self._before.setdefault(place.stat().st_dev, (place, shutil.disk_usage(place).used))

    @property
    def places(self) -> list[Path]:
        """A folder on each of them."""
        return [place for place, _ in self._before.values()]

    def grown(self) -> float:
        """GB that lie on them now and did not when they were first looked at."""
        return sum(shutil.disk_usage(place).used - used for place, used in self._before.values()) / 1e9


def check_room(image: str, disks: Sequence[Path]) -> None:
    """Stop before a build that cannot fit. Raises EnvironmentCannot with both figures."""
    needed = NEEDED_GB.get(image, DEFAULT_GB)
    for disk in disks:
        free = shutil.disk_usage(disk).free / 1e9
        if free < needed:
            raise EnvironmentCannot(
                f"{image} with its replica and its builder takes {needed:.0f} GB, and {disk} has {free:.1f} GB free",
                next_step="./run clean --image '*', docker builder prune, or a larger disk",
            )


@contextmanager
def peak_use(disks: Sequence[Path], *, every: float = 1.0) -> Iterator[list[float]]:
    """A list of one number: by how many GB the disks that hold `disks` had grown at most during the block."""
    peak = [0.0]
    places = list({path.stat().st_dev: path for path in disks}.values())
    before = [shutil.disk_usage(place).used for place in places]
    ended = threading.Event()

    def look() -> None:
        grown = sum(shutil.disk_usage(place).used - used for place, used in zip(places, before, strict=True))
        peak[0] = max(peak[0], grown / 1e9)

    def watch() -> None:
        while not ended.wait(every):
            look()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        ended.set()
        watcher.join()
        look()
