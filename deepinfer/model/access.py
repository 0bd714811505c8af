"""What attention needs of the caches, whatever kind of forward it is: `prefill` and `decode` provide it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch

from deepinfer.ops.formats import KVCacheFormat
from deepinfer.ops.fused_transform import CastArgs, KVCacheOutArgs, NormArgs, RopeArgs
from deepinfer.ops.fused_transform import fused_norm_rope_hadamard_cast_store_kvcache as transform


class Queries(NamedTuple):
    """Index queries of n rows: int8 [n, h, 64], uint8 [n, h, 4], and the heads' weights bf16 [n, h]."""

    values: torch.Tensor
    scales: torch.Tensor
    weights: torch.Tensor


class Completed(NamedTuple):
    """Compressed rows: bf16 [c, d], the positions int32 [c] that they are rotated by, their places in the cache
    int32 [c], -1 for rows that no entry was completed by.
    """

    latents: torch.Tensor
    positions: torch.Tensor
    places: torch.Tensor


class Access(Protocol):
    """The rows' way to the caches during one forward.

    positions: int32 [n]. valid: bool [n], rows that are not padding; None: all are.
    """

    positions: torch.Tensor
    valid: torch.Tensor | None

    def compress(self, layer: int, projected: torch.Tensor) -> Completed:
        """What the rows complete of a source layer's entries.

        projected: of ratio 2 float32 [n, 2 d], scores and then latents; of ratio 1 bf16 [n, d].
        """

    def window(self, layer: int, kv: torch.Tensor, norm: NormArgs, rope: torch.Tensor) -> None:
        """Norm, rotate and store the rows' own keys [n, d], and have them ready for `attend`."""

    def choose(self, layer: int, queries: Queries) -> torch.Tensor:
        """The best entries of each row, int32 [n, topk], ascending, -1 at the end; kept for the layers after."""

    def use(self, layer: int, entries: torch.Tensor) -> None:
        """Have these entries attended to, from this layer to the next index source."""

    def attend(self, layer: int, q: torch.Tensor, sink: torch.Tensor, scale: float) -> torch.Tensor:
        """Attention of q bf16 [n, h, d] over the window and the entries in use: float32 [n, h, d]."""


def store(
    rows: torch.Tensor,
    norm: NormArgs,
    positions: torch.Tensor,
    rope: torch.Tensor,
    cache: torch.Tensor,
    form: KVCacheFormat,
    places: torch.Tensor,
    out: torch.Tensor | None = None,
    stage: str = "transform",
) -> None:
    """Norm, rotate, quantise and store rows; `out` gets them as they are at a stage."""
    target = KVCacheOutArgs(cache, places, out, stage, form)
    turn = RopeArgs(positions, rope, rope.shape[1], is_neox=False)
    transform(rows, norm, turn, None, CastArgs.from_cache_format(form), target)
