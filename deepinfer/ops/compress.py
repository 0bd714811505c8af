"""Compression of r tokens' latents into one entry, with the state that carries open windows (kernel_spec A.12)."""

from __future__ import annotations

import torch

from deepinfer.ops.checks import Arguments
from deepinfer.ops.dispatch import factory

RATIOS = (1, 2)


def compress_and_update_state_prefill(
    score: torch.Tensor,
    latent: torch.Tensor,
    state_cache: torch.Tensor,
    state_block_idx: torch.Tensor,
    compressed_batch_mapping: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    cu_compressed_seqlens_q: torch.Tensor,
    compress_ratio: int,
    mirror_cp_reverse_index: torch.Tensor | None = None,
) -> torch.Tensor:
    """Entries that a chunk of prefill completes: per channel sum(latent * softmax(score)) over the r tokens of each.

    Tokens before the chunk come from the sequence's ring in `state_cache`; afterwards the chunk's last min(S, qlen)
    tokens are stored there, at position % S. A sequence without a new entry owns one row of zeros. Rows, slots and
    sequences out of range are neither read nor written, and count as zeros.

    Args:
        score, latent: [N, D] float32, rows contiguous, their strides multiples of 8; row i is token i of the packed
            chunk, or where mirror_cp_reverse_index points for it.
        state_cache: [slots, S, 2, D] float32, last dimension contiguous, strides multiples of 8: score and latent of
            position p of a sequence in row p % S of its slot. In and out.
        state_block_idx: [B] int32: slot of each sequence; slots differ.
        compressed_batch_mapping: [C] int32: sequence of each output row.
        cu_seqlens_q, cu_seqlens_k, cu_compressed_seqlens_q: [B + 1] int32: begins of the sequences' tokens of the
            chunk, of all their tokens so far, and of their output rows.
        compress_ratio: r, 1 or 2.
        mirror_cp_reverse_index: [Q] int32 or None: row of score and latent that holds token i.

    Returns:
        [C, D] bf16.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("compress_and_update_state_prefill")
    _check_tokens(check, score, latent, state_cache)
    check.tensor("state_block_idx", state_block_idx, torch.int32, ("B",), rows="contiguous")
    check.tensor("compressed_batch_mapping", compressed_batch_mapping, torch.int32, ("C",), rows="contiguous")
    bounds = (cu_seqlens_q, cu_seqlens_k, cu_compressed_seqlens_q)
    for name, value in zip(("cu_seqlens_q", "cu_seqlens_k", "cu_compressed_seqlens_q"), bounds, strict=True):
        check.tensor(name, value, torch.int32, (check.size("B") + 1,), rows="contiguous")
    check.one_of("compress_ratio", compress_ratio, RATIOS)
    check.optional("mirror_cp_reverse_index", mirror_cp_reverse_index, torch.int32, ("Q",), rows="contiguous")
    width = check.size("D")
    out = torch.empty((check.size("C"), width), dtype=torch.bfloat16, device=score.device)
    kernel = factory("compress_and_update_state_prefill_tl")(
        DIM=width, COMPRESS_RATIO=compress_ratio, HAS_INDEX=mirror_cp_reverse_index is not None
    )
    maps = (state_block_idx, compressed_batch_mapping)
    kernel(score, latent, state_cache, *maps, *bounds, mirror_cp_reverse_index, out)
    return out


def compress_and_update_state_decode(
    score: torch.Tensor,
    latent: torch.Tensor,
    state_cache: torch.Tensor,
    state_block_idx: torch.Tensor,
    context_lens: torch.Tensor,
    max_seqlen_q: int,
    compress_ratio: int,
) -> torch.Tensor:
    """Store a step's tokens in their rings, then compress the windows of r tokens that they complete.

    All rows are stored before any window is read: a sequence may have several rows in a step. A row whose
    context length is no multiple of r gives zeros, and so does one with a context length below 1 or a slot out of
    range, which stores nothing either.

    Args:
        score, latent: [Q, D] float32, rows contiguous, their strides multiples of 8.
        state_cache: [slots, S, 2, D] float32 as in `compress_and_update_state_prefill`; S >= r + max_seqlen_q - 1,
            so that no token of the step overwrites a window that is still needed. In and out.
        state_block_idx: [Q] int32: slot of each row.
        context_lens: [Q] int32: position of the row's token + 1.
        max_seqlen_q: the most rows that a sequence has in this step.
        compress_ratio: r, 1 or 2.

    Returns:
        [Q, D] bf16.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("compress_and_update_state_decode")
    _check_tokens(check, score, latent, state_cache)
    check.tensor("state_block_idx", state_block_idx, torch.int32, ("N",), rows="contiguous")
    check.tensor("context_lens", context_lens, torch.int32, ("N",), rows="contiguous")
    check.one_of("compress_ratio", compress_ratio, RATIOS)
    check.whole_number("max_seqlen_q", max_seqlen_q, at_least=1)
    needed = compress_ratio + max_seqlen_q - 1
    check.require(
        check.size("S") >= needed, "state_cache", f"must have rings of at least {needed} rows, not {check.size('S')}"
    )
    out = torch.empty((check.size("N"), check.size("D")), dtype=torch.bfloat16, device=score.device)
    kernel = factory("compress_and_update_state_decode_tl")(DIM=check.size("D"), COMPRESS_RATIO=compress_ratio)
    kernel(score, latent, state_cache, state_block_idx, context_lens, out)
    return out


def _check_tokens(check: Arguments, score: torch.Tensor, latent: torch.Tensor, state_cache: torch.Tensor) -> None:
    check.tensor("score", score, torch.float32, ("N", "D"), multiple=8)
    check.tensor("latent", latent, torch.float32, ("N", "D"), multiple=8)
    check.tensor("state_cache", state_cache, torch.float32, ("slots", "S", 2, "D"), multiple=8)
    check.require(check.size("S") >= 1, "state_cache", "must have rings of at least one row")
