"""Indices of context-parallel prefill: who owns which token, and where it lies (kernel_spec A.18).

A sequence of sq tokens is cut into 2 * cp blocks of ps = ceil(sq / (2 * cp)); rank k owns the blocks k and
2 * cp - 1 - k, each padded to ps rows: every rank has as much causal work as the others. The rows that a rank owns,
sequence after sequence, are its mirror rows.
"""

from __future__ import annotations

import torch

from deepinfer.ops.checks import Arguments
from deepinfer.ops.dispatch import factory

MOST_SEQUENCES = 2**22


def prepare_cp_mirror(
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    cp_size: int,
    cp_rank: int,
    compress_ratios: tuple[int, ...],
    total_q: int,
    output_len: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Where each token lies in the ranks' gathered mirror rows, and what this rank's mirror rows hold and may see.

    Args:
        cu_seqlens_q, cu_seqlens_k: [B + 1] int32: where each sequence's new tokens and whole context begin; B < 2^22.
        cp_size, cp_rank: how many ranks there are, and which is this.
        compress_ratios: one or more, each >= 1.
        total_q: cu_seqlens_q[B].
        output_len: O, the mirror rows of a rank: the sum of 2 * ps.

    Returns:
        reverse index [total_q]: token -> row of the cp_size * O gathered rows;
        index [O]: mirror row -> token, -1 where it is padding;
        ks, ke [ratios, O]: where the row's compressed context begins, and where what it may see of it ends
        (ks for padding). All int32.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("prepare_cp_mirror")
    sequences = _sequences(check, cu_seqlens_q, "cu_seqlens_k", cu_seqlens_k)
    _ranks(check, cp_size, cp_rank)
    check.require(len(compress_ratios) >= 1, "compress_ratios", "must not be empty")
    for ratio in compress_ratios:
        check.whole_number("compress_ratios", ratio, at_least=1)
    check.whole_number("total_q", total_q, at_least=0)
    check.whole_number("output_len", output_len, at_least=0)
    ratios = len(compress_ratios)
    cu_lens = cu_seqlens_q.new_empty((ratios + 1, sequences + 1))
    reverse, index = cu_seqlens_q.new_empty(total_q), cu_seqlens_q.new_empty(output_len)
    ks, ke = cu_seqlens_q.new_empty((ratios, output_len)), cu_seqlens_q.new_empty((ratios, output_len))
    kernel = factory("prepare_cp_mirror_tl")(cp_size, tuple(compress_ratios))
    kernel(cu_seqlens_q, cu_seqlens_k, cu_lens, reverse, index, ks, ke, cp_rank)
    return reverse, index, ks, ke


def yoco_cp_boundary_fused(
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_q_c: torch.Tensor,
    cp_size: int,
    cp_rank: int,
    total_q_c: int,
    contrib_pad_len: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Which mirror rows a rank keeps where only the last tokens of each sequence go on, and where each comes from.

    Args:
        cu_seqlens_q: [B + 1] int32: where each sequence's tokens begin; B < 2^22.
        cu_seqlens_q_c: [B + 1] int32: the same of the kept suffixes; none is longer than its sequence.
        cp_size, cp_rank: how many ranks there are, and which is this.
        total_q_c: cu_seqlens_q_c[B].
        contrib_pad_len: Lc, the most rows that a rank keeps.

    Returns:
        contributed [Lc]: this rank's kept mirror rows in order, then -1;
        reverse index [total_q_c]: kept token -> row of the cp_size * Lc gathered rows. Both int32.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("yoco_cp_boundary_fused")
    sequences = _sequences(check, cu_seqlens_q, "cu_seqlens_q_c", cu_seqlens_q_c)
    _ranks(check, cp_size, cp_rank)
    check.whole_number("total_q_c", total_q_c, at_least=0)
    check.whole_number("contrib_pad_len", contrib_pad_len, at_least=0)
    cu_lens = cu_seqlens_q.new_empty((cp_size + 1, sequences + 1))
    contributed, reverse = cu_seqlens_q.new_empty(contrib_pad_len), cu_seqlens_q.new_empty(total_q_c)
    kernel = factory("yoco_cp_boundary_fused_tl")(cp_size)
    kernel(cu_seqlens_q, cu_seqlens_q_c, cu_lens, contributed, reverse, cp_rank)
    return contributed, reverse


def _sequences(check: Arguments, cu_seqlens_q: torch.Tensor, name: str, other: torch.Tensor) -> int:
    check.tensor("cu_seqlens_q", cu_seqlens_q, torch.int32, ("B+1",), rows="contiguous")
    check.tensor(name, other, torch.int32, ("B+1",), rows="contiguous")
    entries = check.size("B+1")
    check.require(1 <= entries <= MOST_SEQUENCES, "cu_seqlens_q", f"must have 1 to 2^22 entries, not {entries}")
    return entries - 1


def _ranks(check: Arguments, cp_size: int, cp_rank: int) -> None:
    check.whole_number("cp_size", cp_size, at_least=1)
    check.whole_number("cp_rank", cp_rank, at_least=0, at_most=cp_size - 1)
