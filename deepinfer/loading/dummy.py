"""Seeded weights of the right formats for any configuration: what `--load-format dummy` and tiny checkpoints hold.

Sizes are such that activations stay of order one through all layers, and that every part has a say: sinks, biases,
gates and hyper-connections are neither zero nor saturated. As in a trained network, a sub-layer adds a small share to
the trunk, streams keep to themselves, and vectors lie in few directions (`directions`): what rounding does differently
in two correct engines then stays small.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator

import torch

from deepinfer.config import ModelConfig
from deepinfer.loading.directions import axes, gain, kind, matrix
from deepinfer.loading.inventory import E8M0, F32, FP4, FP8, TABLE, TensorSpec, inventory
from deepinfer.ops.reference.quantize import encode_e2m1

_FP4_RMS = 1.5  # of the values that become codes: few are larger than 6, and few become 0
_TABLE_SCALE = 127  # an engram row's values are of order one
_SHARES = {"attn.wo_b": -4, "ffn.w2": -5, "attn.wq_b": -2}
"""Powers of two that products are taken down by: outputs of sub-layers, for the trunk adds many of them up, and
queries, so that attention looks at more than one key.
"""
_KEEP = 4.0
"""What a stream's next state takes from itself rather than from the others: exp of it, before Sinkhorn."""


def dummy_tensors(
    config: ModelConfig, seed: int = 0, device: torch.device | str = "cpu", *, engram_rows: int | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of the inventory, one after the other.

    engram_rows: rows of each n-gram table, where it is to have fewer than its hash needs.
    """
    for name, spec in inventory(config).items():
        yield name, dummy_tensor(config, name, spec, seed, device, engram_rows=engram_rows)


def dummy_tensor(
    config: ModelConfig,
    name: str,
    spec: TensorSpec,
    seed: int = 0,
    device: torch.device | str = "cpu",
    *,
    engram_rows: int | None = None,
) -> torch.Tensor:
    """One of them, made anew: it depends on its name, its shape, the seed and the kind of device only.

    A GPU draws other numbers than a processor does, and other ones than a GPU with more or fewer multiprocessors.
    Processors draw the same ones, of which those with other vector instructions round a few otherwise.
    """
    if engram_rows is not None and TABLE in name:
        spec = spec.cut(engram_rows)
    # 32 bits: the generator of a CPU uses no more of its seed.
    generator = torch.Generator(device).manual_seed(zlib.crc32(f"{seed} {name}".encode()))
    return _tensor(config, name, spec, generator, seed)


def _tensor(config: ModelConfig, name: str, spec: TensorSpec, generator: torch.Generator, seed: int) -> torch.Tensor:
    if spec.dtype == E8M0:
        return _scales(config, name, spec, generator)
    last = name.rpartition(".")[2]
    if last == "weight" and len(spec.shape) == 2:
        rows, columns = spec.shape
        columns *= 2 if spec.dtype == FP4 else 1
        values = matrix(generator, rows, columns, *axes(config, name), seed)
        if spec.dtype == FP4:
            return encode_e2m1(values * _FP4_RMS)
        return (values * (1.0 if spec.dtype == FP8 else _size(config, name, columns))).to(spec.dtype)
    values = torch.randn(spec.shape, generator=generator, device=generator.device)
    values = values * _deviation(last, spec) + _mean(name)
    if last.startswith("hc_") and last.endswith("_base") and spec.shape != (config.hyper.streams,):
        m = config.hyper.streams
        values[2 * m :] += _KEEP * torch.eye(m, device=generator.device).flatten()
    return values.to(spec.dtype)


def _size(config: ModelConfig, name: str, columns: int) -> float:
    """What the values of a bfloat16 matrix are multiplied by: a product with normed activations is of order one."""
    if name == "embed.weight" or name.endswith("markov_head.embed.weight"):
        return 1.0
    return (2.0 if name == "head.weight" else 1.0) / gain(columns, axes(config, name)[1])


def _scales(config: ModelConfig, name: str, spec: TensorSpec, generator: torch.Generator) -> torch.Tensor:
    """Powers of two around what makes a product with normed activations of order one."""
    matrix_name = name.removesuffix(".scale")
    if matrix_name.endswith("engram.embed"):
        center = _TABLE_SCALE
    else:
        rms = _FP4_RMS if ".ffn.experts." in name else 1.0
        share = _SHARES.get(kind(matrix_name), 0)
        center = 127 + share - round(math.log2(rms * gain(spec.shape[1] * 32, axes(config, matrix_name)[1])))
    spread = torch.randint(-1, 2, spec.shape, generator=generator, device=generator.device)
    return (spread + center).to(torch.uint8).view(E8M0)


def _deviation(last: str, spec: TensorSpec) -> float:
    if last.startswith("hc_") and last.endswith("_fn"):
        return float(spec.shape[1] ** -0.5)
    if last.startswith("hc_"):
        return 0.1 if last.endswith("_scale") else 0.3
    if last == "attn_sink":
        return 1.0
    return 0.05 if spec.dtype == F32 else 0.1  # routing biases, and gains


def _mean(name: str) -> float:
    last = name.rpartition(".")[2]
    if last.startswith("hc_") and last.endswith("_scale"):
        return 0.3
    return 1.0 if name.endswith("norm.weight") or last in ("q_weight", "k_weight") else 0.0
