"""Which versions of an optional package the engine works with, where not all do."""

from __future__ import annotations

import re
from dataclasses import dataclass

_VERSION = re.compile(r"v?(\d+)(?:\.(\d+))?(?:\.(\d+))?(?:\.\d+)*[-_.]?((?:a|b|c|rc|alpha|beta|pre|dev)\d*)?")


@dataclass(frozen=True)
class Range:
    """Versions from `oldest` on and below `below`, three numbers each.

    too_old, too_new: why those before and after do not do.
    """

    package: str
    oldest: tuple[int, int, int]
    below: tuple[int, int, int]
    too_old: str
    too_new: str

    def __str__(self) -> str:
        low, high = (".".join(map(str, one)).removesuffix(".0") for one in (self.oldest, self.below))
        return f">={low},<{high}"

    @property
    def install(self) -> str:
        """The command that gets one."""
        return f"pip install '{self.package}{self}'"

    def problem(self, version: str) -> str:
        """'' for a version that fits, else why it does not. One before a release (rc, dev) is older than that."""
        found = _VERSION.match(version.strip().lower())
        if not found:
            return f"{version!r} is no version"
        numbers = (int(found[1]), int(found[2] or 0), int(found[3] or 0))
        if numbers < self.oldest or (numbers == self.oldest and found[4]):
            return self.too_old
        return self.too_new if numbers >= self.below else ""


XGRAMMAR = Range(
    "xgrammar",
    (0, 2, 9),
    (0, 3, 0),
    "older ones take some JSON schemas and patterns for wider than they are",
    "newer ones may take schemas otherwise, and were not tried",
)
RANGES = {XGRAMMAR.package: XGRAMMAR}
