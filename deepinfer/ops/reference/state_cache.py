"""References of `select_state_slice_tl` and `load_state_to_cache_tl` (kernel_spec A.16)."""

from __future__ import annotations

import functools

import torch

from deepinfer.ops.dispatch import Kernel


@functools.cache
def select_state_slice_tl(
    block_size_kvstore: int, block_size_inference: int, num_layers: int, feature_dim: int
) -> Kernel:
    """state_tensor[:, t % Bi] = state_cache[:, t % Bk] for t in [p - Bi, p)."""

    def run(state_tensor: torch.Tensor, state_cache: torch.Tensor, last_hit_position: int) -> None:
        t = torch.arange(last_hit_position - block_size_inference, last_hit_position, device=state_cache.device)
        state_tensor[:, t % block_size_inference] = state_cache[:, t % block_size_kvstore]

    return run


@functools.cache
def load_state_to_cache_tl(
    block_size_kvstore: int,
    block_size_inference: int,
    num_layers: int,
    feature_dim: int,
    vec: int | None = None,
    threads: int = 256,
) -> Kernel:
    """state_cache[:, t % Bk] = state_tensor[:, t % Bi] for t in [p - Bi, p); other rows stay. Needs Bk >= Bi."""

    def run(state_tensor: torch.Tensor, state_cache: torch.Tensor, last_hit_position: int) -> None:
        t = torch.arange(last_hit_position - block_size_inference, last_hit_position, device=state_cache.device)
        state_cache[:, t % block_size_kvstore] = state_tensor[:, t % block_size_inference]

    return run
