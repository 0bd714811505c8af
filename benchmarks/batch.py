"""How long the host takes to pack a decode step: `python -m benchmarks.batch [--sequences 256] [--context 4096]`.

No device and no weights: tokens, block tables and n-grams of the real model's sizes, packed for a CPU, with the
compiled part if it is there. Each step has a token more a sequence, as in the engine. Prints medians in milliseconds.
"""

from __future__ import annotations

import functools
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from benchmarks.arguments import count
from benchmarks.ops import model as real
from deepinfer import native
from deepinfer.command_line import Parser, exit_code
from deepinfer.config.constraints import BLOCK_TOKENS
from deepinfer.model.batch import Batch, RowSpec, Vocabulary
from deepinfer.model.block_tables import BlockTables


def main(argv: Sequence[str]) -> int:
    """Measure and print; returns the exit code."""
    parser = Parser(prog="python -m benchmarks.batch", description=__doc__)
    parser.add_argument("--sequences", type=count, default=256, metavar="N", help="that decode (default: 256)")
    parser.add_argument("--context", type=count, default=4096, metavar="N", help="tokens of each (default: 4096)")
    parser.add_argument("--steps", type=count, default=60, metavar="N", help="that are packed (default: 60)")
    given = parser.parse_args(argv)
    found = {
        "sequences": given.sequences,
        "context": given.context,
        "compiled": not native.load()[1],
        "rows_ms": _rows_ms(given.sequences, given.context, given.steps),
        "anew_ms": _batch_ms(given.sequences, given.context, given.steps, None),
        "kept_ms": _batch_ms(given.sequences, given.context, given.steps, BlockTables()),
    }
    print(json.dumps(found, indent=1))
    return 0


class _Stories:
    """Sequences of random tokens, and their rows step by step."""

    def __init__(self, sequences: int, context: int, steps: int) -> None:
        chance = random.Random(7)
        self.tokens = [[chance.randrange(real.VOCAB) for _ in range(context)] for _ in range(sequences)]
        self.blocks = [
            [chance.randrange(1, 10**6) for _ in range(-(-(context + steps) // BLOCK_TOKENS))] for _ in self.tokens
        ]

    def rows(self) -> list[RowSpec]:
        """A row a sequence, each with one token more than before."""
        for tokens in self.tokens:
            tokens.append(tokens[-1] * 7919 % real.VOCAB)
        return [
            RowSpec(tokens, len(tokens) - 1, 1, slot, blocks)
            for slot, (tokens, blocks) in enumerate(zip(self.tokens, self.blocks, strict=True), 1)
        ]


def _vocabulary() -> Vocabulary:
    table = np.random.default_rng(7).integers(0, real.COMPRESSED_VOCAB, real.VOCAB, dtype=np.int32)
    return Vocabulary(table, real.NGRAM, int(table[2]))


def _rows_ms(sequences: int, context: int, steps: int) -> float:
    stories = _Stories(sequences, context, steps)
    return _median([_seconds(stories.rows) for _ in range(steps)])


def _batch_ms(sequences: int, context: int, steps: int, tables: BlockTables | None) -> float:
    stories, vocabulary, times = _Stories(sequences, context, steps), _vocabulary(), []
    for _ in range(steps):
        packed = functools.partial(Batch.of, stories.rows(), decode=True, vocabulary=vocabulary, tables=tables)
        times.append(_seconds(packed))
    return _median(times)


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _median(seconds: list[float]) -> float:
    return round(statistics.median(seconds[len(seconds) // 6 :]) * 1e3, 3)


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(exit_code(lambda: main(sys.argv[1:])))
