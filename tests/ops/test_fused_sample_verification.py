"""Verification of drafts by `fused_sample` (kernel_spec B.3)."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from deepinfer.ops.fused_sample import LogitsTransformInputs, SamplingKernelInputs, fused_sample
from tests.ops.test_fused_sample import INF, inputs, logs, transform

LIMITS = ("temperatures", "top_ps", "top_ks")
TARGETS = (1e-10, 1e-6, 1e-3, 0.3, 0.5, 0.9, 1 - 1e-4, 1 - 1e-9)


def verify(target: torch.Tensor, draft: torch.Tensor, drafts: list[int], seeds: list[int]) -> list[list[Any]]:
    """[accept, token, accept_probs] of rows that verify, at position 20."""
    count = len(seeds)
    found = fused_sample(
        target.repeat(count, 1),
        inputs(seeds, [20] * count),
        is_verify=torch.ones(count, dtype=torch.bool),
        last_nextn_token_logprobs=draft.repeat(count, 1),
        last_next_n_token_ids=torch.tensor(drafts, dtype=torch.int32),
    )
    assert found[1] is not None and found[2] is not None and found[4] is not None
    return [list(row) for row in zip(found[2].tolist(), found[1].tolist(), found[4].tolist(), strict=True)]


def test_conformance_vectors_of_verification() -> None:
    """kernel_spec's vectors 10 and 11."""
    found = verify(logs(0.6, 0.3, 0.1), logs(0.2, 0.5, 0.3), [0, 1, 2, -1], [20] * 4)
    assert [row[:2] for row in found] == [[True, 0], [True, 1], [False, 0], [False, 0]]
    bits = torch.tensor([row[2] for row in found]).view(torch.int32)
    # exp of the vector's author and ours may differ in a last bit, thus the residual in a few of its 2^31 steps.
    assert (bits - 0x3F1998F2).abs().max() <= 2
    found = verify(logs(0.5, 0.3, 0.2), logs(0.2, 0.2, 0.6), [2, 2, 2], [0, 3, 1])
    assert [row[:2] for row in found] == [[False, 0], [False, 1], [True, 2]]
    assert all(abs(row[2] - 0.59998) < 1e-5 for row in found)


def test_an_empty_residual_gives_the_largest_logit() -> None:
    """The draft covers the target, and rejection is forced: the lowest of the largest logits."""
    target = logs(0.2, 0.3, 0.3, 0.2)
    found = verify(target, torch.zeros(1, 32), [-1, 40], [1, 2])
    assert found == [[False, 1, 1.0], [False, 1, 1.0]]


def draft_and_verify(target: float, draft: float, count: int, device: str) -> None:
    """Two tokens, drafted with one probability and verified against another, over as many seeds as `count`.

    No token comes out more often than (1 + e) p N, where 1 - e is the draft's penalty, and Bernstein's bound for a
    chance of 1e-9; for two tokens that bounds both from below too. Acceptance is as likely as it was said to be.
    """
    rows = [logs(one, 1 - one).to(device).repeat(count, 1) for one in (target, draft)]
    how = SamplingKernelInputs(
        LogitsTransformInputs(*(getattr(transform(count), name).to(device) for name in LIMITS)),
        torch.arange(count, device=device),
        torch.full((count,), 8, dtype=torch.int32, device=device),
    )
    values, drafts = fused_sample(rows[1], how, tag="mtp")[:2]
    assert drafts is not None
    _, tokens, accept, selected, chances = fused_sample(
        rows[0],
        how,
        is_verify=torch.ones(count, dtype=torch.bool, device=device),
        last_nextn_token_logprobs=values,
        last_next_n_token_ids=drafts,
    )
    assert tokens is not None and accept is not None and selected is not None and chances is not None
    counts = torch.bincount(tokens, minlength=2).tolist()
    assert len(counts) == 2
    excess, log_chance = 1 - math.exp(-5e-5), math.log(1e9)
    for found, p in zip(counts, (target, 1 - target), strict=True):
        spread = math.sqrt(2 * count * p * (1 - p) * log_chance) + log_chance
        assert found <= (1 + excess) * p * count + spread, (target, draft, counts)
    chance = float(chances[0])
    spread = math.sqrt(2 * count * chance * (1 - chance) * log_chance) + log_chance
    assert abs(int(accept.sum()) - chance * count) < spread + 1e-4 * count
    assert selected.equal(values.gather(1, drafts.long()[:, None])[:, 0])
    assert tokens[accept].equal(drafts[accept])


@pytest.mark.parametrize("draft", [1e-3, 0.5, 1 - 1e-6])
@pytest.mark.parametrize("target", [1e-3, 0.3, 0.999])
def test_verified_tokens_follow_the_target(target: float, draft: float) -> None:
    draft_and_verify(target, draft, 10_000, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("draft", [1e-6, 0.5, 1 - 1e-4])
@pytest.mark.parametrize("target", TARGETS)
def test_verified_tokens_follow_the_target_on_a_gpu(target: float, draft: float) -> None:
    draft_and_verify(target, draft, 2**21, "cuda")


def test_fresh_rows_beside_rows_that_verify() -> None:
    rows = torch.randn(4, 40, generator=torch.Generator().manual_seed(8))
    how = inputs([7] * 4, [1, 2, 3, 4], k=12)
    alone = fused_sample(rows, how)
    pool = torch.zeros(1, 40)
    found = fused_sample(
        rows,
        how,
        is_verify=torch.tensor([False, True, False, True]),
        last_nextn_token_logprobs=pool,
        last_next_n_token_ids=torch.tensor([39], dtype=torch.int32),
        mtp_info_read_rows=torch.tensor([0, 0, 0, 5], dtype=torch.int32),
    )
    assert alone[1] is not None and found[1] is not None and found[2] is not None and found[3] is not None
    assert found[0].equal(alone[0]) and found[1][[0, 2]].equal(alone[1][[0, 2]])
    assert found[2][[0, 2]].all() and not bool(found[2][3])
    assert found[3].tolist() == [0.0, 0.0, 0.0, -INF]
