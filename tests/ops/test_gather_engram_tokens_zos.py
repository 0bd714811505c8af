"""`gather_engram_tokens_zos` (kernel_spec A.6)."""

from __future__ import annotations

import pytest
import torch

from deepinfer.ops.case import Case
from deepinfer.ops.execution import run
from deepinfer.ops.gather_engram_tokens_zos import gather_engram_tokens_zos
from tests.ops.three_ways import Interpreted, agrees_in_the_interpreter, agrees_on_a_gpu, every_case, small_cases


def ints(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@small_cases("gather_engram_tokens_zos")
def test_reference_against_a_loop(case: Case) -> None:
    call = case.call()
    outcome = run(case.factory, call, "reference", "cpu")
    width, ngram, pad, sentinel = call.parameters
    window, fresh, sampled, predict, accepted, remap, table, lengths, sums, out = (
        one.value.tolist() for one in call.arguments
    )

    def token(i: int, j: int, r: int) -> int:
        before = remap[i] if 0 <= remap[i] < len(sampled) else -1
        if r > j:
            rejected = width - 1 - (accepted[before] if before >= 0 else 0)
            return window[i][len(window[i]) - rejected + j - r]
        if before < 0:
            return fresh[i][j - r]
        raw = sampled[before] if r == j else predict[before][j - r - 1]
        return table[raw] if 0 <= raw < len(table) else sentinel

    for i in range(len(remap)):
        for j in range(lengths[i]):
            gram = [token(i, j, r) for r in range(ngram)]
            if sentinel in gram:
                first = gram.index(sentinel)
                gram[first:] = [pad] * (ngram - first)
            row = (sums[i - 1] if i else 0) + j
            if row < len(out):
                out[row] = gram
    assert outcome.results["out_ngram_token_ids"].tolist() == out


@small_cases("gather_engram_tokens_zos")
def test_interpreted(case: Case, interpreted: Interpreted) -> None:
    agrees_in_the_interpreter(case, interpreted)


@pytest.mark.gpu
@every_case("gather_engram_tokens_zos")
def test_on_a_gpu(case: Case) -> None:
    agrees_on_a_gpu(case)


def arguments() -> dict[str, object]:
    """Two sequences, two drafts, 3-grams; the first one had its first draft accepted, the other is fresh."""
    return {
        "win_compressed": ints([[91, 92, 93, 94], [95, 96, -1, -1]]),
        "curr_fresh": ints([[0, 0, 0], [31, 32, 33]]),
        "prev_sampled_token_ids": ints([1]),
        "prev_predict_token_ids": ints([[2, 3]]),
        "prev_num_accepted_tokens": ints([1]),
        "remap": ints([0, -1]),
        "lookup_table": ints([50, 51, 52]),
        "seqlens_q": ints([3, 1]),
        "cu_seqlens_q": ints([3, 4]),
        "out_ngram_token_ids": torch.full((5, 3), -5, dtype=torch.int32),
        "max_seqlen_q": 3,
        "max_ngram_size": 3,
        "engram_compressed_pad_token": 77,
        "image_sentinel": -1,
    }


def test_interface() -> None:
    given = arguments()
    gather_engram_tokens_zos(**given)  # type: ignore[arg-type]
    expected = [[51, 93, 92], [52, 51, 93], [77, 77, 77], [31, 96, 95], [-5, -5, -5]]
    assert given["out_ngram_token_ids"].tolist() == expected  # type: ignore[attr-defined]


@pytest.mark.parametrize("accepted", [3, 100, -3, -100])
def test_an_impossible_count_reads_nothing_outside(accepted: int) -> None:
    given = arguments() | {"prev_num_accepted_tokens": ints([accepted])}
    gather_engram_tokens_zos(**given)  # type: ignore[arg-type]
    assert given["out_ngram_token_ids"].tolist()[:2] == [[51, 77, 77], [52, 51, 77]]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"max_ngram_size": 0}, ValueError, "gather_engram_tokens_zos: max_ngram_size must be at least 1, not 0"),
        ({"max_ngram_size": 4}, ValueError, r"win_compressed must have the shape \[R, 5\]"),
        ({"lookup_table": torch.zeros(3)}, TypeError, "lookup_table must be int32, not float32"),
        ({"image_sentinel": 2**31}, ValueError, "image_sentinel must be at least"),
        ({"prev_num_accepted_tokens": ints([1, 2])}, ValueError, "prev_num_accepted_tokens has the shape"),
    ],
)
def test_refused(change: dict[str, object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        gather_engram_tokens_zos(**{**arguments(), **change})  # type: ignore[arg-type]
