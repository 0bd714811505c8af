"""`compress` (kernel_spec A.12)."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from deepinfer.ops import using
from deepinfer.ops.case import Case
from deepinfer.ops.compress import compress_and_update_state_decode, compress_and_update_state_prefill
from deepinfer.ops.execution import run
from tests.ops.three_ways import Interpreted, agrees_in_the_interpreter, agrees_on_a_gpu, every_case, small_cases


def _combined(window: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    scores, latents = (torch.stack(side).double() for side in zip(*window, strict=True))
    return (latents * torch.softmax(scores, 0)).sum(0)


def _prefill_by_token(values: dict[str, Any], r: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(state, output) as the spec words it, token by token."""
    state, slots = values["state_cache"].clone(), values["state_block_idx"].tolist()
    cu_q, cu_k, cu_c = (values[f"cu_{x}"].tolist() for x in ("seqlens_q", "seqlens_k", "compressed_seqlens_q"))
    mirror, ring = values["mirror_cp_reverse_index"], state.shape[1]
    out = torch.zeros(values["kv_compressed"].shape, dtype=torch.float64)
    for i, slot in enumerate(slots):
        qlen, klen = cu_q[i + 1] - cu_q[i], cu_k[i + 1] - cu_k[i]
        rows = [token if mirror is None else int(mirror[token]) for token in range(cu_q[i], cu_q[i + 1])]
        own = {klen - qlen + j: (values["score"][row], values["latent"][row]) for j, row in enumerate(rows)}
        for entry in range((klen - qlen) // r, klen // r):
            places = range(entry * r, entry * r + r)
            window = [own[p] if p in own else tuple(values["state_cache"][slot, p % ring]) for p in places]
            out[cu_c[i] + entry - (klen - qlen) // r] = _combined(window)
        for place in sorted(own)[-ring:]:
            state[slot, place % ring] = torch.stack(own[place])
    return state, out


def _decode_by_row(values: dict[str, Any], r: int) -> tuple[torch.Tensor, torch.Tensor]:
    state = values["state_cache"].clone()
    rows = list(zip(values["state_block_idx"].tolist(), values["context_lens"].tolist(), strict=True))
    ring, out = state.shape[1], torch.zeros(values["kv_compressed"].shape, dtype=torch.float64)
    inert = {row for row, (slot, length) in enumerate(rows) if length < 1 or not 0 <= slot < len(state)}
    for row, (slot, length) in enumerate(rows):
        if row not in inert:
            state[slot, (length - 1) % ring] = torch.stack((values["score"][row], values["latent"][row]))
    for row, (slot, length) in enumerate(rows):
        if row not in inert and length % r == 0:
            out[row] = _combined([tuple(state[slot, place % ring]) for place in range(length - r, length)])
    return state, out


@small_cases("compress")
def test_reference_against_a_loop(case: Case) -> None:
    call = case.call()
    values = {one.name: one.value for one in call.arguments}
    by_hand = _prefill_by_token if "prefill" in case.factory else _decode_by_row
    state, out = by_hand(values, call.named["COMPRESS_RATIO"])
    results = run(case.factory, call, "reference", "cpu").results
    assert results["state_cache"].equal(state)
    torch.testing.assert_close(results["kv_compressed"].double(), out, atol=1e-6, rtol=2**-8 * 1.01)


@small_cases("compress")
def test_interpreted(case: Case, interpreted: Interpreted) -> None:
    agrees_in_the_interpreter(case, interpreted)


@pytest.mark.gpu
@every_case("compress")
def test_on_a_gpu(case: Case) -> None:
    agrees_on_a_gpu(case)


def test_published_window() -> None:
    score, latent = torch.tensor([[0.0], [1.0]]), torch.tensor([[2.0], [4.0]])
    state = torch.zeros((2, 3, 2, 1))[..., :1]
    sequence, bounds = torch.tensor([1], dtype=torch.int32), torch.tensor([0, 2], dtype=torch.int32)
    entries = torch.tensor([0, 1], dtype=torch.int32)
    with using("reference"):
        out = compress_and_update_state_prefill(
            *_wide(score, latent, state), sequence, entries[:1], bounds, bounds, entries, 2
        )
    assert out[0, 0].item() == 3.46875


def _wide(score: torch.Tensor, latent: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The same in every of 8 channels."""
    return score.repeat(1, 8), latent.repeat(1, 8), state.repeat(1, 1, 1, 8)


@pytest.mark.parametrize("chunks", [(5,), (1, 4), (2, 3), (1, 1, 1, 1, 1)])
def test_chunked_prefill_and_decode_give_what_one_chunk_gives(chunks: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(7)
    score, latent = torch.randn((6, 8), generator=generator), torch.randn((6, 8), generator=generator)
    state, slot = torch.full((2, 3, 2, 8), math.nan), torch.tensor([1], dtype=torch.int32)
    got, begin = [], 0
    with using("reference"):
        for new in chunks:
            rows = slice(begin, begin + new)
            entries = max(1, (begin + new) // 2 - begin // 2)
            bounds = [torch.tensor([0, x], dtype=torch.int32) for x in (new, begin + new, entries)]
            mapping = torch.zeros(entries, dtype=torch.int32)
            made = compress_and_update_state_prefill(score[rows], latent[rows], state, slot, mapping, *bounds, 2)
            got += list(made)[: (begin + new) // 2 - begin // 2]
            begin += new
        length = torch.tensor([6], dtype=torch.int32)
        got.append(compress_and_update_state_decode(score[5:], latent[5:], state, slot, length, 1, 2)[0])
    expected = [_combined([(score[p], latent[p]), (score[p + 1], latent[p + 1])]) for p in (0, 2, 4)]
    torch.testing.assert_close(torch.stack(got).double(), torch.stack(expected), atol=1e-6, rtol=2**-8 * 1.01)
    assert state[0].isnan().all()


def test_no_rows() -> None:
    rows, none, zero = torch.zeros((0, 8)), torch.zeros(0, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    state = torch.ones((3, 3, 2, 8))
    with using("reference"):
        made = compress_and_update_state_prefill(rows, rows, state, none, none, zero, zero, zero, 2)
        assert made.shape == (0, 8)
        assert compress_and_update_state_decode(rows, rows, state, none, none, 1, 2).shape == (0, 8)
    assert state.eq(1).all()


_TOKENS = torch.zeros((4, 8))
_STATE = torch.zeros((3, 3, 2, 8))
_ONE = torch.zeros(1, dtype=torch.int32)
_BOUNDS = torch.tensor([0, 4], dtype=torch.int32)
_PREFILL = {
    "score": _TOKENS,
    "latent": _TOKENS,
    "state_cache": _STATE,
    "state_block_idx": _ONE,
    "compressed_batch_mapping": _ONE,
    "cu_seqlens_q": _BOUNDS,
    "cu_seqlens_k": _BOUNDS,
    "cu_compressed_seqlens_q": _BOUNDS,
    "compress_ratio": 2,
}


@pytest.mark.parametrize(
    ("changed", "error", "text"),
    [
        ({"score": _TOKENS.bfloat16()}, TypeError, "score must be float32, not bfloat16"),
        ({"latent": _TOKENS[:3]}, ValueError, "N = 4"),
        ({"latent": torch.zeros((4, 10))[:, :8]}, ValueError, "strides of latent must be multiples of 8"),
        ({"state_cache": _STATE[:, :, :1]}, ValueError, r"state_cache must have the shape \[slots, S, 2, D\]"),
        ({"state_cache": _STATE[:, :0]}, ValueError, "rings of at least one row"),
        ({"cu_seqlens_k": _ONE}, ValueError, r"cu_seqlens_k must have the shape \[2\], not \[1\]"),
        ({"cu_compressed_seqlens_q": _BOUNDS.long()}, TypeError, "cu_compressed_seqlens_q must be int32"),
        ({"compress_ratio": 4}, ValueError, "compress_ratio must be one of 1, 2, not 4"),
        ({"mirror_cp_reverse_index": _TOKENS}, TypeError, "mirror_cp_reverse_index must be int32"),
        ({"state_block_idx": _ONE.to("meta")}, ValueError, "state_block_idx is on meta, and score on cpu"),
    ],
)
def test_prefill_refused(changed: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        compress_and_update_state_prefill(**{**_PREFILL, **changed})


@pytest.mark.parametrize(
    ("changed", "error", "text"),
    [
        ({"max_seqlen_q": 3}, ValueError, "state_cache must have rings of at least 4 rows, not 3"),
        ({"max_seqlen_q": 0}, ValueError, "max_seqlen_q must be at least 1"),
        ({"context_lens": _ONE}, ValueError, "N = 4"),
        ({"compress_ratio": 3}, ValueError, "compress_ratio must be one of 1, 2, not 3"),
    ],
)
def test_decode_refused(changed: dict[str, Any], error: type[Exception], text: str) -> None:
    four = torch.ones(4, dtype=torch.int32)
    good = {"score": _TOKENS, "latent": _TOKENS, "state_cache": _STATE, "state_block_idx": four, "context_lens": four}
    with pytest.raises(error, match=text):
        compress_and_update_state_decode(**{**good, "max_seqlen_q": 1, "compress_ratio": 2, **changed})
