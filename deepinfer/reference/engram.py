"""The n-gram memory of the oracle: hashes, rows, and the gate (model_spec 3.10)."""

from __future__ import annotations

import torch

from deepinfer.config.engram_hash import Hash
from deepinfer.reference.precision import Precision, Tensor
from deepinfer.reference.weights import Weights


def ngrams(token_ids: Tensor, lookup: Tensor, length: int, pad: int) -> Tensor:
    """Row p: the compressed ids of the tokens p, p-1, … p-length+1. [n, length] int64.

    `pad` stands before the start, and from the first id on that the table lookup [vocabulary] does not have.
    """
    inside = (token_ids >= 0) & (token_ids < len(lookup))
    compressed = torch.where(inside, lookup[token_ids.clamp(0, len(lookup) - 1)], -1)
    padded = torch.cat((torch.full((length - 1,), pad), compressed))
    grams = torch.stack([padded[length - 1 - back : len(padded) - back] for back in range(length)], -1)
    return torch.where((grams < 0).cumsum(-1) > 0, pad, grams)


def rows_of(grams: Tensor, own: Hash, heads: int) -> Tensor:
    """The table rows of every token: [n, (length - 1) * heads]. The products wrap around in 64 bits."""
    total = grams[:, 0] * own.multipliers[0]
    columns = []
    for n in range(2, grams.shape[1] + 1):
        total = total ^ (grams[:, n - 1] * own.multipliers[n - 1])
        for head in range(heads):
            at = (n - 2) * heads + head
            columns.append(total % own.primes[at] + own.offsets[at])
    return torch.stack(columns, -1)


def remember(p: Precision, trunk: Tensor, rows: Tensor, w: Weights, name: str, eps: float) -> Tensor:
    """The trunk [n, m, d] after the memory of its rows was added through one gate a stream."""
    streams, width = trunk.shape[1:]
    values = w.table_rows(f"{name}.embed", rows).flatten(1)
    kv = p.bf16(p.matmul(values, w.linear(f"{name}.wkv"))).reshape(-1, streams + 1, width)
    keys, value = kv[:, :streams], kv[:, streams:]

    def inverse_rms(x: Tensor) -> Tensor:
        return torch.rsqrt(p.total(x * x) / width + eps)

    gains = w.plain(f"{name}.q_weight") * w.plain(f"{name}.k_weight")
    t = p.total(trunk * keys * gains) * inverse_rms(trunk) * inverse_rms(keys) * width**-0.5
    gate = torch.sigmoid(torch.copysign(t.abs().clamp_min(1e-6).sqrt(), t))
    return p.bf16(trunk + gate * value)
