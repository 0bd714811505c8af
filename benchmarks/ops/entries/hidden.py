"""Rows of hidden values: embedding, norms, what the draft model takes from them."""

from __future__ import annotations

import torch

from benchmarks.ops.entry import Entry, Inputs, Make, Work, reads, size, work, writes
from benchmarks.ops.model import EPS, HC_MULT, HIDDEN, MARKOV_RANK, Q_LORA, VOCAB

BF16, F32, FP8 = torch.bfloat16, torch.float32, torch.float8_e4m3fn


def _gather(rows: int, inputs: Inputs) -> Work:
    """The embedding's rows as bytes. The table ends where no more of it could be touched."""
    table = inputs.integers(-128, 128, min(VOCAB, max(8 * rows, 64)), 2 * HIDDEN, dtype=torch.int8)
    index = inputs.integers(0, table.shape[0], rows)
    y = inputs.empty(rows, 2 * HIDDEN, dtype=torch.int8)
    arguments = reads(x=table, index=index) + writes(y=y)
    return work(arguments, (2 * HIDDEN, torch.int8, torch.int32, 2 * HIDDEN), moved=2 * size(y) + size(index))


def _norm(width: int, group: int, residual: bool) -> Make:
    def make(rows: int, inputs: Inputs) -> Work:
        x = inputs.normal(1, rows, width)
        weight = inputs.normal(width)
        y = inputs.empty(1, rows, width, dtype=FP8 if group else BF16)
        added = inputs.normal(1, rows, width) if residual else x
        total = inputs.empty(1, rows, width, dtype=BF16) if residual else x
        packs = width // group // 4 if group else 0
        sf = inputs.empty(1, packs, -(-rows // 4) * 4).transpose(1, 2)[:, :rows] if group else x
        origin = inputs.empty(1, rows, width, dtype=BF16) if group else x
        named = {
            "has_residual": residual, "eps": EPS, "out_scale": 1.0, "do_fp8_cast": bool(group),
            "num_per_channels": group, "use_tma_aligned_col_major_sf": bool(group), "round_sf": bool(group),
            "use_packed_ue8m0": bool(group), "return_origin_out": bool(group), "xdim": 2, "shared_sf_block_m": 0,
            "x_stride_s": width, "y_stride_s": width, "residual_stride_s": width, "residual_out_stride_s": width,
            "y_origin_stride_s": width, "sf_stride_s": sf.stride(1),
        }  # fmt: skip
        arguments = reads(x=x) + writes(y=y) + reads(w=weight, residual=added)
        for name, value in (("residual_out", total), ("sf", sf), ("shared_sf", x), ("y_origin", origin)):
            arguments += reads(**{name: value}) if value is x else writes(**{name: value})
        distinct = {id(one): one for one in (x, y, weight, added, total, sf, origin)}
        moved = size(*distinct.values())
        return work(arguments, (width, "bfloat16", "e4m3" if group else "bfloat16", "float"), named, moved=moved)

    return make


def _input_store(rows: int, inputs: Inputs) -> Work:
    """One layer's columns of the three that the draft model takes."""
    x = inputs.normal(rows, HC_MULT, HIDDEN)
    out = inputs.empty(rows, 3 * HIDDEN, dtype=BF16)[:, HIDDEN : 2 * HIDDEN]
    return work(reads(x=x) + writes(out=out), (HIDDEN, HC_MULT))


def _confidence(rows: int, inputs: Inputs) -> Work:
    x0, x1 = inputs.normal(rows, HIDDEN), inputs.normal(rows, MARKOV_RANK)
    weight, out = inputs.normal(HIDDEN + MARKOV_RANK), inputs.empty(rows, dtype=F32)
    arguments = reads(x0=x0, x1=x1, weight=weight) + writes(out=out) + reads(temp=1.0)
    return work(arguments, (HIDDEN, MARKOV_RANK, True))


def _outlier(rows: int, inputs: Inputs) -> Work:
    return work(reads(data=inputs.normal(rows * HIDDEN), id=7), (BF16, 1e11))


ENTRIES = [
    Entry("gather_tl", "embedding", _gather, copy_bound=True),
    Entry("norm_tl", "hidden", _norm(HIDDEN, 0, False), copy_bound=True),
    Entry("norm_tl", "hidden-residual", _norm(HIDDEN, 0, True), copy_bound=True),
    Entry("norm_tl", "hidden-e4m3-g32", _norm(HIDDEN, 32, False), copy_bound=True),
    Entry("norm_tl", "q-lora", _norm(Q_LORA, 0, False), copy_bound=True),
    Entry("dflash_input_store_tl", "one-layer", _input_store),
    Entry("confidence_head_fused_tl", "draft", _confidence),
    Entry("detect_outlier_and_abort_tl", "hidden", _outlier),
]
