"""Attention over chosen keys that are values too: a window and compressed entries, with a sink (model_spec 3.3, 3.7).

For every row and head: z = q . k * scale for the keys that the row names, w = exp(z) / (sum of exp(z) + exp(sink)),
o = sum of w * k; nothing is masked by position, the lists say it all. Without a key o is 0.

Keys are taken 64 columns of a list at a time, in the order of the columns; sums are float32. Before a weight is
multiplied with its key it is rounded to bfloat16, relative to the largest z among the keys up to its tile's end (the
oracle: among all keys). Either rounding changes a weight by 2^-9 of itself at most, so that o is off the oracle's by
less than 2^-8 * (sum of w * |k|), and by about 2^-9 of its length where many keys count: a sixteenth of what the
rounding of o to e4m3 that follows may change (2^-4 of a value), and less than the 5e-3 that the engine's logits may be
off. The sum below the line takes weights relative to the same z, to the nearest multiple of 2^-23: a tile's are added
up as whole numbers, which have the same sum in any order, and k keys change o by k * 2^-24 of itself at most.

A row's result has the same bits alone and in any batch, and the same from `sparse_attention_prefill` as from
`sparse_attention_decode` where both have the same keys in the same columns of both sets.
"""

from __future__ import annotations

import math

import torch

from deepinfer.ops.checks import Arguments
from deepinfer.ops.dispatch import factory
from deepinfer.ops.formats import V41_FORMAT, V41_FP4_FORMAT, infer_format, split_kv_cache

WIDTH = 512
"""Values of a key."""
MOST_COLUMNS = 16384


def sparse_attention_prefill(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    sink: torch.Tensor,
    scale: float,
    *,
    window: int | None = None,
) -> torch.Tensor:
    """Attention over rows of `kv`: float32 [n, h, 512].

    Args:
        q: [n, h, 512] bfloat16, contiguous.
        kv: [t, 512] bfloat16, contiguous.
        indices: [n, k] int32, rows contiguous at any stride, k at most 16384: the rows of `kv` that each row sees.
            Negative ones and those from t on are no keys. A row named twice counts twice.
        sink: [h] float32, contiguous: a logit of a key without a value.
        scale: what products are multiplied by; finite.
        window: how many leading columns are the first set, which tiles keep apart from the second (the result is
            that of one softmax over both): what `swa_indices` has in a decode step that is to give the same bits.
            None: all.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("sparse_attention_prefill")
    _queries(check, q, sink, scale)
    check.tensor("kv", kv, torch.bfloat16, ("t", WIDTH), rows="contiguous")
    columns = _list(check, "indices", indices)
    first = columns if window is None else check.whole_number("window", window, at_least=0, at_most=columns)
    out = torch.empty(q.shape, dtype=torch.float32, device=q.device)
    if out.numel():
        factory("sparse_attention_prefill")(first, float(scale))(q, kv, indices, sink, out)
    return out


def sparse_attention_decode(
    q: torch.Tensor,
    swa_cache: torch.Tensor,
    swa_indices: torch.Tensor,
    cache: torch.Tensor | None,
    indices: torch.Tensor | None,
    sink: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Attention over entries of caches, read where they are: float32 [n, h, 512].

    Args:
        q: [n, h, 512] bfloat16, contiguous.
        swa_cache: uint8 [slots, ring, 1, 528], the window's keys (model_spec 4.2); entries dense, slots at any stride.
        swa_indices: [n, k1] int32, rows contiguous at any stride, k1 at most 16384: slot * ring + row of each key.
            Negative ones and those beyond the cache are no keys.
        cache: uint8 [blocks, size, 1, 288 (FP4) or 528 (FP8)], the compressed keys; None where there are none.
        indices: [n, k2] int32, as swa_indices: block * size + entry; goes with cache.
        sink, scale: as in `sparse_attention_prefill`.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("sparse_attention_decode")
    _queries(check, q, sink, scale)
    check.tensor("swa_cache", swa_cache, torch.uint8, (None, None, 1, V41_FORMAT.bytes_per_token))
    _list(check, "swa_indices", swa_indices)
    check.require((cache is None) == (indices is None), "indices", "goes with cache: give both or neither")
    split_kv_cache(swa_cache, V41_FORMAT)
    layout = None
    if cache is not None and indices is not None:
        check.tensor("cache", cache, torch.uint8, (None, None, 1, None))
        widths = (V41_FP4_FORMAT.bytes_per_token, V41_FORMAT.bytes_per_token)
        check.require(cache.shape[3] in widths, "cache", f"must have 288 or 528 bytes an entry, not {cache.shape[3]}")
        layout = infer_format(cache)
        split_kv_cache(cache, layout)
        _list(check, "indices", indices)
    out = torch.empty(q.shape, dtype=torch.float32, device=q.device)
    if out.numel():
        factory("sparse_attention_decode")(layout, float(scale))(q, swa_cache, swa_indices, cache, indices, sink, out)
    return out


def _queries(check: Arguments, q: torch.Tensor, sink: torch.Tensor, scale: float) -> None:
    check.tensor("q", q, torch.bfloat16, ("n", "h", WIDTH), rows="contiguous")
    check.tensor("sink", sink, torch.float32, ("h",), rows="contiguous")
    check.require(math.isfinite(scale), "scale", f"must be finite, not {scale}")


def _list(check: Arguments, name: str, indices: torch.Tensor) -> int:
    check.tensor(name, indices, torch.int32, ("n", None))
    columns = int(indices.shape[1])
    check.require(columns <= MOST_COLUMNS, name, f"must have at most {MOST_COLUMNS} columns, not {columns}")
    return columns
