"""A whole run: layers that fit, the model and its caches, the forwards, and the files."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import output
from benchmarks.ops import facts, timing
from benchmarks.ops.column import copy_speed
from benchmarks.step import layers, measure, setting, table
from benchmarks.step.library import Watched
from deepinfer.cache.layout import BlockLayout, SlotLayout, blocks_of
from deepinfer.config import ModelConfig
from deepinfer.errors import DeepInferError
from deepinfer.model.deep_gemm import Gemm, products_of
from deepinfer.model.per128 import WideProducts
from deepinfer.model.products import Products
from deepinfer.model.threads import fitting_threads
from deepinfer.ops import dispatch

SCHEMA = 1
USED = 0.94
"""Of the memory that is free: the allocator's blocks do not fit each other seamlessly."""
Say = Callable[[str], None]
Row = dict[str, Any]


@dataclass(frozen=True)
class Order:
    """What is to be measured. layers: None for as many as fit. samples: how often each time is taken. gemm: how
    quantised weights are multiplied.
    """

    device: str
    rows: tuple[int, ...]
    chunk: int
    context: int
    engram_rows: int
    layers: int | None
    samples: int
    gemm: Gemm = "exact"


def run(config: ModelConfig, order: Order, out: Path | None, say: Say, command: Sequence[str] = ()) -> Row:
    """Measure and write; the document of results.json. Files are in `out` after each forward; None: there are none.

    Raises:
        UsageError: so many layers cannot be taken from the model, or `out` is no name of a folder.
        DeepInferError: the device does not hold it, DeepGEMM cannot be used, or the folder cannot be written.
    """
    device = torch.device(order.device)
    products = products_of(order.gemm, device)
    if isinstance(products, WideProducts):
        products = WideProducts(Watched(products.library))
    if out is not None:
        output.make_folder(out)
    own = layers.cut(config, order.layers or layers_that_fit(config, order, free_bytes(device)))
    backend = "triton" if device.type == "cuda" else "reference"
    with dispatch.using(dispatch.Settings(backend, strict=True)), fitting_threads(config.hidden, device):
        return _run(config, own, order, products, out, say, list(command))


def _run(
    config: ModelConfig, own: ModelConfig, order: Order, products: Products, out: Path | None, say: Say,
    command: list[str],
) -> Row:  # fmt: skip
    device = torch.device(order.device)
    known = facts.gather(device)
    plain: timing.Clock = timing.CudaClock() if device.type == "cuda" else timing.HostClock()
    speeds = copy_speed(plain, device), measure.product_speed(plain, device)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    found: Row = {
        "schema": SCHEMA,
        "command": command,
        **known,
        "backend": dispatch.settings().backend,
        "gemm": order.gemm,
        "copy_bytes_per_second": speeds[0],
        "product_operations_per_second": speeds[1],
        "model": _told(config, own, order),
        "forwards": [],
    }
    say(f"{own.layers} layers: making weights, and {order.context} tokens of context")
    made = setting.make(
        own,
        device,
        sequences=max(order.rows),
        context=order.context,
        chunk=order.chunk,
        engram_rows=order.engram_rows,
        products=products,
    )
    if notice := products.notice():
        say(notice)
    clock = measure.Cold(plain, device, known["cache_bytes"])
    forwards = [(f"decode, {rows} {'row' if rows == 1 else 'rows'}", made.decode(rows)) for rows in order.rows]
    # Last, for it writes where the decode steps' first sequence goes on.
    forwards.append((f"prefill, {order.chunk} rows", made.prefill(order.context, order.chunk)))
    for name, batch in forwards:
        say(name)
        row = measure.step(made, batch, clock, speeds, order.samples)
        found["forwards"].append(row | {"of_experts": own.moe.experts})
        if out is not None:
            output.write(found, table.markdown(found), out)
    return found


def free_bytes(device: torch.device) -> int | None:
    """Bytes that a GPU has left; None on a CPU, where nobody asks."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None


def layers_that_fit(config: ModelConfig, order: Order, free: int | None) -> int:
    """As many layers as `free` bytes hold with caches and work; all where it is None.

    Raises:
        DeepInferError: not even one of each kind fits.
    """
    if free is None:
        return config.layers
    least = layers.least_layers(config)
    counts = range(least, config.layers + 1)
    fitting = bisect_right(counts, free * USED, key=lambda count: needed(layers.cut(config, count), order))
    if fitting:
        return counts[fitting - 1]
    wanted = needed(layers.cut(config, least), order)
    raise DeepInferError(
        f"a layer of each kind takes {wanted / 2**30:.0f} GiB with caches and work, "
        f"and {free * USED / 2**30:.0f} GiB can be had",
        cause="the device is small, or another program holds its memory",
        next_step="ask for a smaller --chunk or --context, fewer --rows or fewer --engram-rows",
    )


def needed(config: ModelConfig, order: Order) -> int:
    """Bytes of weights, caches and work."""
    first, others = blocks_of(order.context + order.chunk), blocks_of(order.context + 1)
    blocks = 1 + first + others * (max(order.rows) - 1)
    caches = blocks * BlockLayout.of(config).block_bytes
    caches += (max(order.rows) + 1) * SlotLayout.of(config).slot_bytes
    rows = max(order.chunk, *order.rows)
    work = layers.work_bytes(config, rows, order.context + order.chunk)
    return layers.weight_bytes(config, order.engram_rows, order.gemm) + caches + work


def _told(config: ModelConfig, own: ModelConfig, order: Order) -> Row:
    limit = own.indexer.candidate_topk * own.indexer.candidate_block
    return {
        "layers": own.layers,
        "of_layers": config.layers,
        "chosen": layers.chosen(config, own.layers),
        "kinds": _kinds(own),
        "hidden": own.hidden,
        "experts": own.moe.experts,
        "weight_bytes": layers.weight_bytes(own, order.engram_rows, order.gemm),
        "engram_rows": order.engram_rows,
        "context": order.context,
        "chunk": order.chunk,
        "candidates_limit": own.indexer.candidate_source is not None and order.context >= limit,
    }


def _kinds(config: ModelConfig) -> str:
    """How many layers of which kind, in words."""
    engram = config.engram.layers if config.engram else ()
    counts = Counter(_kind(config, layer) for layer in range(config.layers))
    words = [f"{count} {name}" for name, count in counts.items()]
    return ", ".join([*words, f"n-gram memory in {len(engram)}"])


def _kind(config: ModelConfig, layer: int) -> str:
    ratio = config.ratios[layer]
    if ratio == 0:
        return "window only"
    if layer in config.kv_sources:
        return f"source of ratio {ratio}"
    return f"{'chooser' if layer in config.index_sources else 'sharer'} of ratio {ratio}"
