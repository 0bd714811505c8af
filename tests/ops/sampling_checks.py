"""What is asked of the sampling kernels in Triton beyond their cases, on a device or in the interpreter.

Run as a program (with TRITON_INTERPRET=1) it prints the answers as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import torch
import triton
import triton.language as tl

from deepinfer.ops import using
from deepinfer.ops.fused_sample import LogitsTransformInputs, SamplingKernelInputs, fused_sample
from deepinfer.ops.launch import launch
from deepinfer.ops.random_sampling import random_sampling
from deepinfer.ops.reference import exponential as reference
from deepinfer.ops.triton import exponential, inverse_cdf, mass, philox, sample_words
from deepinfer.ops.triton.fused_sample import COARSE, Plan, Writing, kernel_of

SEEDS = (0, 1, 12345, 2**63 - 1, 2**63, 2**64 - 1)
SUBSEQUENCES = (0, 1, 2048, 4097, -1, 300000002)
WORDS = 12


@triton.jit
def _words(seeds, subsequences, out, rows, count: tl.constexpr, block: tl.constexpr):
    row = tl.arange(0, block)
    seed = tl.load(seeds + row, mask=row < rows, other=0)
    subsequence = tl.load(subsequences + row, mask=row < rows, other=0)
    for index in range(count):
        word = philox.word(seed, subsequence, tl.zeros_like(seed) + index)
        tl.store(out + row * count + index, word, mask=row < rows)


@triton.jit
def _below(seeds, subsequences, total, out):
    row = tl.program_id(0)
    limit, seed, subsequence = tl.load(total), tl.load(seeds + row), tl.load(subsequences + row)
    tl.store(out + row * 2, inverse_cdf.below(limit, seed, subsequence))
    tl.store(out + row * 2 + 1, sample_words.below(limit, seed, subsequence))


@triton.jit
def _exponentials(x, out, count: tl.constexpr):
    place = tl.arange(0, count)
    tl.store(out + place, exponential.exp(tl.load(x + place)))


@triton.jit
def _masses(x, out, count: tl.constexpr):
    place = tl.arange(0, count)
    tl.store(out + place, mass.mass_of(tl.load(x + place)))


@triton.jit
def _picked(masses, number, out, count: tl.constexpr):
    """Lane, rest and place that a number picks, by inverse_cdf and by sample_words."""
    at = tl.program_id(0)
    own = tl.load(masses + tl.arange(0, count))
    wide = own.to(tl.int64) & 0xFFFFFFFF
    rho = tl.load(number + at)
    lane, rest = inverse_cdf.lane_of(wide, rho)
    tl.store(out + at * 6, lane)
    tl.store(out + at * 6 + 1, rest)
    tl.store(out + at * 6 + 2, inverse_cdf.place_of(wide, rho))
    lane, rest = sample_words.lane_of(own, rho)
    tl.store(out + at * 6 + 3, lane)
    tl.store(out + at * 6 + 4, rest)
    tl.store(out + at * 6 + 5, sample_words.place_of(own, rho))


def stream(device: str) -> dict[str, list[int] | list[list[int]]]:
    """The first words of each stream of seeds x subsequences, and a number below 2^31 drawn from each in two ways."""
    pairs = [(seed, subsequence) for seed in SEEDS for subsequence in SUBSEQUENCES]
    keys = torch.tensor([seed for seed, _ in pairs], dtype=torch.uint64).view(torch.int64).to(device)
    others = torch.tensor([one for _, one in pairs], device=device)
    out = torch.empty((len(pairs), WORDS), dtype=torch.int64, device=device)
    drawn = torch.empty((len(pairs), 2), dtype=torch.int64, device=device)
    launch(_words, (1,), keys, others, out, len(pairs), count=WORDS, block=64)
    launch(_below, (len(pairs),), keys, others, torch.tensor([2**31], device=device), drawn)
    return {"words": out.tolist(), "drawn": drawn[:, 0].tolist(), "drawn in words": drawn[:, 1].tolist()}


def exponentials_differ(device: str) -> int:
    """How many of 8192 values of exp differ in a bit from the reference's."""
    x = torch.cat((torch.linspace(-95, 1, 8000), torch.linspace(-1e-3, 1e-3, 188)))
    x = torch.cat((x, torch.tensor([0.0, -0.0, float("-inf"), float("nan")]))).to(device)
    out = torch.empty_like(x)
    launch(_exponentials, (1,), x, out, count=8192, enable_fp_fusion=False)
    return int((out.cpu().view(torch.int32) != reference.exp(x.cpu()).view(torch.int32)).sum())


