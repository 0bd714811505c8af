"""Cases of the routed experts (model_spec 2.2, 2.3, 3.9)."""

from __future__ import annotations

from functools import partial

import torch

from deepinfer.ops.case import Argument, Call, Case
from deepinfer.ops.cases import quantized
from deepinfer.ops.cases.noise import noise


def choices_of(generator: torch.Generator, n: int, topk: int, experts: int, kind: str) -> torch.Tensor:
    """Choices of n rows. kind: "random", "one" (all the same expert), "none", "outside" (some are no choices)."""
    ids = torch.randint(0, experts, (n, topk), generator=generator, dtype=torch.int32)
    if kind == "one":
        ids.fill_(experts - 1)
    elif kind == "none":
        ids.fill_(-1)
    elif kind == "outside" and n:
        ids[0], ids[n // 2, 0], ids[-1, -1] = -1, experts, -1
    return ids


def sorted_choices(ids: torch.Tensor, experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    flat = ids.flatten().tolist()
    chosen = [one for one in range(len(flat)) if 0 <= flat[one] < experts]
    order = sorted(chosen, key=lambda one: flat[one])
    ends = [sum(flat[one] < expert for one in order) for expert in range(experts + 1)] if len(flat) < 5000 else None
    if ends is None:
        counted = torch.bincount(torch.tensor([flat[one] for one in order]), minlength=experts)
        ends = [0, *counted.cumsum(0).tolist()]
    order += [-1] * (len(flat) - len(order))
    return torch.tensor(order, dtype=torch.int32), torch.tensor(ends, dtype=torch.int32)


def _order(generator: torch.Generator, *, n: int, topk: int, experts: int, kind: str = "random") -> Call:
    arguments = [
        Argument("ids", choices_of(generator, n, topk, experts, kind)),
        Argument("order", torch.full((n * topk,), 77, dtype=torch.int32), output=True),
        Argument("offsets", torch.full((experts + 1,), 77, dtype=torch.int32), output=True),
    ]
    return Call(arguments, (experts,))


def _linear(
    generator: torch.Generator, *, n: int, topk: int, experts: int, k: int, o: int, kind: str = "random",
    second: bool = False, shared_weight: bool = False,
) -> Call:  # fmt: skip
    """second: as the experts' second product, whose rows are the positions themselves. shared_weight: one for all."""
    order, offsets = sorted_choices(choices_of(generator, n, topk, experts, kind), experts)
    rows = torch.arange(n * topk, dtype=torch.int32) if second else torch.where(order < 0, -1, order // topk)
    values, scales = quantized.rows(generator, n * topk if second else n, k)
    if kind == "outside":
        rows[0], rows[1] = len(values), -7
    weight, weight_scales = quantized.fp4_weight(generator, 1 if shared_weight else experts, o, k)
    arguments = [
        Argument("values", values),
        Argument("scales", scales),
        Argument("rows", rows.int()),
        Argument("offsets", offsets),
        Argument("weight", weight.expand(experts, -1, -1)),
        Argument("weight_scales", weight_scales.expand(experts, -1, -1)),
        Argument("out", noise(generator, (n * topk, o), torch.bfloat16), True, quantized.BF16_PRODUCT),
    ]
    return Call(arguments, (experts, o, k))


def _codes(generator: torch.Generator, *, experts: int) -> Call:
    """Every e2m1 code with every scale from 10 to 246: row i is 1 in column i and 0 elsewhere, so that the result is
    what the weight's columns stand for.
    """
    k, outputs = 2 * quantized.GROUP, 237
    ids = choices_of(generator, k, 1, experts, "random")
    order, offsets = sorted_choices(ids, experts)
    values, scales = quantized.unit_rows(range(k), k)
    codes = torch.stack([torch.randperm(16, generator=generator) for _ in range(experts * outputs * k // 16)])
    codes = codes.view(experts, outputs, k // 2, 2)
    weight_scales = torch.arange(10, 10 + outputs, dtype=torch.uint8)[None, :, None].expand(experts, -1, 2)
    arguments = [
        Argument("values", values),
        Argument("scales", scales),
        Argument("rows", order),
        Argument("offsets", offsets),
        Argument("weight", (codes[..., 0] + 16 * codes[..., 1]).to(torch.uint8).view(torch.int8)),
        Argument("weight_scales", weight_scales.contiguous()),
        Argument("out", noise(generator, (k, outputs), torch.bfloat16), True, quantized.SAME_NUMBERS),
    ]
    return Call(arguments, (experts, outputs, k))


def _combine(
    generator: torch.Generator, *, n: int, topk: int, d: int, kind: str = "random", padding: int = 0
) -> Call:  # fmt: skip
    """padding: positions of no choice, among the others."""
    order, _ = sorted_choices(choices_of(generator, n, topk, 8, kind), 8)
    if padding:
        places = torch.randperm(n * topk + padding, generator=generator)
        order = torch.cat((order, order.new_full((padding,), -1)))[places]
    routed = noise(generator, (len(order), d), torch.bfloat16)
    routed[order < 0] = torch.nan
    shared = noise(generator, (n, d), torch.bfloat16)
    if n:
        shared[0, :5] = -0.0
    arguments = [
        Argument("shared", shared),
        Argument("routed", routed),
        Argument("order", order),
        Argument("out", noise(generator, (n, d), torch.bfloat16), output=True),
    ]
    return Call(arguments, (topk,))


def cases() -> list[Case]:
    """Partial tiles, experts with no rows and with all of them, rows without experts; the real model's sizes."""
    return [*_order_cases(), *_linear_cases(), *_combine_cases()]


def _order_cases() -> list[Case]:
    found = []
    for name, n, topk, experts, kind in (
        ("one-row", 1, 6, 12, "random"), ("blocks", 151, 3, 12, "random"), ("outside", 60, 6, 40, "outside"),
        ("one-expert", 90, 3, 7, "one"), ("none", 50, 3, 5, "none"), ("no-rows", 0, 6, 12, "random"),
        ("decode", 33, 6, 384, "outside"), ("draft", 25, 3, 128, "random"), ("single", 5, 1, 1, "random"),
    ):  # fmt: skip
        make = partial(_order, n=n, topk=topk, experts=experts, kind=kind)
        found.append(Case("expert_order", f"order-{name}", make, engine=name in ("decode", "draft")))
    for n in (8192, 65536):
        found.append(Case("expert_order", f"order-{n}-rows", partial(_order, n=n, topk=6, experts=384), large=True))
    return found


def _linear_cases() -> list[Case]:
    found = []
    for name, n, topk, experts, k, o, kind in (
        ("one-row", 1, 3, 12, 96, 64, "random"), ("two-tiles", 50, 3, 2, 160, 96, "random"),
        ("outside", 30, 3, 5, 64, 72, "outside"), ("one-expert", 24, 3, 4, 32, 32, "one"),
        ("none", 3, 2, 3, 64, 32, "none"), ("no-rows", 0, 2, 3, 64, 32, "random"),
        ("even-few", 9, 3, 4, 512, 64, "outside"), ("even-many", 45, 3, 3, 128, 128, "outside"),
    ):  # fmt: skip
        make = partial(_linear, n=n, topk=topk, experts=experts, k=k, o=o, kind=kind)
        found.append(Case("expert_linear", f"linear-{name}", make))
    found.append(Case("expert_linear", "linear-second", partial(_linear, n=9, topk=3, experts=4, k=96, o=64,
                                                                second=True)))  # fmt: skip
    for experts in (2, 8):
        found.append(Case("expert_linear", f"every-code-{experts}-experts", partial(_codes, experts=experts)))
    for name, k, o, second in (("up", 5120, 4608, False), ("down", 2304, 5120, True)):
        real = partial(_linear, topk=6, k=k, o=o, second=second)
        # The draft has 128 experts. Of both there is a variant for few rows an expert and one for many.
        for experts, n in ((128, 2), (128, 500), (384, 2), (384, 2048)):
            make = partial(real, n=n, experts=experts, shared_weight=True)
            engine = n == 2 or not second
            found.append(Case("expert_linear", f"linear-{name}-{n}-of-{experts}", make, large=True, engine=engine))
        found.append(Case("expert_linear", f"linear-{name}-16-experts", partial(real, n=700, experts=16), large=True))
    return found


def _combine_cases() -> list[Case]:
    found = []
    for name, n, topk, d, kind in (
        ("one-row", 1, 6, 64, "random"), ("outside", 9, 3, 1100, "outside"), ("none", 3, 2, 96, "none"),
        ("no-rows", 0, 6, 64, "random"), ("real", 3, 6, 5120, "outside"), ("draft", 3, 3, 5120, "random"),
    ):  # fmt: skip
        make = partial(_combine, n=n, topk=topk, d=d, kind=kind)
        found.append(Case("combine", f"combine-{name}", make, engine=d == 5120))
    found.append(Case("combine", "combine-padded", partial(_combine, n=7, topk=3, d=96, kind="outside", padding=50)))
    found.append(Case("combine", "combine-4096-rows", partial(_combine, n=4096, topk=6, d=5120), large=True))
    return found
