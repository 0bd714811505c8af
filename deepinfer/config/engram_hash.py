"""How the n-gram memory hashes tokens to the rows of its tables (model_spec 3.10); follows from the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, count
from types import MappingProxyType

import numpy

from deepinfer.config.model import Engram


@dataclass(frozen=True)
class Hash:
    """One layer's hash: multipliers of the tokens, and for every (n, head) the prime and where its table begins."""

    multipliers: tuple[int, ...]
    primes: tuple[int, ...]
    offsets: tuple[int, ...]

    @property
    def rows(self) -> int:
        """Rows of the layer's table."""
        return sum(self.primes)


def hashes(engram: Engram) -> Mapping[int, Hash]:
    """The hash of every engram layer: primes that no layer shares, multipliers from the layer's id."""
    return _hashes(engram)


@lru_cache(maxsize=4)  # finding primes takes time, and every layer of an inventory asks
def _hashes(engram: Engram) -> Mapping[int, Hash]:
    seen: set[int] = set()
    found = {}
    for layer in engram.layers:
        primes: list[int] = []
        for _ in range(engram.max_ngram - 1):
            start = engram.vocab_size - 1
            for _ in range(engram.heads):
                start = next(n for n in count(start + 1) if n not in seen and _is_prime(n))
                seen.add(start)
                primes.append(start)
        bound = max(1, (2**63 - 1) // engram.compressed_vocab // 2)
        drawn = numpy.random.default_rng(10007 * layer).integers(0, bound, size=engram.max_ngram, dtype=numpy.int64)
        multipliers = tuple(int(one) * 2 + 1 for one in drawn)
        found[layer] = Hash(multipliers, tuple(primes), tuple(accumulate(primes[:-1], initial=0)))
    return MappingProxyType(found)


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % divisor for divisor in range(2, int(n**0.5) + 1))
