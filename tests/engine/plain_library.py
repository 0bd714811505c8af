"""DeepGEMM's products in plain PyTorch, and the tiny model in widths that all of them take."""

from __future__ import annotations

import functools
from dataclasses import replace

import torch

from deepinfer.config import ModelConfig
from deepinfer.exactness import Subject
from deepinfer.loading.dummy import dummy_tensors
from deepinfer.model.model import Model
from deepinfer.model.per128 import Library, Per128, WideProducts
from deepinfer.model.products import EXACT, Products
from deepinfer.model.weights import gather_weights
from deepinfer.ops.per128 import PerWide
from tests.engine.model_runs import config, lookup


def wide_weight(weight: Per128) -> torch.Tensor:
    """float64 [..., o, k]."""
    spread = weight.scales.double().repeat_interleave(128, -2).repeat_interleave(128, -1)
    return weight.values.double() * spread[..., : weight.values.shape[-2], :]


def wide_rows(rows: PerWide) -> torch.Tensor:
    """float64 [..., k]."""
    return rows.values.double() * rows.scales.double().repeat_interleave(128, -1)


class Plain:
    """See `per128.Library`: float64 products of dequantised operands, of the layouts that DeepGEMM asks for."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = []

    def linear(self, rows: PerWide, weight: Per128, out: torch.Tensor) -> None:
        self._note("linear", rows, weight)
        assert rows.scales.stride() == (1, -(-len(out) // 4) * 4)
        out.copy_(wide_rows(rows) @ wide_weight(weight).T)

    def grouped(self, rows: PerWide, weight: Per128, out: torch.Tensor) -> None:
        self._note("grouped", rows, weight)
        columns, padded = rows.scales.shape[2], -(-len(out) // 4) * 4
        assert rows.scales.stride() == (1, columns * padded, padded)
        out.copy_(torch.einsum("ngk,gok->ngo", wide_rows(rows), wide_weight(weight)))

    def experts(
        self, rows: PerWide, weight: Per128, ends: torch.Tensor, alignment: int, expected: int, out: torch.Tensor
    ) -> None:
        self._note("experts", rows, weight)
        assert rows.scales.stride() == (1, len(out)) and len(out) % alignment == 0 and expected > 0
        out.fill_(torch.nan)  # what is no row's must not be read
        begin = 0
        for expert, end in enumerate(ends.tolist()):
            own = PerWide(rows.values[begin:end], rows.scales[begin:end])
            out[begin:end] = (wide_rows(own) @ wide_weight(Per128(*(one[expert] for one in weight))).T).bfloat16()
            begin = -(-end // alignment) * alignment
        assert begin <= len(out)

    def _note(self, kind: str, rows: PerWide, weight: Per128) -> None:
        self.calls.append((kind, tuple(rows.values.shape), tuple(weight.values.shape)))


@functools.cache
def wide_config() -> ModelConfig:
    """The tiny model with 128 columns wherever it has 64."""
    own = config(8)
    return replace(
        own, attention=replace(own.attention, q_rank=128), moe=replace(own.moe, intermediate=128)
    )  # fmt: skip


@functools.cache
def wide_tensors() -> dict[str, torch.Tensor]:
    return dict(dummy_tensors(wide_config()))


def wide_model(products: Products, device: str = "cpu") -> Model:
    weights = gather_weights(wide_config(), lambda name: wide_tensors()[name].to(device), device, products=products)
    return Model(wide_config(), weights, lookup=lookup())


def wide_subject(library: Library | None, device: str = "cpu") -> Subject:
    """With exact products where there is no library."""
    products = EXACT if library is None else WideProducts(library)
    gemm = "exact" if library is None else "deep_gemm"
    return Subject(wide_config(), wide_tensors(), lookup(), wide_model(products, device), gemm)
