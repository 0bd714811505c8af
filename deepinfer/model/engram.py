"""The n-gram memory (model_spec 3.10)."""

from __future__ import annotations

import torch

from deepinfer.config.engram_hash import Hash
from deepinfer.model import weights
from deepinfer.ops.engram import engram_gate, engram_gather, engram_rows
from deepinfer.ops.linear import fp8_linear


class Engram:
    """One layer's memory.

    A table that was cut to fewer rows than the hash has is read at the row's remainder: for trials only.
    """

    def __init__(self, own: weights.Engram, hashed: Hash, eps: float) -> None:
        self.own, self.eps = own, eps
        device = own.table.device
        self.multipliers, self.primes, self.offsets = (
            torch.tensor(numbers, dtype=torch.int64, device=device)
            for numbers in (hashed.multipliers, hashed.primes, hashed.offsets)
        )
        self.cut = len(own.table) if len(own.table) < hashed.rows else None

    def __call__(self, trunk: torch.Tensor, ngrams: torch.Tensor) -> torch.Tensor:
        """The trunk [n, 4, d] with the memory of each row's n-grams int32 [n, length], in place."""
        rows = engram_rows(ngrams, self.multipliers, self.primes, self.offsets)
        if self.cut is not None:
            rows = torch.fmod(rows, self.cut)  # -1, no row, stays
        values, scales = engram_gather(self.own.table, self.own.table_scales, rows)
        kv = fp8_linear(values, scales, *self.own.project)
        return engram_gate(trunk, kv, self.own.gains, self.eps, out=trunk)
