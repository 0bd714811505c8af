"""References of the n-gram memory's kernels (model_spec 3.10)."""

from __future__ import annotations

import functools

import torch

from deepinfer.ops.dispatch import Kernel


@functools.cache
def engram_rows(length: int, columns: int) -> Kernel:
    """Rows of the tables by the hashes of 2 to `length` tokens, `columns` for each token."""
    heads = columns // (length - 1)

    def run(
        ngrams: torch.Tensor, multipliers: torch.Tensor, primes: torch.Tensor, offsets: torch.Tensor, rows: torch.Tensor
    ) -> None:
        grams = ngrams.long()
        total = grams[:, 0] * multipliers[0]
        for n in range(2, length + 1):
            total = total ^ (grams[:, n - 1] * multipliers[n - 1])
            own = slice((n - 2) * heads, (n - 1) * heads)
            rows[:, own] = total[:, None] % primes[own] + offsets[own]
        rows[grams[:, 0] == -1] = -1

    return run


@functools.cache
def engram_gather(width: int) -> Kernel:
    """Rows of the table and of its scales, zeros where there is no such row."""

    def run(
        table: torch.Tensor, table_scales: torch.Tensor, rows: torch.Tensor, values: torch.Tensor, scales: torch.Tensor
    ) -> None:
        picked = rows.flatten()
        outside = (picked < 0) | (picked >= table.shape[0])
        some = picked.masked_fill(outside, 0)
        for source, target in ((table.view(torch.uint8), values.view(torch.uint8)), (table_scales, scales)):
            flat = target.view(len(picked), source.shape[1])
            # A step of the engine comes here where tables are on the host: indexing takes 100 times as long.
            if len(source):
                torch.index_select(source, 0, some, out=flat)
            flat.masked_fill_(outside[:, None], 0)

    return run


@functools.cache
def engram_gate(width: int, eps: float) -> Kernel:
    """The memory's value added to every stream through its gate; sums in float64."""

    def run(
        trunk: torch.Tensor, kv: torch.Tensor, gains: torch.Tensor, skip: torch.Tensor | None, out: torch.Tensor
    ) -> None:
        streams, parts = trunk.double(), kv.double().view(len(kv), trunk.shape[1] + 1, width)
        keys, value = parts[:, :-1], parts[:, -1:]

        def inverse_rms(x: torch.Tensor) -> torch.Tensor:
            return torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)

        t = (streams * keys * gains).sum(-1, keepdim=True) * inverse_rms(streams) * inverse_rms(keys) * width**-0.5
        gate = torch.sigmoid(torch.copysign(t.abs().clamp_min(1e-6).sqrt(), t))
        added = (streams + gate * value).float().bfloat16()
        out.copy_(added if skip is None else torch.where(skip[:, None, None], trunk, added))

    return run
