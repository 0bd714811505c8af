"""What is measured: entries for every factory, each at the shapes of the real model.

Rows are tokens of a step (query rows) or, for kernels that work request by request, requests. What is V = 129280 wide
stops at 4096 rows (2 GB a tensor), what only a decode step launches too.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.ops.entries import cache, context_parallel, decode, hidden, images, indices, sampling, transform
from benchmarks.ops.entry import Entry

_MODULES = (hidden, transform, cache, indices, sampling, decode, context_parallel, images)


def entries(factories: Sequence[str]) -> list[Entry]:
    """The entries of these factories.

    Raises:
        ValueError: a factory has none, or two entries have one key.
    """
    found = [one for module in _MODULES for one in module.ENTRIES if one.factory in factories]
    keys = [one.key for one in found]
    if twice := sorted({key for key in keys if keys.count(key) > 1}):
        raise ValueError(f"two entries are called {', '.join(twice)}")
    if lacking := set(factories) - {one.factory for one in found}:
        raise ValueError(f"no entry measures {', '.join(sorted(lacking))}")
    return found
