"""Seeded weights of the right formats for any configuration: what `--load-format dummy` and tiny checkpoints hold.

Sizes are such that activations stay of order one through all layers, and that every part has a say: sinks, biases,
gates and hyper-connections are neither zero nor saturated.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import torch

from deepinfer.config import ModelConfig
from deepinfer.loading.inventory import BF16, E8M0, F32, FP4, FP8, TensorSpec, inventory

_FP4_RMS = 2.9  # of codes that are drawn evenly
_TABLE_SCALE = 127  # an engram row's values are of order one


def dummy_tensors(
    config: ModelConfig, seed: int = 0, device: torch.device | str = "cpu"
) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of the inventory, one after the other. A tensor depends on its name, its shape and the seed only."""
    for name, spec in inventory(config).items():
        # 32 bits: the generator of a CPU uses no more of its seed.
        generator = torch.Generator(device).manual_seed(zlib.crc32(f"{seed} {name}".encode()))
        yield name, _tensor(name, spec, generator, torch.device(device))


def _tensor(name: str, spec: TensorSpec, generator: torch.Generator, device: torch.device) -> torch.Tensor:
    if spec.dtype == FP4:
        return torch.randint(-128, 128, spec.shape, dtype=torch.int8, generator=generator, device=device)
    if spec.dtype == FP8:
        return torch.randn(spec.shape, generator=generator, device=device).to(FP8)
    if spec.dtype == E8M0:
        return _scales(name, spec, generator, device)
    values = torch.randn(spec.shape, generator=generator, device=device)
    return (values * _deviation(name, spec) + _mean(name)).to(spec.dtype)


def _scales(name: str, spec: TensorSpec, generator: torch.Generator, device: torch.device) -> torch.Tensor:
    """Powers of two around 1 / sqrt(inputs): a product with normed activations is of order one."""
    if ".engram.embed" in name:
        center = float(_TABLE_SCALE)
    else:
        rms = _FP4_RMS if ".ffn.experts." in name else 1.0
        inputs = torch.tensor(float(spec.shape[1] * 32))
        center = 127 - float((rms * inputs.sqrt()).log2())
    spread = torch.randint(-1, 2, spec.shape, generator=generator, device=device)
    return (spread + round(center)).to(torch.uint8).view(E8M0)


def _deviation(name: str, spec: TensorSpec) -> float:
    last = name.rpartition(".")[2]
    if last.startswith("hc_") and last.endswith("_fn"):
        return float(spec.shape[1] ** -0.5)
    if last.startswith("hc_"):
        return 0.3
    if spec.dtype == F32:  # sinks, routing biases
        return 1.0 if last == "attn_sink" else 0.05
    if len(spec.shape) == 1 or last in ("q_weight", "k_weight"):
        return 0.1
    if name == "embed.weight" or name.endswith("markov_head.embed.weight"):
        return 1.0
    assert spec.dtype == BF16
    return float((2.0 if name == "head.weight" else 1.0) * spec.shape[1] ** -0.5)


def _mean(name: str) -> float:
    last = name.rpartition(".")[2]
    is_gain = name.endswith("norm.weight") or last in ("q_weight", "k_weight") or last.endswith("_scale")
    return 1.0 if is_gain or (last.startswith("hc_") and last.endswith("_scale")) else 0.0
