"""Kernels on tables whose last row lies more than 2^31 elements behind the first: `python -m tests.ops.far_rows`.

The rows of a small case are laid apart, with a stride that fits an int32 while its product with the row does not. On a
CPU (where TRITON_INTERPRET=1 is needed) only the pages of the rows themselves ever take memory.
"""

from __future__ import annotations

import dataclasses
import json
import mmap
import sys
from typing import Any

import torch

from deepinfer.ops import dispatch
from deepinfer.ops.case import Argument, Call
from deepinfer.ops.cases import cases
from deepinfer.ops.execution import run
from deepinfer.ops.names import FAMILY_OF
from deepinfer.ops.tolerance import EXACT, difference

GUARD = 32
"""Elements before and behind every row that must stay as they are."""
JUNK = 0x5A
_MAP_NORESERVE = 0x4000  # Linux's; mmap has no name for it

FAR: dict[str, tuple[str, tuple[str, ...]]] = {
    "expand_swa_index_tl": ("9x130-padded-3", ("output",)),
    "convert_kv_index_tl": ("drafts", ("block_tables",)),
    "load_kv_index_tl": ("paged-64-9x512", ("kv_index",)),
    "kv_index_cat_tl": ("odd", ("left", "right")),
    "candidate_block_max_tl": ("max-edges-8", ("logits", "block_scores")),
    "get_candidate_compact_lens_tl": ("lens-7x8-8", ("candidate_blocks",)),
    "restore_candidate_indices_inplace_tl": ("restore-5x37-9x8-offset", ("compact_indices", "candidate_blocks")),
    "select_state_slice_tl": ("select-odd-width", ("state_tensor", "state_cache")),
    "load_state_to_cache_tl": ("load-odd-width", ("state_tensor", "state_cache")),
    "confidence_head_fused_tl": ("confidence-7x5120+256-stride-5-temp-0.7", ("x0", "x1", "out")),
    "dflash_input_store_tl": ("store-3x4x5120-at-5120-of-15360", ("x", "out")),
    "compress_and_update_state_prefill_tl": ("prefill-edges-r2-mirrored", ("score", "latent", "state_cache")),
    "compress_and_update_state_decode_tl": ("decode-shared-slots", ("score", "latent", "state_cache")),
    "quantize_fp8": ("fp8-partial-bf16", ("x",)),
    "select_topk": ("edges", ("scores",)),
    "paged_index_logits": ("paged-edges", ("tables", "logits")),
    "paged_candidate_index_logits": ("paged-candidates-edges", ("tables", "blocks", "logits")),
    "expert_linear": ("linear-outside", ("weight", "weight_scales")),
}
"""Factory -> (its case, the arguments whose first dimension is laid apart)."""


def problems(factory: str, device: str) -> list[str]:
    """What the Triton backend makes of the case, its rows laid apart, otherwise than the reference of the case."""
    name, far = FAR[factory]
    case = next(one for one in cases([FAMILY_OF[factory]]) if one.factory == factory and one.name == name)
    near = case.call()
    expected = run(factory, near, "reference", "cpu").results
    apart = _laid_apart(near, far, device)
    with dispatch.using(dispatch.Settings("triton", strict=True)):
        kernel = dispatch.factory(factory)(*apart.parameters, **apart.named)
        kernel(*(one.value for one in apart.arguments))
    found = []
    for one in apart.arguments:
        if isinstance(one.value, torch.Tensor):
            if one.output and one.tolerance is not None:
                found.append(difference(one.name, expected[one.name], one.value.cpu(), one.tolerance))
            if one.name in far:
                found += _touched(one)
    got = {one.name: one.value.cpu() for one in apart.arguments if isinstance(one.value, torch.Tensor)}
    found.append(near.judge(expected, got) if near.judge else "")
    return [text for text in found if text]


