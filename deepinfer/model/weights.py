"""The model's weights on a device, joined where one product reads several (model_spec 2.2, 2.4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from deepinfer.config import ModelConfig
from deepinfer.model.products import EXACT, Experts, Fp4, Fp8, Heads, Linear, Products

Take = Callable[[str], torch.Tensor]
"""Gives the tensor of a name in a checkpoint; each is asked for once."""


class Hyper(NamedTuple):
    """Of one sub-layer: fn [24, 4 d], base [24] and scale [3] float32, and the gain [d] of the norm before it."""

    fn: torch.Tensor
    base: torch.Tensor
    scale: torch.Tensor
    norm: torch.Tensor


@dataclass(frozen=True)
class Attention:
    """enter: wq_a and then wkv. heads: wq_b, and then the indexer's where the layer chooses entries."""

    enter: Linear
    q_norm: torch.Tensor
    heads: Linear
    kv_norm: torch.Tensor
    sink: torch.Tensor
    groups: Heads
    leave: Linear


@dataclass(frozen=True)
class Compressor:
    """project: the scores' rows, where the ratio is 2, and then the latents'."""

    project: torch.Tensor
    norm: torch.Tensor


@dataclass(frozen=True)
class IndexKeys:
    """From a compressed latent to its index key."""

    project: torch.Tensor
    norm: torch.Tensor


@dataclass(frozen=True)
class Moe:
    """gate [experts, d], with its biases for text and for images; shared_in: the gates' rows (w1), then the others'
    (w3).
    """

    gate: torch.Tensor
    bias: torch.Tensor
    bias_image: torch.Tensor
    shared_in: Linear
    shared_out: Linear
    routed: Experts


@dataclass(frozen=True)
class Engram:
    """table: e4m3 [rows, width], scales uint8. gains: float32 [4, d], q and k multiplied."""

    table: torch.Tensor
    table_scales: torch.Tensor
    project: Linear
    gains: torch.Tensor


@dataclass(frozen=True)
class Layer:
    """One layer. index_weights: bf16 [heads, d], of index sources; the other parts where a layer has them."""

    attention_hyper: Hyper
    attention: Attention
    compressor: Compressor | None
    index_keys: IndexKeys | None
    index_weights: torch.Tensor | None
    engram: Engram | None
    moe_hyper: Hyper
    moe: Moe


@dataclass(frozen=True)
class Weights:
    """Everything but the draft model and the image encoder."""

    embed: torch.Tensor
    layers: tuple[Layer, ...]
    norm: torch.Tensor
    head: torch.Tensor


def gather_weights(
    config: ModelConfig,
    take: Take,
    device: torch.device | str,
    engram_device: torch.device | str | None = None,
    products: Products = EXACT,
) -> Weights:
    """Ask for every tensor that the model's forward needs, and bring them to the device, layer after layer.

    engram_device: of the n-gram tables, where it is another: "cpu" keeps them on the host.
    products: how the quantised weights are multiplied. What a weight was made of is let go when the next is asked for.
    """
    tables = torch.device(device if engram_device is None else engram_device)
    reader = _Reader(config, take, torch.device(device), tables, products)
    embed = reader.plain("embed.weight")
    layers = tuple(reader.layer(layer) for layer in range(config.layers))
    return Weights(embed, layers, reader.plain("norm.weight"), reader.plain("head.weight"))


