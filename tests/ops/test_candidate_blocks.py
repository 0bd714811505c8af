"""`candidate_blocks` (kernel_spec A.11)."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from deepinfer.ops import using
from deepinfer.ops.candidate_blocks import (
    candidate_block_max,
    get_candidate_compact_lens,
    restore_candidate_indices_inplace,
)
from deepinfer.ops.case import Case
from deepinfer.ops.execution import run
from tests.ops.three_ways import Interpreted, agrees_in_the_interpreter, agrees_on_a_gpu, every_case, small_cases

LARGEST = torch.finfo(torch.bfloat16).max


@small_cases("candidate_blocks")
def test_reference_against_a_loop(case: Case) -> None:
    call = case.call()
    values = [None if one.value is None else one.value.tolist() for one in call.arguments]
    results = run(case.factory, call, "reference", "cpu").results
    if case.factory == "candidate_block_max_tl":
        _check_scores(values, results, *call.parameters)
    elif case.factory == "get_candidate_compact_lens_tl":
        size = call.parameters[1]
        for blocks, valid, got in zip(values[0], values[1], results["compact_lens"].tolist(), strict=True):
            assert got == sum(min(max(valid - block * size, 0), size) for block in blocks if block >= 0)
    else:
        _check_restored(values, results["compact_indices"].tolist(), call.parameters[2])


def _check_scores(values: list[Any], results: Any, longest: int, size: int) -> None:
    rows, blocks = results["block_scores"].shape
    counts = results["valid_blocks"].tolist()
    assert counts[rows:] == [0] * (-rows % 4)
    for row, (logits, length) in enumerate(zip(values[0], values[1], strict=True)):
        length = min(max(length, 0), longest)
        assert counts[row] == min(-(-length // size), blocks)
        for block in range(counts[row] - 1):
            own = [x for x in logits[block * size : min((block + 1) * size, length)] if not math.isnan(x)]
            assert results["block_scores"][row, block] == min(max(own, default=-math.inf), LARGEST)
        if counts[row]:
            assert results["block_scores"][row, counts[row] - 1] == math.inf


def _check_restored(values: list[Any], restored: list[list[int]], size: int) -> None:
    for row, (compact, blocks) in enumerate(zip(values[0], values[1], strict=True)):
        offset = 0 if values[2] is None else values[2][row]
        for x, got in zip(compact, restored[row], strict=True):
            block = blocks[x // size] if 0 <= x < len(blocks) * size else -1
            assert got == (block * size + x % size + offset if block >= 0 else -1)


@small_cases("candidate_blocks")
def test_interpreted(case: Case, interpreted: Interpreted) -> None:
    agrees_in_the_interpreter(case, interpreted)


@pytest.mark.gpu
@every_case("candidate_blocks")
def test_on_a_gpu(case: Case) -> None:
    agrees_on_a_gpu(case)


def test_published_rows() -> None:
    blocks = torch.tensor([[5, -1, 2]], dtype=torch.int32)
    compact = torch.tensor([[0, 9, 17, 24, -3]], dtype=torch.int32)
    with using("reference"):
        restore_candidate_indices_inplace(compact, blocks, 8, torch.tensor([100], dtype=torch.int32))
        assert compact.tolist() == [[140, -1, 117, -1, -1]]
        chosen = torch.tensor([[2, 0, -1, 5]], dtype=torch.int32)
        assert get_candidate_compact_lens(chosen, torch.tensor([19], dtype=torch.int32), 8).tolist() == [11]


def test_scores_are_padded_rows() -> None:
    logits = torch.arange(40, dtype=torch.bfloat16).view(1, 40).repeat(3, 1)[:, :37].contiguous()
    storage = torch.zeros((3, 48), dtype=torch.bfloat16)
    storage[:, :37] = logits
    with using("reference"):
        scores, valid = candidate_block_max(storage[:, :37], torch.tensor([37, 16, 0], dtype=torch.int32), 8)
    assert scores.shape == (3, 512) and valid.tolist() == [5, 2, 0]
    assert scores[0, :5].tolist() == [7.0, 15.0, 23.0, 31.0, math.inf] and scores[1, :2].tolist() == [7.0, math.inf]


def test_no_blocks_restore_to_nothing() -> None:
    compact = torch.tensor([[0, 9]], dtype=torch.int32)
    with using("reference"):
        restore_candidate_indices_inplace(compact, torch.zeros((1, 0), dtype=torch.int32), 8)
    assert compact.tolist() == [[-1, -1]]


_LOGITS = torch.zeros((2, 32), dtype=torch.bfloat16)
_LENS = torch.zeros(2, dtype=torch.int32)
_TABLE = torch.zeros((2, 8), dtype=torch.int32)


@pytest.mark.parametrize(
    ("function", "arguments", "error", "text"),
    [
        (candidate_block_max, (_LOGITS.float(), _LENS, 8), TypeError, "logits must be bfloat16, not float32"),
        (candidate_block_max, (_LOGITS, _LENS, 12), ValueError, "block_size must be one of 8, 16, not 12"),
        (candidate_block_max, (_LOGITS, _LENS[:1], 8), ValueError, "n = 2"),
        (candidate_block_max, (_LOGITS[:, :24].contiguous(), _LENS, 8), ValueError, "multiples of 16"),
        (get_candidate_compact_lens, (_TABLE.long(), _LENS, 8), TypeError, "candidate_blocks must be int32"),
        (get_candidate_compact_lens, (_TABLE[:, :5].contiguous(), _LENS, 8), ValueError, "multiples of 8"),
        (get_candidate_compact_lens, (_TABLE, _LENS, 4), ValueError, "block_size must be one of"),
        (restore_candidate_indices_inplace, (_TABLE, _TABLE[:1], 8), ValueError, "n = 2"),
        (restore_candidate_indices_inplace, (_TABLE, _TABLE, 8, _LENS.long()), TypeError, "output_idx_offset"),
        (restore_candidate_indices_inplace, (_TABLE.T, _TABLE, 8), ValueError, "the last dimension of compact_ind"),
    ],
)
def test_refused(function: Any, arguments: tuple[object, ...], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        function(*arguments)