def masses_differ(device: str) -> int:
    """How many of 65536 log-probabilities have another mass than their exponential: values all over, those where the
    power of two changes, those next to where a mass does, and the ends."""
    generator = torch.Generator().manual_seed(5)
    ends = [0.0, -0.0, 0.69, -21.487563, -21.99999, -22.0, -22.00001, -87.0, -3e38, float("-inf"), float("nan"), 1e-40]
    halves = ((torch.arange(-33, 1) - 0.5) / reference.LOG2_E).float()
    steps = (torch.arange(1, 2001) / 2**31).double().log().float()
    x = torch.cat((torch.tensor(ends), halves, steps))
    near = torch.cat([(x.view(torch.int32) + by).view(torch.float32) for by in (-2, -1, 0, 1, 2)])
    near = near[(near < 0.69) | near.isnan()]
    left = 65536 - len(near)
    x = torch.cat((near, -24 * torch.rand(left // 2, generator=generator), torch.linspace(-90, 0.69, left - left // 2)))
    out = torch.empty(65536, dtype=torch.int32, device=device)
    launch(_masses, (1,), x.to(device), out, count=65536, enable_fp_fusion=False)
    expected = (reference.exp(x).double() * 2**31).long()
    return int((out.cpu().long() & 0xFFFFFFFF != expected).sum())


def picks_differ(device: str) -> list[int]:
    """Numbers that pick another lane, rest or place from masses as words than from masses as int64."""
    generator = torch.Generator().manual_seed(6)
    masses = torch.rand(64, generator=generator).double() * (torch.rand(64, generator=generator) < 0.7)
    masses = (masses / masses.sum() * (2**32 - 70)).long()
    masses[5] += 2**32 - 1 - masses.sum()
    edges = masses.cumsum(0)
    numbers = torch.cat((edges - 1, edges, torch.randint(0, 2**32 - 1, (100,), generator=generator)))
    numbers = numbers[(numbers >= 0) & (numbers < 2**32 - 1)].to(device)
    out = torch.empty((len(numbers), 6), dtype=torch.int64, device=device)
    launch(_picked, (len(numbers),), masses.int().to(device), numbers, out, count=64)
    return numbers[(out[:, :3] != out[:, 3:]).any(1)].tolist()


def batches_differ(device: str, count: int, width: int) -> list[str]:
    """Which results of rows depend on the order of the rows, on how many there are, or on a second run."""
    generator = torch.Generator().manual_seed(7)
    stride = -(-width // 8) * 8

    def rows(scale: float) -> torch.Tensor:
        return (torch.randn(count, stride, generator=generator) * scale).to(device)[:, :width]

    logits, pool = rows(2.0), rows(2.0)
    pool.copy_(torch.log_softmax(pool, 1))
    given = {
        "temperatures": torch.rand(count, generator=generator) + 0.3,
        "top_ps": torch.tensor([0.9, 1.0, 0.5, 0.95])[torch.arange(count) % 4],
        "top_ks": torch.tensor([-1, 7, 100], dtype=torch.int32)[torch.arange(count) % 3],
        "seeds": torch.randint(-(2**63), 2**63 - 1, (count,), generator=generator),
        "positions": torch.randint(0, 9999, (count,), generator=generator, dtype=torch.int32),
        "is_verify": torch.arange(count) % 2 == 0,
        "drafts": torch.randint(-1, width, (count,), generator=generator, dtype=torch.int32),
    }
    given = {name: value.to(device) for name, value in given.items()}

    def sample(chosen: torch.Tensor) -> list[torch.Tensor]:
        here = {name: value[chosen] for name, value in given.items()}
        inputs = SamplingKernelInputs(
            LogitsTransformInputs(here["temperatures"], here["top_ps"], here["top_ks"]),
            here["seeds"],
            here["positions"],
        )
        fitting = torch.empty((len(chosen), stride), device=device)[:, :width]
        found = fused_sample(
            fitting.copy_(logits[chosen]),
            inputs,
            is_verify=here["is_verify"],
            last_nextn_token_logprobs=pool,
            last_next_n_token_ids=given["drafts"],
            mtp_info_read_rows=chosen.int(),
        )
        probabilities = fitting.copy_(torch.softmax(logits[chosen], 1))
        return [*map(_present, found), random_sampling(probabilities, here["seeds"], here["positions"])]

    everyone = torch.arange(count, device=device)
    once = sample(everyone)
    ways: dict[str, Callable[[], list[torch.Tensor]]] = {
        "again": lambda: sample(everyone),
        "reversed": lambda: [one.flip(0) for one in sample(everyone.flip(0))],
        "one by one": lambda: [torch.cat(parts) for parts in zip(*map(sample, everyone.split(1)), strict=True)],
        "split": lambda: [torch.cat(parts) for parts in zip(*map(sample, everyone.split(3)), strict=True)],
    }
    return [name for name, way in ways.items() if not all(map(torch.equal, once, way()))]


def plans_differ(device: str) -> list[str]:
    """Rows that a smaller plan filters differently: one that narrows brackets, or starts from a bound where top-k is 1
    or 2, as in a large vocabulary; its list is too short for some of them."""
    generator = torch.Generator().manual_seed(11)
    count, width = 13, 200
    rows = torch.randn(count, width, generator=generator)
    rows[1] *= 1e30
    rows[2] = torch.randint(-2, 3, (width,), generator=generator).float()
    rows[3, 1:] = 0.5
    rows[4, torch.rand(width, generator=generator) < 0.8] = float("-inf")
    rows[5, 9] = 80.0
    rows[6] = torch.where(torch.rand(width, generator=generator) < 0.5, 0.0, -0.0)
    rows[7] = rows[7] * 1e-3 + 100
    rows[10, 40:] = float("-inf")
    rows[11] = 1.5
    rows[12, 1:] = float("-inf")
    limits = [
        torch.tensor([1.0, 1.0, 0.5, 1.0, 30.0, 1.0, 1.0, 1e-5, 1.0, 1.0, 1.0, 1.0, 1.0]),
        torch.tensor([0.9, 0.95, 0.9, 0.5, 0.9, 1.0, 0.6, 0.9, 0.999999999, 0.95, 1.0, 1.0, 1.0]),
        torch.tensor([-1, -1, 150, 60, -1, 20, -1, 5, 199, 2, 1, 2, 2], dtype=torch.int32),
    ]
    usual, narrow = Plan.of(width), replace(Plan.of(width), part=64, capacity=4, steps=COARSE)
    found = []
    for plan, writing in ((usual, Writing(2, 8, 80)), (narrow, Writing(1, 4, 64))):
        out, workspace = torch.empty((count, width), device=device), torch.empty((count, 2), device=device)
        given = [one.to(device) for one in (rows, *limits)]
        arguments = [*given, None, None, None, out, None, given[0], None, None, None, None, None, 0, workspace]
        kernel_of(plan, writing, False, False)(*arguments)
        found.append(out.cpu().view(torch.int32))
    return [f"row {row}" for row in (found[0] != found[1]).any(1).nonzero()[:, 0].tolist()]


def ties_differ(device: str) -> list[str]:
    """Values of top-k where not the first k of as many ties as there are columns stay, wherever the k-th of them is."""
    width, part = 9000, 2048
    counts = [1, *(part * whole + by for whole in (1, 2, 3, 4) for by in (-1, 0, 1)), width - 1]
    top_k = torch.tensor(counts, dtype=torch.int32, device=device)
    logits = torch.full((len(counts), width), -0.5, device=device)
    ones = torch.ones(len(counts), device=device)
    out, workspace = torch.empty_like(logits), torch.empty((len(counts), 2), device=device)
    found = []
    for writing in (Writing(2, 8, 80), Writing(1, 4, 64)):
        given = [logits, ones, ones, top_k, None, None, None, out, None, logits, None, None, None, None, None, 0]
        kernel_of(Plan.of(width), writing, False, False)(*given, workspace)
        right = ((out > float("-inf")) == (torch.arange(width, device=device) < top_k[:, None])).all(1)
        found += [f"{writing}: {counts[row]}" for row in (~right).nonzero()[:, 0].tolist()]
    return found


def _present(value: torch.Tensor | None) -> torch.Tensor:
    assert value is not None
    return value


def answers(device: str, sizes: list[tuple[int, int]]) -> dict[str, object]:
    """All of the above on one device, by Triton. sizes: rows and columns of the batches."""
    with using("triton"):
        return {
            "stream": stream(device),
            "exponentials": exponentials_differ(device),
            "masses": masses_differ(device),
            "picks": picks_differ(device),
            "plans": plans_differ(device),
            "ties": ties_differ(device),
            "batches": [batches_differ(device, count, width) for count, width in sizes],
        }


if __name__ == "__main__":
    print(json.dumps(answers("cpu", [(4, 40), (2, 8200)])))
