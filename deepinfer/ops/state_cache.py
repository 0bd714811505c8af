"""Rings of state moved between the engine's cache and a store of prefixes (kernel_spec A.16)."""

from __future__ import annotations

import torch

from deepinfer.ops.checks import Arguments
from deepinfer.ops.dispatch import factory


def select_state_slice(state_tensor: torch.Tensor, state_cache: torch.Tensor, last_hit_position: int) -> None:
    """Export: the last Bi positions before p go from the cache's ring into the tensor's ring.

    For t in [p - Bi, p): state_tensor[:, t % Bi] = state_cache[:, t % Bk], with p = last_hit_position; t may be
    negative (floor modulo).

    Args:
        state_tensor: [L, Bi, F] uint8, last dimension contiguous, other strides multiples of 8: out.
        state_cache: [L, Bk, F] uint8, likewise, Bk >= Bi.
        last_hit_position: p, an int32.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    parameters = _checked("select_state_slice", state_tensor, state_cache, last_hit_position)
    factory("select_state_slice_tl")(*parameters)(state_tensor, state_cache, last_hit_position)


def load_state_to_cache(state_tensor: torch.Tensor, state_cache: torch.Tensor, last_hit_position: int) -> None:
    """Import: the reverse of `select_state_slice`; rows of the cache that are none of these positions' stay.

    For t in [p - Bi, p): state_cache[:, t % Bk] = state_tensor[:, t % Bi]. Arguments and errors as there, with
    state_cache the output.
    """
    parameters = _checked("load_state_to_cache", state_tensor, state_cache, last_hit_position)
    factory("load_state_to_cache_tl")(*parameters)(state_tensor, state_cache, last_hit_position)


def _checked(
    function: str, state_tensor: torch.Tensor, state_cache: torch.Tensor, last_hit_position: int
) -> tuple[int, int, int, int]:
    check = Arguments(function)
    check.tensor("state_tensor", state_tensor, torch.uint8, ("L", "Bi", "F"), multiple=8)
    check.tensor("state_cache", state_cache, torch.uint8, ("L", "Bk", "F"), multiple=8)
    kvstore, inference = check.size("Bk"), check.size("Bi")
    check.require(
        kvstore >= inference, "state_cache", f"must have at least Bi = {inference} rows a layer, not {kvstore}"
    )
    check.whole_number("last_hit_position", last_hit_position, at_least=-(2**31), at_most=2**31 - 1)
    return kvstore, inference, check.size("L"), check.size("F")
