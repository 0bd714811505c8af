"""Weights with a scale per 128 x 128 values, and the products that DeepGEMM takes of them on Hopper.

Weights are quantised anew once, from their exact dequantised values; rows are quantised with a scale per 128 columns
where the exact products have one per 32. All scales stay powers of two, so that a value changes only where its block's
scale makes it a subnormal number of e4m3: below 2^-13 of the block's largest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from deepinfer.model.products import EXACT, Experts, Fp4, Fp8, Heads, Linear
from deepinfer.ops.activation import Quantized
from deepinfer.ops.experts import expert_order
from deepinfer.ops.hyper import HyperStep
from deepinfer.ops.norm import norm
from deepinfer.ops.per128 import (
    ALIGNMENTS,
    WIDE,
    PerWide,
    expert_rows,
    quantize_per128,
    regroup_per128,
    rotate_heads_per128,
    swiglu_per128,
)
from deepinfer.ops.reference.linear import dequantize_blocks
from deepinfer.ops.reference.quantize import LARGEST, ceil_log2, dequantize, encode_e4m3, power_of_two

OUTPUTS = 8
"""Outputs of a product have to be a multiple of it: rows of bfloat16 then begin at multiples of 16 bytes."""
_FEW = 32
"""Rows an expert, on average, up to which its part is padded to 64 rows. Two parts would read its weights twice."""


class Per128(NamedTuple):
    """e4m3 [..., o, k] and float32 [..., ceil(o / 128), k / 128]: powers of two, of blocks."""

    values: torch.Tensor
    scales: torch.Tensor


class Library(Protocol):
    """Products of rows and weights, both dequantised: bfloat16, written to `out`."""

    def linear(self, rows: PerWide, weight: Per128, out: torch.Tensor) -> None:
        """Rows [n, k], a weight [o, k]: [n, o]."""

    def grouped(self, rows: PerWide, weight: Per128, out: torch.Tensor) -> None:
        """Rows [n, g, k], a weight [g, o, k]: each group by its own, [n, g, o]."""

    def experts(
        self, rows: PerWide, weight: Per128, ends: torch.Tensor, alignment: int, expected: int, out: torch.Tensor
    ) -> None:
        """Rows [p, k] in the order of `ops.per128.expert_rows`, a weight [experts, o, k]: [p, o].

        expected: rows that an expert has on average. Rows of no choice may become anything.
        """


def blocks(weight: torch.Tensor) -> Per128:
    """float32 [o, k], k a multiple of 128, quantised: the nearest values at the smallest power of two that holds each
    block of 128 x 128. The rows that the last block lacks count as zeros; a block of zeros has the scale 1.
    """
    o, k = weight.shape
    padded = torch.nn.functional.pad(weight, (0, 0, 0, -o % WIDE)).view(-1, WIDE, k // WIDE, WIDE)
    size = padded.abs()
    amax = torch.where(size.isnan(), 0.0, size).amax((1, 3))
    smallest, largest = LARGEST["e4m3"] * 2.0**-126, torch.finfo(torch.float32).max
    exponent = ceil_log2(amax.clamp(smallest, largest) * (1 / LARGEST["e4m3"]))
    exponent = torch.where(amax > 0, exponent, 0)
    values = encode_e4m3(padded * power_of_two(-exponent)[:, None, :, None]).view(-1, k)[:o]
    return Per128(values.contiguous(), power_of_two(exponent))


def of_fp8(weight: Fp8) -> Per128:
    """A weight [o, k] of 32 x 32 blocks."""
    return blocks(dequantize_blocks(*weight))


def of_groups(weight: Fp8, groups: int) -> Per128:
    """A weight [groups * o, k] as [groups, o, k]."""
    parts = [blocks(one) for one in dequantize_blocks(*weight).chunk(groups)]
    values = torch.stack([one.values.view(torch.uint8) for one in parts]).view(torch.float8_e4m3fn)
    return Per128(values, torch.stack([one.scales for one in parts]))


def of_fp4(weight: Fp4) -> Per128:
    """Experts' weights [experts, o, k]: twice their bytes. One expert's are dequantised at a time."""
    experts, o, half = weight.values.shape
    device = weight.values.device
    values = torch.empty((experts, o, 2 * half), dtype=torch.float8_e4m3fn, device=device)
    scales = torch.empty((experts, -(-o // WIDE), 2 * half // WIDE), dtype=torch.float32, device=device)
    for expert in range(experts):
        own = blocks(dequantize(weight.values[expert], weight.scales[expert]))
        values[expert], scales[expert] = own
    return Per128(values, scales)


def refused(outputs: int, columns: int) -> str:
    """Why there is no such product [n, columns] by [outputs, columns]; '' where there is."""
    if columns % WIDE:
        return f"{columns} columns are no multiple of {WIDE}"
    return f"{outputs} outputs are no multiple of {OUTPUTS}" if outputs % OUTPUTS else ""


def alignment_for(choices: int, experts: int) -> int:
    """Rows that the experts' parts are padded to, for so many choices of all rows together."""
    return ALIGNMENTS[choices > _FEW * experts]


