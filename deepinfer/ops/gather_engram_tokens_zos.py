"""n-grams of compressed token ids of a step that is prepared ahead (kernel_spec A.6, model_spec 3.10)."""

from __future__ import annotations

import torch

from deepinfer.ops.checks import Arguments
from deepinfer.ops.dispatch import factory


def gather_engram_tokens_zos(
    win_compressed: torch.Tensor,
    curr_fresh: torch.Tensor,
    prev_sampled_token_ids: torch.Tensor,
    prev_predict_token_ids: torch.Tensor,
    prev_num_accepted_tokens: torch.Tensor,
    remap: torch.Tensor,
    lookup_table: torch.Tensor,
    seqlens_q: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    out_ngram_token_ids: torch.Tensor,
    *,
    max_seqlen_q: int,
    max_ngram_size: int,
    engram_compressed_pad_token: int,
    image_sentinel: int,
) -> None:
    """The token of each query row and the max_ngram_size - 1 before it, newest first, as compressed ids.

    With nextn = max_seqlen_q - 1: look-back r of row j is a token of this step where r <= j, else of the window, whose
    last nextn ids are the drafts of the step before (those rejected are left out). From the first image token on, the
    rest of the row is the pad token; an id outside of the table, or a window too short, counts as an image token.

    Args:
        win_compressed: [R, nextn + max_ngram_size - 1] int32 compressed ids before this step.
        curr_fresh: [R, max_seqlen_q] int32 compressed ids of this step, for fresh sequences.
        prev_sampled_token_ids: [Rp] int32 raw ids; prev_predict_token_ids: [Rp, nextn] int32 raw ids.
        prev_num_accepted_tokens: [Rp] int32 in [0, nextn].
        remap: [R] int32 index of the sequence in the batch before; negative (or beyond it) for a fresh one.
        lookup_table: [Vc] int32 raw id -> compressed id.
        seqlens_q: [R] int32, each at most max_seqlen_q; cu_seqlens_q: [R] int32 inclusive sums.
        out_ngram_token_ids: [Q, max_ngram_size] int32; rows of no sequence stay as they are.
        image_sentinel: the compressed id that stands for an image token.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("gather_engram_tokens_zos")
    nextn = check.whole_number("max_seqlen_q", max_seqlen_q, at_least=1) - 1
    ngram = check.whole_number("max_ngram_size", max_ngram_size, at_least=1)
    for name, value, shape in (
        ("win_compressed", win_compressed, ("R", nextn + ngram - 1)),
        ("curr_fresh", curr_fresh, ("R", max_seqlen_q)),
        ("prev_sampled_token_ids", prev_sampled_token_ids, ("Rp",)),
        ("prev_predict_token_ids", prev_predict_token_ids, ("Rp", nextn)),
        ("prev_num_accepted_tokens", prev_num_accepted_tokens, ("Rp",)),
        ("remap", remap, ("R",)),
        ("lookup_table", lookup_table, ("Vc",)),
        ("seqlens_q", seqlens_q, ("R",)),
        ("cu_seqlens_q", cu_seqlens_q, ("R",)),
        ("out_ngram_token_ids", out_ngram_token_ids, ("Q", ngram)),
    ):
        check.tensor(name, value, torch.int32, shape, rows="contiguous")
    lowest, highest = -(2**31), 2**31 - 1
    check.whole_number("engram_compressed_pad_token", engram_compressed_pad_token, at_least=lowest, at_most=highest)
    check.whole_number("image_sentinel", image_sentinel, at_least=lowest, at_most=highest)
    factory("gather_engram_tokens_zos_tl")(max_seqlen_q, ngram, engram_compressed_pad_token, image_sentinel)(
        *(win_compressed, curr_fresh, prev_sampled_token_ids, prev_predict_token_ids, prev_num_accepted_tokens),
        *(remap, lookup_table, seqlens_q, cu_seqlens_q, out_ngram_token_ids),
    )
