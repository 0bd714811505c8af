"""A prompt through the engine's model, in pieces or whole, with all that it chose on the way."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from deepinfer import reference
from deepinfer.cache.pool import Caches
from deepinfer.config.constraints import BLOCK_TOKENS
from deepinfer.model.batch import RowSpec
from deepinfer.model.model import Forced, Model, Trace

_SLOT = 1


@dataclass(frozen=True)
class EngineRun:
    """Of every token of a prompt, on the CPU. logits: float32 [n, vocabulary]. hidden: by layer, the trunk bf16
    [n, streams, hidden] that entered its attention. routing: by layer, experts by rank [n, k]. entries: by index
    source [n, topk].
    """

    logits: torch.Tensor
    hidden: dict[int, torch.Tensor]
    routing: dict[int, torch.Tensor]
    entries: dict[int, torch.Tensor]


def run_engine(
    own: Model, tokens: list[int], *, forced: reference.Forced | None = None, chunk: int = 0, decoded: int = 0
) -> EngineRun:
    """Run a prompt, without truncation.

    Args:
        forced: choices in place of the model's own, for every token.
        chunk: tokens of a piece of prefill; 0: all at once.
        decoded: so many tokens of the end are decoded, one a step.

    Raises:
        ValueError: there is no token, or none is left to prefill.
    """
    n = len(tokens)
    if not 0 <= decoded < n or chunk < 0:
        raise ValueError(f"{n} tokens, of which {decoded} are decoded, in pieces of {chunk}: one at least is prefilled")
    count = -(-n // BLOCK_TOKENS)
    memory = Caches.allocate(own.config, own.device, blocks=count + 1, slots=2)
    # What was never written is no number: it must not be read.
    memory.blocks_buffer.fill_(0xFF)
    memory.slots_buffer.fill_(0xFF)
    size = chunk or n - decoded
    starts = [*range(0, n - decoded, size), *range(n - decoded, n)]
    pieces = []
    for start, end in zip(starts, [*starts[1:], n], strict=True):
        row = RowSpec(tokens, start, end - start, _SLOT, range(1, count + 1), n - decoded, "all")
        trace = Trace()
        batch = own.batch([row], decode=start >= n - decoded)
        logits = own.forward(batch, memory, forced=_part(forced, start, end, own.device), trace=trace)
        pieces.append((logits.cpu(), trace))
    joined = [_joined([getattr(trace, name) for _, trace in pieces]) for name in ("hidden", "routing", "entries")]
    return EngineRun(torch.cat([logits for logits, _ in pieces]), *joined)


def _part(forced: reference.Forced | None, start: int, end: int, device: torch.device) -> Forced | None:
    if forced is None:
        return None
    routing, entries = (
        {layer: one[start:end].to(device, torch.int32) for layer, one in given.items()}
        for given in (forced.routing, forced.entries)
    )
    return Forced(routing, entries)


def _joined(parts: list[dict[int, torch.Tensor]]) -> dict[int, torch.Tensor]:
    return {layer: torch.cat([part[layer].cpu() for part in parts]) for layer in parts[0]}
