"""How the memory that is left is shared out: blocks, state slots, and how long and how many sequences may be."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from deepinfer import native
from deepinfer.cache.layout import BLOCK_TOKENS, SlotLayout, blocks_of
from deepinfer.cache.pool import Caches, blocks_that_fit
from deepinfer.cache.prefix import Context
from deepinfer.engine.step import Limits
from deepinfer.errors import DeepInferError, Option, OptionError, UsageError, shown
from deepinfer.model.batch import RowSpec
from deepinfer.model.model import Model
from deepinfer.ops import dispatch

if TYPE_CHECKING:
    from deepinfer._python.engine import BlockManager

HOST_BYTES = 2**30
"""What caches take at most on a CPU, where nobody says how much."""
CHUNK_TOKENS = {"cuda": 2048, "cpu": 512}


@dataclass(frozen=True)
class EngineOptions:
    """max_num_seqs: sequences that run at once. chunk_tokens: rows of prompts a step; None: 2048, or 512 on a CPU.

    max_model_len: tokens of prompt and output together; None: what model and blocks allow. blocks: of 128 tokens, that
    for padding included; None: what fits memory_fraction of a GPU's memory beside weights and work, or a GiB on a CPU.
    prefix_caching: whether what prompts have in common is computed once.
    """

    max_num_seqs: int = 256
    chunk_tokens: int | None = None
    max_model_len: int | None = None
    blocks: int | None = None
    memory_fraction: float = 0.9
    prefix_caching: bool = True

    def __post_init__(self) -> None:
        for name, least in (("max_num_seqs", 1), ("chunk_tokens", 1), ("max_model_len", 2), ("blocks", 2)):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise OptionError(name, f"must be a whole number of at least {least}, not {shown(value)}")
        fraction = self.memory_fraction
        if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 < fraction <= 1:
            raise OptionError("memory_fraction", f"must be a number above 0 and at most 1, not {shown(fraction)}")
        if not isinstance(self.prefix_caching, bool):
            raise OptionError("prefix_caching", f"must be true or false, not {shown(self.prefix_caching)}")


@dataclass(frozen=True)
class Memory:
    """The caches, the managers of their blocks and slots, the limits that follow, and what cached results depend on."""

    caches: Caches
    blocks: BlockManager
    slots: BlockManager
    limits: Limits
    context: Context


def allocate(model: Model, options: EngineOptions) -> Memory:
    """Memory for a model's sequences.

    Raises:
        UsageError: a length is asked for that the model does not have.
        DeepInferError: it does not fit, or a limit is asked for that memory cannot keep.
    """
    _check(model, options)
    asked = options.max_model_len
    length = asked or model.max_positions
    sequences = options.max_num_seqs
    slots = 1 + sequences + max(8, sequences // 5)  # model_spec 4.3; those that no sequence holds keep prefixes
    chunk = options.chunk_tokens or CHUNK_TOKENS[model.device.type]
    blocks = options.blocks or _blocks(model, options, slots, chunk, length)
    if asked is not None and blocks_of(asked) > blocks - 1:
        raise DeepInferError(
            (
                f"{blocks} cache blocks, one of them kept for padding, hold {(blocks - 1) * BLOCK_TOKENS} tokens, "
                "less than ",
                *(Option("max_model_len"), f" {asked}"),
            ),
            next_step=("give more blocks or memory, or a smaller ", Option("max_model_len")),
        )
    caches = Caches.allocate(model.config, model.device, blocks=blocks, slots=slots)
    held = (blocks - 1) * BLOCK_TOKENS
    limits = Limits(
        sequences=sequences,
        chunk_tokens=chunk,
        length=min(length, held),
        truncation=model.truncation,
        keep_tokens=model.keep_tokens if model.truncation != "off" else 0,
        prefix_caching=options.prefix_caching,
        why="blocks" if held < length else "max_model_len" if length < model.max_positions else "model",
    )
    managers = native.engine.BlockManager(blocks), native.engine.BlockManager(slots)
    return Memory(caches, *managers, limits, _context(model, caches))


def _check(model: Model, options: EngineOptions) -> None:
    """Refuse what no memory would make possible."""
    asked = options.max_model_len
    if asked is not None and asked > model.max_positions:
        raise UsageError(
            (Option("max_model_len"), f" {asked} is more than the {model.max_positions} tokens that the model takes"),
            next_step="ask for less, or leave it out",
        )
    ring_rows = SlotLayout.of(model.config).ring_rows
    if model.truncation != "off" and model.keep_tokens < ring_rows:
        raise DeepInferError(
            f"truncation keeps {model.keep_tokens} tokens, and {ring_rows} are needed: a window, and what a step may "
            "take back",
            next_step="keep more tokens",
        )


def _context(model: Model, caches: Caches) -> Context:
    """The cache lives and dies with the model, which so needs no further name."""
    chosen = dispatch.settings()
    layout = caches.block_layout
    return Context(
        model=f"{id(model):x}",
        cache_format=f"block={layout.block_bytes} slot={caches.slot_layout.slot_bytes} ring={caches.ring_rows}",
        truncation=model.truncation,
        keep_tokens=model.keep_tokens,
        settings={"backend": chosen.backend, "fallbacks": ",".join(sorted(chosen.fallbacks))},
    )


def _blocks(model: Model, options: EngineOptions, slots: int, chunk: int, length: int) -> int:
    """As many blocks as fit, and no more than the sequences could ever fill."""
    most = options.max_num_seqs * blocks_of(length) + 1
    if model.device.type != "cuda":
        return min(most, blocks_that_fit(model.config, HOST_BYTES, slots))
    work = work_bytes(model, options.max_num_seqs, chunk, length)
    free, total = torch.cuda.mem_get_info(model.device)
    left = int(total * options.memory_fraction) - (total - free) - work
    return min(most, blocks_that_fit(model.config, left, slots))


def work_bytes(model: Model, sequences: int, chunk: int, length: int) -> int:
    """What the largest step takes on a GPU beside weights and caches: a prefill of `chunk` rows is measured, from as
    many prompts of at most `length` tokens as that takes, and logits of all sequences with three copies for sampling
    are counted.

    Raises:
        DeepInferError: the device has no memory for it.
    """
    counts = [min(length, chunk - begin) for begin in range(0, min(chunk, length * sequences), length)]
    blocks = [blocks_of(count) for count in counts]
    caches = Caches.allocate(model.config, model.device, blocks=1 + sum(blocks), slots=1 + len(counts))
    torch.cuda.synchronize(model.device)
    torch.cuda.reset_peak_memory_stats(model.device)
    before = torch.cuda.memory_allocated(model.device)
    ends = [1 + end for end in itertools.accumulate(blocks)]
    rows = [
        RowSpec([0] * count, 0, count, slot, range(end - held, end))
        for slot, (count, held, end) in enumerate(zip(counts, blocks, ends, strict=True), 1)
    ]
    try:
        model.forward(model.batch(rows, decode=False), caches)
    except torch.OutOfMemoryError as problem:
        raise DeepInferError(
            f"the device has no memory for a step of {sum(counts)} rows beside the weights",
            cause="the weights, or another program, hold the memory",
            next_step=("ask for a smaller ", Option("chunk_tokens"), ", or use a device with more memory"),
        ) from problem
    torch.cuda.synchronize(model.device)
    measured = torch.cuda.max_memory_allocated(model.device) - before
    del caches
    torch.cuda.empty_cache()
    return measured + 4 * sequences * model.config.vocab_size * 4
