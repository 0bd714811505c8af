"""Inputs of the draft's CUDA graph: those of the live requests, then padding (kernel_spec A.8, #9)."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch

from deepinfer.ops.checks import Arguments
from deepinfer.ops.dispatch import factory

_TYPES = {"temperatures": torch.float32, "top_ps": torch.float32, "seq_seeds": torch.uint64}


@dataclass(frozen=True)
class DraftInputs:
    """Vectors of one length, an entry a request: int32, but for temperatures and top_ps (float32) and seq_seeds
    (uint64). All but the first are there on the rank that samples, and None on the others.
    """

    first_token_positions: torch.Tensor
    last_valid_offset: torch.Tensor | None = None
    golden_tokens: torch.Tensor | None = None
    sample_positions: torch.Tensor | None = None
    temperatures: torch.Tensor | None = None
    top_ps: torch.Tensor | None = None
    top_ks: torch.Tensor | None = None
    seq_seeds: torch.Tensor | None = None
    mtp_info_write_slots: torch.Tensor | None = None


NAMES = tuple(field.name for field in fields(DraftInputs))


def copy_dflash_decode_input(dst: DraftInputs, src: DraftInputs, padding: DraftInputs) -> None:
    """dst[i] = src[i] for the requests of src, and padding[i - len(src)] for those after them.

    Args:
        dst: written; at least as long as src. Entries beyond src and padding together stay as they are.
        src, padding: read.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("copy_dflash_decode_input")
    has_driver_inputs = src.last_valid_offset is not None
    arguments: list[torch.Tensor | None] = []
    for group, letter, inputs in (("src", "Rs", src), ("padding", "Rp", padding), ("dst", "Rd", dst)):
        for name in NAMES:
            value, shown = getattr(inputs, name), f"{group}.{name}"
            if name == NAMES[0] or has_driver_inputs:
                check.tensor(shown, value, _TYPES.get(name, torch.int32), (letter,), rows="contiguous")
            else:
                check.require(value is None, shown, "must be None where src.last_valid_offset is")
            arguments.append(value)
    sizes = check.size("Rs"), check.size("Rd")
    check.require(sizes[0] <= sizes[1], "dst", f"holds {sizes[1]} requests, fewer than the {sizes[0]} of src")
    factory("copy_dflash_decode_input_tl")(has_driver_inputs)(*arguments)