class _Reader:
    def __init__(
        self, config: ModelConfig, take: Take, device: torch.device, tables: torch.device, products: Products
    ) -> None:
        self.config, self.take, self.device, self.tables, self.products = config, take, device, tables, products

    def plain(self, name: str) -> torch.Tensor:
        return self.take(name).to(self.device)

    def bytes(self, name: str) -> torch.Tensor:
        """Scales as the kernels take them."""
        return self.plain(name).view(torch.uint8)

    def joined(self, *names: str) -> torch.Tensor:
        parts = [self.plain(f"{name}.weight") for name in names]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def fp8(self, *names: str) -> Fp8:
        """Linear weights with the same inputs, one below the other."""
        values = [self.plain(f"{name}.weight") for name in names]
        scales = [self.bytes(f"{name}.scale") for name in names]
        if len(names) == 1:
            return Fp8(values[0], scales[0])
        joined = torch.cat([one.view(torch.uint8) for one in values]).view(torch.float8_e4m3fn)
        return Fp8(joined, torch.cat(scales))

    def linear(self, *names: str) -> Linear:
        return self.products.linear(self.fp8(*names), " and ".join(names))

    def experts(self, name: str, *parts: str) -> Fp4:
        """A weight of every expert, its parts one below the other."""
        values: torch.Tensor | None = None
        scales: torch.Tensor | None = None
        for expert in range(self.config.moe.experts):
            place = 0
            for part in parts:
                weight, scale = self.take(f"{name}.{expert}.{part}.weight"), self.take(f"{name}.{expert}.{part}.scale")
                rows = len(weight)
                if values is None or scales is None:
                    shape = (self.config.moe.experts, rows * len(parts))
                    values = torch.empty((*shape, weight.shape[1]), dtype=torch.int8, device=self.device)
                    scales = torch.empty((*shape, scale.shape[1]), dtype=torch.uint8, device=self.device)
                values[expert, place : place + rows] = weight.to(self.device)
                scales[expert, place : place + rows] = scale.view(torch.uint8).to(self.device)
                place += rows
        assert values is not None and scales is not None
        return Fp4(values, scales)

    def layer(self, layer: int) -> Layer:
        config, name = self.config, f"layers.{layer}"
        chooses = layer in config.index_sources
        return Layer(
            attention_hyper=self.hyper(name, "attn"),
            attention=self.attention(f"{name}.attn", chooses),
            compressor=self.compressor(f"{name}.attn.compressor", layer) if layer in config.kv_sources else None,
            index_keys=(
                IndexKeys(self.joined(f"{name}.attn.indexer.wk"), self.plain(f"{name}.attn.indexer.k_norm.weight"))
                if layer in config.index_k_sources
                else None
            ),
            index_weights=self.joined(f"{name}.attn.indexer.weights_proj") if chooses else None,
            engram=(
                self.engram(f"{name}.engram") if config.engram is not None and layer in config.engram.layers else None
            ),
            moe_hyper=self.hyper(name, "ffn"),
            moe=self.moe(f"{name}.ffn"),
        )

    def hyper(self, name: str, kind: str) -> Hyper:
        fn, base, scale = (self.plain(f"{name}.hc_{kind}_{part}") for part in ("fn", "base", "scale"))
        return Hyper(fn, base, scale, self.plain(f"{name}.{kind}_norm.weight"))

    def attention(self, name: str, chooses: bool) -> Attention:
        heads = [f"{name}.wq_b", *([f"{name}.indexer.wq_b"] if chooses else [])]
        return Attention(
            enter=self.linear(f"{name}.wq_a", f"{name}.wkv"),
            q_norm=self.plain(f"{name}.q_norm.weight"),
            heads=self.linear(*heads),
            kv_norm=self.plain(f"{name}.kv_norm.weight"),
            sink=self.plain(f"{name}.attn_sink"),
            groups=self.products.heads(self.fp8(f"{name}.wo_a"), self.config.attention.o_groups, f"{name}.wo_a"),
            leave=self.linear(f"{name}.wo_b"),
        )

    def compressor(self, name: str, layer: int) -> Compressor:
        parts = [f"{name}.wgate", f"{name}.wkv"] if self.config.ratios[layer] > 1 else [f"{name}.wkv"]
        return Compressor(self.joined(*parts), self.plain(f"{name}.norm.weight"))

    def moe(self, name: str) -> Moe:
        moe = self.config.moe
        return Moe(
            gate=self.joined(f"{name}.gate"),
            bias=self.plain(f"{name}.gate.bias"),
            bias_image=self.plain(f"{name}.gate.bias_vl"),
            shared_in=self.linear(f"{name}.shared_experts.w1", f"{name}.shared_experts.w3"),
            shared_out=self.linear(f"{name}.shared_experts.w2"),
            routed=self.products.experts(
                self.experts(f"{name}.experts", "w1", "w3"),
                self.experts(f"{name}.experts", "w2"),
                *(moe.swiglu_limit, moe.topk, f"{name}.experts"),
            ),
        )

    def engram(self, name: str) -> Engram:
        return Engram(
            table=self.take(f"{name}.embed.weight").to(self.tables),
            table_scales=self.take(f"{name}.embed.scale").view(torch.uint8).to(self.tables),
            project=self.linear(f"{name}.wkv"),
            gains=self.plain(f"{name}.q_weight").float() * self.plain(f"{name}.k_weight").float(),
        )
