"""Cases of `gate_topk` (model_spec 3.9)."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from deepinfer.ops.case import Argument, Call, Case, Judge, Results
from deepinfer.ops.cases.noise import noise
from deepinfer.ops.tolerance import Tolerance

MARGIN = 2e-6
"""By how much two float32 scores may differ and still be ranked either way."""


def ranking(results: Results) -> torch.Tensor:
    """What experts are ranked by, [n, E] in float64; minus infinity for NaN."""
    bias = results["bias"].double().expand_as(results["logits"])
    if "is_image" in results:
        bias = torch.where(results["is_image"][:, None], results["bias_image"].double(), bias)
    ranked = torch.nn.functional.softplus(results["logits"].double()).sqrt() + bias
    return torch.where(ranked.isnan(), -torch.inf, ranked)


def _near_ties(expected: Results, got: Results) -> str:
    """Where ids differ, the experts must be nearly as good; the others have to be the same."""
    first, second = expected["ids"], got["ids"]
    if second.shape[1] > 1 and (second.sort(-1).values.diff(dim=-1) == 0)[second[:, 0] >= 0].any():
        return "ids: one expert twice in a row"
    different = first != second
    if not different.any():
        return ""
    if (second[different] < 0).any() or (second[different] >= got["logits"].shape[1]).any():
        return "ids: no expert has such an id, or a row that does not count has one"
    ranked = ranking(expected)
    gap = (ranked.gather(-1, first.clamp(min=0).long()) - ranked.gather(-1, second.clamp(min=0).long())).abs()
    allowed = MARGIN * ranked.abs().amax(-1, keepdim=True).clamp(1, 100)
    wrong = different & ~(gap <= allowed)
    return f"ids: {int(wrong.sum())} are no near-ties" if wrong.any() else ""


def _make(
    generator: torch.Generator,
    *,
    n: int,
    experts: int,
    topk: int,
    scaling: float = 1.5,
    images: bool = False,
    valid: bool = False,
    kind: str = "normal",
) -> Call:
    logits = noise(generator, (n, experts)) * 2
    bias = noise(generator, (experts,)) * 0.1
    exact = kind == "ties"
    if exact:
        logits, bias = logits.round(), torch.zeros(experts)
    if kind == "far":
        logits[::2] *= 30
        logits[1::4] = -200.0
    if kind == "spoilt":
        logits[1], logits[2, 3], logits[3, 5], logits[4] = torch.nan, torch.nan, torch.inf, -torch.inf
    image_bias = noise(generator, (experts,)) if images else None
    is_image = torch.rand(n, generator=generator) < 0.4 if images else None
    counts = torch.rand(n, generator=generator) < 0.7 if valid else None
    near: Judge | None = None if exact else _near_ties
    arguments = [
        Argument("logits", logits),
        Argument("bias", bias),
        Argument("bias_image", image_bias),
        Argument("is_image", is_image),
        Argument("valid", counts),
        Argument(
            "ids", torch.full((n, topk), 77, dtype=torch.int32), output=True, tolerance=Tolerance() if exact else None
        ),
        Argument("weights", torch.full((n, topk), 7.0), output=True, tolerance=Tolerance(relative=1e-5, absolute=1e-9)),
    ]
    return Call(arguments, (experts, topk, scaling), judge=near)


def cases() -> list[Case]:
    """The model's 384 experts and the draft's 128; ties; far and spoilt logits; odd sizes; all, one and no rows."""
    small: dict[str, dict[str, Any]] = {
        "ties": {"n": 9, "experts": 384, "topk": 6, "kind": "ties"},
        "ties-images": {"n": 6, "experts": 12, "topk": 3, "kind": "ties", "valid": True},
        "far": {"n": 10, "experts": 384, "topk": 6, "kind": "far"},
        "spoilt": {"n": 6, "experts": 384, "topk": 6, "kind": "spoilt"},
        "images": {"n": 11, "experts": 24, "topk": 4, "images": True},
        "tiny": {"n": 13, "experts": 12, "topk": 3, "images": True, "valid": True},
        "all-experts": {"n": 5, "experts": 8, "topk": 8},
        "one-expert": {"n": 3, "experts": 1, "topk": 1, "scaling": 1.0},
        "wide": {"n": 3, "experts": 1500, "topk": 9, "valid": True},
        "one-row": {"n": 1, "experts": 384, "topk": 6},
        "no-rows": {"n": 0, "experts": 384, "topk": 6, "valid": True},
    }
    found = [Case("gate_topk", name, partial(_make, **given)) for name, given in small.items()]
    for name, experts, topk in (("model", 384, 6), ("draft", 128, 3)):
        for images in (False, True):
            for valid in (False, True):
                make = partial(_make, experts=experts, topk=topk, images=images, valid=valid)
                called = f"{name}{'-images' * images}{'-valid' * valid}"
                found.append(Case("gate_topk", called, partial(make, n=7), engine=True))
                found.append(Case("gate_topk", f"{called}-16384", partial(make, n=16384), large=True))
    return found
