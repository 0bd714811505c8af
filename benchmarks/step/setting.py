"""A model with dummy weights on a device, and its caches as they are in the middle of sequences."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from deepinfer.cache.layout import blocks_of
from deepinfer.cache.pool import Caches
from deepinfer.config import ModelConfig
from deepinfer.errors import DeepInferError
from deepinfer.loading.directions import axes, gain, matrix
from deepinfer.loading.dummy import dummy_tensors
from deepinfer.model.batch import Batch, RowSpec
from deepinfer.model.model import Model
from deepinfer.model.products import EXACT, Products
from deepinfer.model.weights import Take, gather_weights

DRAWN_EXPERTS = 4
"""A layer's experts whose weights are drawn; the others are copies of them in memory of their own. Drawing all of a
large model's takes minutes, and what is read does not become faster by being the same.
"""
_BIAS = 0.05


@dataclass(frozen=True)
class Setting:
    """A model, and sequences that all have the same `context` tokens in the caches. The first one has blocks for
    `chunk` tokens more.
    """

    model: Model
    caches: Caches
    tokens: list[int]
    context: int
    chunk: int

    def decode(self, rows: int) -> Batch:
        """A step of so many sequences: for each a token of its own after the context."""
        return self.model.batch([self._row(index, 1) for index in range(rows)], decode=True)

    def prefill(self, begin: int, count: int) -> Batch:
        """A chunk of the first sequence."""
        blocks = _blocks(0, self.context, self.chunk)
        row = RowSpec(self.tokens, begin, count, 1, blocks[: blocks_of(begin + count)])
        return self.model.batch([row], decode=False)

    def _row(self, index: int, count: int) -> RowSpec:
        last = self.tokens[self.context + index % self.chunk]
        own = [*self.tokens[: self.context], last]
        blocks = _blocks(index, self.context, self.chunk)[: blocks_of(len(own))]
        return RowSpec(own, self.context, count, index + 1, blocks)


def caches_of(config: ModelConfig, device: torch.device | str, sequences: int, context: int, chunk: int) -> Caches:
    """Caches for so many sequences, as `Setting` has them."""
    last = _blocks(sequences - 1, context, chunk)[-1]
    return Caches.allocate(config, device, blocks=last + 1, slots=sequences + 1)


def _blocks(index: int, context: int, chunk: int) -> list[int]:
    """A sequence's blocks; block 0 is for padding."""
    own, first = blocks_of(context + 1), blocks_of(context + chunk)
    begin = 1 if index == 0 else 1 + first + (index - 1) * own
    return [*range(begin, begin + (first if index == 0 else own))]


def make(
    config: ModelConfig, device: torch.device, *, sequences: int, context: int, chunk: int, engram_rows: int,
    products: Products = EXACT,
) -> Setting:  # fmt: skip
    """Make it. The context of one sequence is computed, in chunks, and copied to the others.

    Raises:
        DeepInferError: the device does not hold it.
    """
    with fitting(device):
        weights = gather_weights(config, take(config, device, engram_rows), device, products=products)
        if device.type == "cuda":
            torch.cuda.empty_cache()  # of what drawing them took
        # Such as a tokenizer would give: some tokens share an id.
        lookup = torch.arange(config.vocab_size) % config.engram.compressed_vocab if config.engram else None
        model = Model(config, weights, lookup=lookup, max_positions=min(context + chunk, config.max_positions))
        caches = caches_of(config, device, sequences, context, chunk)
        generator = torch.Generator().manual_seed(1)
        tokens: list[int] = torch.randint(0, config.vocab_size, (context + chunk,), generator=generator).tolist()
        found = Setting(model, caches, tokens, context, chunk)
        for begin in range(0, context, chunk):
            model.forward(found.prefill(begin, min(chunk, context - begin)), caches)
        source = torch.tensor(_blocks(0, context, chunk)[: blocks_of(context)], device=device)
        for index in range(1, sequences):
            target = torch.tensor(_blocks(index, context, chunk)[: len(source)], device=device)
            caches.blocks_buffer[target] = caches.blocks_buffer[source]
        caches.copy_slots([1] * (sequences - 1), range(2, sequences + 1))
    return found


def take(config: ModelConfig, device: torch.device, engram_rows: int, seed: int = 0) -> Take:
    """Gives dummy weights by name, with `DRAWN_EXPERTS` different experts a layer."""
    drawn = min(DRAWN_EXPERTS, config.moe.experts)
    few = replace(config, moe=replace(config.moe, experts=drawn))
    made = dict(dummy_tensors(few, seed, device, engram_rows=engram_rows))

    def found(name: str) -> torch.Tensor:
        before, routed, after = name.partition(".ffn.experts.")
        if routed:
            expert, _, part = after.partition(".")
            return made[f"{before}{routed}{int(expert) % drawn}.{part}"]
        tensor = made.pop(name)
        if ".ffn.gate." not in name:
            return tensor
        generator = torch.Generator(device).manual_seed(zlib.crc32(f"{seed} {name}".encode()))
        if name.endswith(".weight"):
            output, input_ = axes(config, name)
            values = matrix(generator, config.moe.experts, config.hidden, output, input_, seed)
            return (values / gain(config.hidden, input_)).to(tensor.dtype)
        return torch.randn(config.moe.experts, generator=generator, device=device) * _BIAS

    return found


@contextmanager
def fitting(device: torch.device) -> Iterator[None]:
    """Within the block, memory that runs out is told in words."""
    try:
        yield
    except torch.OutOfMemoryError as problem:
        raise DeepInferError(
            f"{device} has too little memory for this step",
            cause="the layers, the rows or the context are too many, or another program holds the memory",
            next_step="ask for fewer --layers, a smaller --chunk or --context, or fewer --engram-rows",
        ) from problem