def problems_of_a_wide_buffer(device: str) -> list[str]:
    """The first 16 columns of a 65536 x 32769 int32 buffer, written by rows: the last begins behind 2^31 elements."""
    rows, stride, width = 65536, 32769, 16
    whole = _storage(rows * stride * 4, device).view(torch.int32)
    output = whole.as_strided((rows, width), (stride, 1))
    behind = whole.as_strided((rows, 1), (stride, 1), width).fill_(JUNK)
    row = torch.arange(rows, dtype=torch.int32, device=device)
    pivots = torch.stack((row, row % width, -row, row % 5), 1)
    with dispatch.using(dispatch.Settings("triton", strict=True)):
        dispatch.factory("expand_swa_index_tl")(width)(pivots, output)
    expected = torch.empty((rows, width), dtype=torch.int32, device=device)
    with dispatch.using("reference"):
        dispatch.factory("expand_swa_index_tl")(width)(pivots, expected)
    found = [difference("output", expected, output), difference("behind", torch.full_like(behind, JUNK), behind)]
    return [text for text in found if text]


def _laid_apart(call: Call, names: tuple[str, ...], device: str) -> Call:
    arguments = []
    for one in call.arguments:
        value = one.value
        if isinstance(value, torch.Tensor):
            value = _far_copy(value, device) if one.name in names else value.to(device)
        arguments.append(dataclasses.replace(one, value=value))
    if "left" not in names:
        return dataclasses.replace(call, arguments=arguments)
    # The two halves are views of one buffer, whose stride is a parameter.
    left, right = (one for one in arguments if one.name in names)
    beside = left.value.as_strided(
        right.value.shape, left.value.stride(), left.value.storage_offset() + left.value.shape[1] + 2 * GUARD
    )
    arguments = [dataclasses.replace(one, value=beside) if one is right else one for one in arguments]
    return dataclasses.replace(call, arguments=arguments, parameters=(*call.parameters[:3], left.value.stride(0)))


def _far_copy(value: torch.Tensor, device: str) -> torch.Tensor:
    """A copy whose rows are apart: the last begins at more than 2^31 elements."""
    rows, size = value.shape[0], value[0].numel()
    stride = -(-(2**31 + 16) // (rows - 1) // 16) * 16
    assert rows > 2 and size + 4 * GUARD < stride < 2**31
    inner = torch.empty(value.shape[1:], device="meta").stride()
    whole = _storage((stride * (rows - 1) + 3 * size + 6 * GUARD) * value.element_size(), device).view(value.dtype)
    whole.as_strided((rows, 3 * size + 4 * GUARD), (stride, 1)).view(value.dtype).copy_(_junk(value.dtype))
    return whole.as_strided(value.shape, (stride, *inner), GUARD).copy_(value)


def _junk(dtype: torch.dtype) -> torch.Tensor:
    return torch.full((8,), JUNK, dtype=torch.uint8).view(dtype)[:1]


def _storage(size: int, device: str) -> torch.Tensor:
    size = -(-size // 4096) * 4096
    if device != "cpu":
        return torch.empty(size, dtype=torch.uint8, device=device)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    return torch.frombuffer(mmap.mmap(-1, size, flags=flags), dtype=torch.uint8)


def _touched(one: Argument) -> list[str]:
    """What is not junk any more right before and right behind the rows."""
    value: Any = one.value
    size, offset = value[0].numel(), value.storage_offset()
    found = []
    for where, begin in (("before", offset - GUARD), ("behind", offset + size)):
        guard = value.as_strided((value.shape[0], GUARD), (value.stride(0), 1), begin).cpu()
        found.append(
            difference(
                f"{GUARD} elements {where} rows of {one.name}", _junk(value.dtype).expand_as(guard), guard, EXACT
            )
        )
    return [text for text in found if text]


def _copies_nothing_onto_itself() -> None:
    """The interpreter copies every storage back into itself, which would make all of its pages real."""
    copy = torch.UntypedStorage.copy_

    def copy_elsewhere(self: Any, source: Any, *rest: Any) -> Any:
        return self if self.data_ptr() == source.data_ptr() else copy(self, source, *rest)

    torch.UntypedStorage.copy_ = copy_elsewhere  # type: ignore[method-assign]


if __name__ == "__main__":
    _copies_nothing_onto_itself()
    found = {factory: problems(factory, "cpu") for factory in FAR}
    json.dump({**found, "wide buffer": problems_of_a_wide_buffer("cpu")}, sys.stdout)
