"""The n-gram memory (model_spec 3.10)."""

from __future__ import annotations

import torch

from deepinfer.config.engram_hash import Hash
from deepinfer.model import weights
from deepinfer.model.batch import Batch
from deepinfer.ops import dispatch
from deepinfer.ops.activation import Quantized
from deepinfer.ops.engram import engram_gate, engram_gather, engram_rows


class Engram:
    """One layer's memory.

    A table on the host is read when a batch is made, for it depends on tokens alone: what the forward needs travels
    with them. A table that was cut to fewer rows than the hash has is read at the row's remainder: for trials only.
    """

    def __init__(self, own: weights.Engram, hashed: Hash, eps: float) -> None:
        self.own, self.eps = own, eps
        device = own.table.device
        self.on_host = device.type == "cpu" and own.gains.device.type != "cpu"
        self.multipliers, self.primes, self.offsets = (
            torch.tensor(numbers, dtype=torch.int64, device=device)
            for numbers in (hashed.multipliers, hashed.primes, hashed.offsets)
        )
        self.cut = len(own.table) if len(own.table) < hashed.rows else None

    def fetch(self, ngrams: torch.Tensor) -> Quantized:
        """The table's rows for n-grams int32 [n, length], on its device: e4m3 [n, k] and uint8 [n, k / 32]."""
        rows = engram_rows(ngrams, self.multipliers, self.primes, self.offsets)
        if self.cut is not None:
            rows = torch.fmod(rows, self.cut)  # -1, no row, stays
        return engram_gather(self.own.table, self.own.table_scales, rows)

    def fetch_on_host(self, ngrams: torch.Tensor) -> Quantized:
        """The same, whatever the device's kernels are."""
        with dispatch.using("reference"):
            return self.fetch(ngrams)

    def __call__(self, trunk: torch.Tensor, batch: Batch, layer: int) -> torch.Tensor:
        """The trunk [n, 4, d] with the memory of each row's n-grams, in place."""
        rows = batch.fetched[layer] if self.on_host else self.fetch(batch.ngrams)
        kv = self.own.project.of_quantized(rows)
        return engram_gate(trunk, kv, self.own.gains, self.eps, out=trunk)
