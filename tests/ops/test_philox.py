"""The random stream (kernel_spec B.2), and the exp that draws share."""

from __future__ import annotations

import functools
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from deepinfer.ops.reference import exponential, inverse_cdf, philox

SEEDS = (0, 1, 12345, 2**63 - 1, 2**63, 2**64 - 1)
SUBSEQUENCES = (0, 1, 2048, 4097, -1, 300000002)
GRID = [(seed, subsequence) for seed in SEEDS for subsequence in SUBSEQUENCES]


def by_definition(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10 in whole numbers of any size."""
    for _ in range(10):
        first, second = counter[0] * 0xD2511F53, counter[2] * 0xCD9E8D57
        counter = [
            (second >> 32) ^ counter[1] ^ key[0],
            second % 2**32,
            (first >> 32) ^ counter[3] ^ key[1],
            first % 2**32,
        ]
        key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
    return counter


def stream_by_definition(seed: int, subsequence: int, count: int) -> list[int]:
    wide = subsequence % 2**64
    blocks = range(-(-count // 4))
    words = [by_definition([one, 0, wide % 2**32, wide >> 32], [seed % 2**32, seed >> 32]) for one in blocks]
    return [word for block in words for word in block][:count]


def below_by_definition(words: list[int], total: int) -> int:
    limit = (2**32 - 1) // total * total
    return next(word for word in words if word < limit) % total


def keys(seeds: list[int]) -> torch.Tensor:
    return torch.tensor(seeds, dtype=torch.uint64)


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_known_answers_published_with_random123(counter: str, key: str, words: str) -> None:
    c, k = ([int(one, 16) for one in text.split()] for text in (counter, key))
    subsequence = torch.tensor([c[2] | c[3] << 32], dtype=torch.uint64).view(torch.int64)
    found = philox.block(keys([k[0] | k[1] << 32]), subsequence, c[0] | c[1] << 32)
    assert " ".join(f"{int(one):08x}" for one in found) == words
    assert by_definition(c, k) == [int(one, 16) for one in words.split()]


@pytest.mark.parametrize(
    ("seed", "subsequence", "words", "uniform"),
    [
        (0, 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8 f8e4cca4 5cb200db", 0x3ECC4FD2),
        (42, 7, "67ee6f2c e55410cc 6c7eca35 557398d3 e5dde940 600f6196", 0x3ECFDCDE),
        (2**64 - 1, -1, "3d3be307 716983d6 70094bed 36c3cf91 933684c8 53e5a0af", 0x3E74EF8C),
        (1234567890123456789, 300000002, "86f87b63 6e22276a e06475c1 d569adfc", 0x3F06F87B),
    ],
)
def test_streams_of_curand(seed: int, subsequence: int, words: str, uniform: int) -> None:
    wanted = words.split()
    drawn = [philox.word(keys([seed]), torch.tensor([subsequence]), index) for index in range(len(wanted))]
    assert [f"{int(one):08x}" for one in drawn] == wanted
    assert int(philox.uniform(drawn[0]).view(torch.int32)) == uniform


def test_reference_over_seeds_and_subsequences() -> None:
    seeds, subsequences = keys([seed for seed, _ in GRID]), torch.tensor([one for _, one in GRID])
    found = torch.stack([philox.word(seeds, subsequences, index) for index in range(12)], 1).tolist()
    assert found == [stream_by_definition(seed, subsequence, 12) for seed, subsequence in GRID]


def test_subsequences_wrap_around_in_32_bits() -> None:
    positions = torch.tensor([0, 5, 20000048, 2**31 - 1, -1], dtype=torch.int32)
    assert philox.subsequence(positions, 2).tolist() == [2, 17, 60000146, 2**31 - 1, -1]
    assert philox.subsequence(positions, 0).tolist() == [0, 15, 60000144, 2**31 - 3, -3]


@pytest.mark.parametrize("total", [1, 2, 3, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1])
def test_words_beyond_the_limit_are_drawn_again(total: int) -> None:
    seeds = list(range(300))
    words = [stream_by_definition(seed, 9, 40) for seed in seeds]
    limit = (2**32 - 1) // total * total
    attempts = [next(place for place, word in enumerate(one) if word < limit) for one in words]
    if total in (2**31, 2**31 + 1):
        assert max(attempts) >= 5, "no stream of these goes on to the next counter"
    found = inverse_cdf.below(torch.full((300,), total), keys(seeds), torch.full((300,), 9))
    assert found.tolist() == [below_by_definition(one, total) for one in words]


def test_words_are_spread_evenly() -> None:
    """Chi-square of the top byte over streams, and over positions of one stream: 255 degrees, p > 1e-4 either way."""
    over_seeds = philox.word(torch.arange(65536), torch.full((65536,), 3), 0)
    over_positions = philox.word(torch.full((65536,), 99), philox.subsequence(torch.arange(65536).int(), 0), 0)
    for words in (over_seeds, over_positions):
        counts = torch.bincount(words >> 24, minlength=256).double()
        assert 175 < float(((counts - 256) ** 2 / 256).sum()) < 345


def test_exp_is_within_two_units_in_the_last_place() -> None:
    x = torch.linspace(-86.9, 1.0, 400_001)
    exact = x.double().exp()
    assert float(((exponential.exp(x).double() - exact).abs() / exact).max()) < 2 * 2.0**-24
    special = torch.tensor([0.0, -0.0, -math.inf, math.nan, -87.5, 1e-8])
    assert exponential.exp(special).tolist() == [1.0, 1.0, 0.0, 0.0, 0.0, 1.0]


@functools.cache
def interpreted() -> dict[str, Any]:
    """Triton's answers from its interpreter, in a process of its own."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(Path(__file__).with_name("sampling_checks.py"))],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def is_right(answers: dict[str, Any]) -> None:
    words = [stream_by_definition(seed, subsequence, 40) for seed, subsequence in GRID]
    assert answers["stream"]["words"] == [one[:12] for one in words]
    assert answers["stream"]["drawn"] == [below_by_definition(one, 2**31) for one in words]
    assert max(next(place for place, word in enumerate(one) if word < 2**31) for one in words) >= 4
    assert answers["stream"]["drawn in words"] == answers["stream"]["drawn"]
    assert answers["exponentials"] == answers["masses"] == 0
    assert answers["picks"] == []
    assert answers["plans"] == answers["ties"] == []
    assert not any(answers["batches"]), answers["batches"]


def test_interpreted() -> None:
    is_right(interpreted())


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    from tests.ops.sampling_checks import answers

    is_right(answers("cuda", [(64, 40), (64, 4096), (64, 8200), (64, 129280)]))
