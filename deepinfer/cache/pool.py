"""The caches' memory: one buffer of blocks, one of state slots, and typed views of both for every layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from deepinfer.cache.layout import BACKTRACKING, BlockLayout, Section, SlotLayout
from deepinfer.config import ModelConfig
from deepinfer.errors import DeepInferError
from deepinfer.host_memory import host_memory
from deepinfer.ops.state_cache import select_state_slice

_MIB = 2**20
_NO_HOST_MEMORY = "can't allocate memory"
"""PyTorch says so of a CPU, in an error without a type of its own."""


def blocks_that_fit(config: ModelConfig, bytes: int, slots: int, *, backtracking: int = BACKTRACKING) -> int:
    """How many blocks, the padding block included, `bytes` hold beside `slots` state slots.

    Raises:
        ValueError: slots is below 2; slot 0 is padding.
        DeepInferError: not even two blocks fit; says how many bytes would do.
    """
    if slots < 2:
        raise ValueError(f"slots must be at least 2 (slot 0 is padding), not {slots}")
    block_bytes = BlockLayout.of(config).block_bytes
    slot_bytes = SlotLayout.of(config, backtracking).slot_bytes
    blocks = (bytes - slots * slot_bytes) // block_bytes
    if blocks < 2:
        needed = slots * slot_bytes + 2 * block_bytes
        raise DeepInferError(
            f"no room for the caches: {bytes / _MIB:.0f} MiB are left for them, and {slots} state slots with two "
            f"blocks take {needed / _MIB:.0f} MiB",
            cause="the weights and what else is on the device leave too little memory",
            next_step="allow fewer sequences at a time, or a larger part of the memory, or use a larger device",
        )
    return int(blocks)


@dataclass(frozen=True)
class Caches:
    """Blocks and slots of one model on one device. Block 0 and slot 0 are for padding rows, never a sequence's.

    blocks_buffer: uint8 [blocks, block_bytes]. slots_buffer: uint8 [slots, slot_bytes]. Both begin as zeros.
    """

    config: ModelConfig
    block_layout: BlockLayout
    slot_layout: SlotLayout
    blocks_buffer: torch.Tensor
    slots_buffer: torch.Tensor

    @classmethod
    def allocate(
        cls,
        config: ModelConfig,
        device: torch.device | str,
        *,
        blocks: int,
        slots: int,
        backtracking: int = BACKTRACKING,
    ) -> Caches:
        """Memory for so many blocks and slots, those for padding included.

        Raises:
            ValueError: fewer than two blocks or slots, or backtracking below 1.
            DeepInferError: the device has no memory for them.
        """
        for name, count in (("blocks", blocks), ("slots", slots)):
            if not 2 <= count < 2**31:
                raise ValueError(f"{name} must be 2 (one is for padding) to 2147483647, not {count}")
        block_layout, slot_layout = BlockLayout.of(config), SlotLayout.of(config, backtracking)
        sizes = ((blocks, block_layout.block_bytes), (slots, slot_layout.slot_bytes))
        wanted = sum(count * size for count, size in sizes)
        no_room = DeepInferError(
            f"the caches do not fit {device}: {blocks} blocks and {slots} state slots take {wanted / _MIB:.0f} MiB",
            cause="the weights, or another program, hold the memory, or a container may have no more",
            next_step="allow fewer blocks or sequences, or a smaller part of the memory",
        )
        # Linux may give memory that is not there, and end the process when it is used.
        if torch.device(device).type == "cpu" and wanted > host_memory():
            raise no_room
        try:
            buffers = [torch.zeros(size, dtype=torch.uint8, device=device) for size in sizes]
        except RuntimeError as problem:
            if not isinstance(problem, torch.OutOfMemoryError) and _NO_HOST_MEMORY not in str(problem):
                raise
            raise no_room from problem
        return cls(config, block_layout, slot_layout, buffers[0], buffers[1])

    @property
    def blocks(self) -> int:
        """Blocks, the padding block included."""
        return self.blocks_buffer.shape[0]

    @property
    def slots(self) -> int:
        """State slots, the padding slot included."""
        return self.slots_buffer.shape[0]

    @property
    def ring_rows(self) -> int:
        """Rows of every sliding-window ring: position p of slot s is row s * ring_rows + p % ring_rows."""
        return self.slot_layout.ring_rows

    def main(self, layer: int) -> torch.Tensor:
        """Compressed entries that a layer reads: uint8 [blocks, 128 / r, 1, bytes], its source's.

        Raises:
            ValueError: the layer has none (ratio 0), or does not exist.
        """
        return self._section(self.block_layout.main, self.config.kv_source(self._layer(layer)), layer)

    def index_keys(self, layer: int) -> torch.Tensor:
        """Index keys that a layer scores: uint8 [blocks, 128 / r, 1, bytes], its source's. A block's values come
        first, then its scales, as FP4_INDEX_KV_FORMAT has them. Raises as `main`.
        """
        return self._section(self.block_layout.index_keys, self.config.index_k_source(self._layer(layer)), layer)

    def ring(self, layer: int) -> torch.Tensor:
        """A layer's own sliding-window keys: uint8 [slots, ring_rows, 1, bytes]; draft layers follow the others.

        Raises:
            ValueError: no such layer.
        """
        layout = self.slot_layout
        start = layout.rings[self._layer(layer)]
        width = layout.ring_row_bytes
        shape = (self.slots, layout.ring_rows, 1, width)
        return self.slots_buffer.as_strided(shape, (layout.slot_bytes, width, width, 1), start)

    def compressor(self, layer: int) -> torch.Tensor:
        """The open window of a layer's source of ratio 2: float32 [slots, rows, 2, head_dim], score and latent.

        Raises:
            ValueError: the layer's source has no state (ratio 0 or 1), or there is no such layer.
        """
        layout = self.slot_layout
        start = layout.compressors.get(self.config.kv_source(self._layer(layer)))
        if start is None:
            raise ValueError(f"layer {layer} has the ratio {self.config.ratios[layer]}, and so no compressor state")
        width = self.config.attention.head_dim
        shape = (self.slots, layout.compressor_rows, 2, width)
        strides = (layout.slot_bytes // 4, layout.compressor_row_bytes // 4, width, 1)
        return self.slots_buffer.view(torch.float32).as_strided(shape, strides, start // 4)

    def copy_slots(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy whole slots, pair by pair in order, on the device; nothing is waited for.

        Raises:
            ValueError: the two differ in length, or name a slot that does not exist, or the padding slot.
        """
        if len(sources) != len(targets):
            raise ValueError(f"there are {len(sources)} sources and {len(targets)} targets")
        for slot in (*sources, *targets):
            if not 1 <= slot < self.slots:
                raise ValueError(f"slot {slot} does not exist: slots are 1 to {self.slots - 1}")
        width = self.slot_layout.ring_row_bytes
        for source, target in zip(sources, targets, strict=True):
            if source != target:
                # Seen as one ring of rows that both sides have: the kernel then moves all of it, from position 0 back.
                rows = [self.slots_buffer[slot].view(1, -1, width) for slot in (target, source)]
                select_state_slice(rows[0], rows[1], 0)

    def _layer(self, layer: int) -> int:
        if not 0 <= layer < len(self.config.ratios):
            raise ValueError(f"layer {layer} does not exist: layers are 0 to {len(self.config.ratios) - 1}")
        return layer

    def _section(self, sections: dict[int, Section], source: int, layer: int) -> torch.Tensor:
        section = sections.get(source) if self.config.ratios[layer] else None
        if section is None:
            raise ValueError(f"layer {layer} has the ratio {self.config.ratios[layer]}, and so no part of the blocks")
        width = section.form.bytes_per_token
        shape = (self.blocks, section.entries, 1, width)
        return self.blocks_buffer.as_strided(shape, (self.block_layout.block_bytes, width, width, 1), section.offset)