@dataclass(frozen=True)
class WideLinear:
    """See `products.Linear`."""

    library: Library
    weight: Per128

    def of_step(self, step: HyperStep) -> torch.Tensor:
        return self.of_rows(step.y)

    def of_norm(self, x: torch.Tensor, gain: torch.Tensor, eps: float) -> torch.Tensor:
        return self._product(
            PerWide(
                *norm(x, gain, eps=eps, fmt="e4m3", num_per_channels=WIDE, round_sf=True,
                      use_tma_aligned_col_major_sf=True)
            )
        )  # fmt: skip

    def of_rows(self, x: torch.Tensor) -> torch.Tensor:
        return self._product(quantize_per128(x))

    def of_swiglu(self, gate_up: torch.Tensor, limit: float) -> torch.Tensor:
        return self._product(swiglu_per128(gate_up, limit))

    def of_quantized(self, rows: Quantized) -> torch.Tensor:
        return self._product(regroup_per128(*rows))

    def _product(self, rows: PerWide) -> torch.Tensor:
        out = _out(rows, len(rows.values), len(self.weight.values))
        self.library.linear(rows, self.weight, out)
        return out


@dataclass(frozen=True)
class WideHeads:
    """See `products.Heads`."""

    library: Library
    weight: Per128

    def __call__(self, o: torch.Tensor, positions: torch.Tensor, rope: torch.Tensor) -> torch.Tensor:
        groups, outputs, _ = self.weight.values.shape
        rows = rotate_heads_per128(o, positions, rope, groups)
        out = _out(rows, len(o), groups, outputs)
        self.library.grouped(rows, self.weight, out)
        return out.view(len(o), -1)


@dataclass(frozen=True)
class WideExperts:
    """See `products.Experts`. Sizes depend on the number of rows alone."""

    library: Library
    enter: Per128
    leave: Per128
    limit: float
    topk: int

    def __call__(self, step: HyperStep, ids: torch.Tensor, scaled: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        experts = len(self.enter.values)
        alignment, expected = alignment_for(ids.numel(), experts), max(-(-ids.numel() // experts), 1)
        order, offsets = expert_order(ids, experts)
        ends, choices = expert_rows(order, offsets, alignment)

        def product(rows: PerWide, weight: Per128) -> torch.Tensor:
            out = _out(rows, len(choices), weight.values.shape[1])
            self.library.experts(rows, weight, ends, alignment, expected, out)
            return out

        gate_up = product(quantize_per128(step.y, choices, self.topk), self.enter)
        inner = swiglu_per128(gate_up, self.limit, scaled.flatten(), choices)
        return product(inner, self.leave), choices


def _out(rows: PerWide, *shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device=rows.values.device)


class WideProducts:
    """See `products.Products`. Weights of other widths than the library takes stay exact, and are told."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self._kept: Counter[str] = Counter()

    def linear(self, weight: Fp8, name: str) -> Linear:
        if self._keeps(name, [weight.values.shape]):
            return EXACT.linear(weight, name)
        return WideLinear(self.library, of_fp8(weight))

    def heads(self, weight: Fp8, groups: int, name: str) -> Heads:
        outputs, columns = weight.values.shape
        if self._keeps(name, [(outputs // groups, columns)]):
            return EXACT.heads(weight, groups, name)
        return WideHeads(self.library, of_groups(weight, groups))

    def experts(self, enter: Fp4, leave: Fp4, limit: float, topk: int, name: str) -> Experts:
        shapes = [(one.values.shape[1], 2 * one.values.shape[2]) for one in (enter, leave)]
        if self._keeps(name, shapes):
            return EXACT.experts(enter, leave, limit, topk, name)
        return WideExperts(self.library, of_fp4(enter), of_fp4(leave), limit, topk)

    def notice(self) -> str:
        if not self._kept:
            return ""
        parts = [f"{what} ({count} layers)" if count > 1 else what for what, count in self._kept.items()]
        return f"exact products all the same for {', '.join(parts)}"

    def _keeps(self, name: str, shapes: Iterable[tuple[int, ...]]) -> bool:
        """Whether a weight stays exact, which is noted."""
        reason = next(filter(None, (refused(*shape) for shape in shapes)), "")
        if reason:
            plain = " and ".join(one.split(".", 2)[-1] for one in name.split(" and "))
            self._kept[f"{plain}: {reason}"] += 1
        return bool(reason)
