"""References of the hyper-connections' kernels (model_spec 3.2)."""

from __future__ import annotations

import functools

import torch

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.reference.quantize import quantize

STREAMS = 4


def _weighted(weights: torch.Tensor, trunk: torch.Tensor, *first: torch.Tensor) -> torch.Tensor:
    """first + the sum of weights [n, 4] times the streams, one rounding an operation, in bfloat16 at last: [n, d]."""
    terms = (weights[:, stream, None] * trunk[:, stream].float() for stream in range(STREAMS))
    return functools.reduce(torch.add, terms, *first).bfloat16()


def _posted(
    trunk: torch.Tensor, x: torch.Tensor | None, post: torch.Tensor | None, comb: torch.Tensor | None
) -> torch.Tensor:
    if x is None or post is None or comb is None:
        return trunk
    given = [post[:, j, None] * x.float() for j in range(STREAMS)]
    return torch.stack([_weighted(comb[:, :, j], trunk, given[j]) for j in range(STREAMS)], 1)


def _coefficients(
    u: torch.Tensor, base: torch.Tensor, scale: torch.Tensor, hc_eps: float, iterations: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(pre, post, comb) of u [n, 24], in its type."""
    m = STREAMS
    pre = torch.sigmoid(u[:, :m] * scale[0] + base[:m]) + hc_eps
    post = 2 * torch.sigmoid(u[:, m : 2 * m] * scale[1] + base[m : 2 * m])
    comb = torch.softmax((u[:, 2 * m :] * scale[2] + base[2 * m :]).reshape(-1, m, m), -1) + hc_eps
    comb = comb / (comb.sum(-2, keepdim=True) + hc_eps)
    for _ in range(iterations - 1):
        comb = comb / (comb.sum(-1, keepdim=True) + hc_eps)
        comb = comb / (comb.sum(-2, keepdim=True) + hc_eps)
    return pre, post, comb


def _inverse_rms(x: torch.Tensor, eps: float) -> torch.Tensor:
    return torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


@functools.cache
def hyper_step(d: int, eps: float, hc_eps: float, iterations: int) -> Kernel:
    """Post, mix, norm with Q8, and the next coefficients; sums and coefficients in float64."""

    def run(
        trunk: torch.Tensor,
        x: torch.Tensor | None,
        post: torch.Tensor | None,
        comb: torch.Tensor | None,
        pre: torch.Tensor,
        fn: torch.Tensor,
        base: torch.Tensor,
        scale: torch.Tensor,
        norm: torch.Tensor,
        trunk_out: torch.Tensor,
        y: torch.Tensor,
        values: torch.Tensor,
        scales: torch.Tensor,
        pre_out: torch.Tensor,
        post_out: torch.Tensor,
        comb_out: torch.Tensor,
    ) -> None:
        posted = _posted(trunk, x, post, comb)
        h = _weighted(pre, posted).double()
        y.copy_((h * _inverse_rms(h, eps) * norm.double()).float())
        codes, steps = quantize(y, "e4m3", 32, True, "ue8m0")
        values.view(torch.uint8).copy_(codes.view(torch.uint8))
        scales.copy_(steps)
        flat = posted.flatten(1).double()
        u = flat @ fn.double().T * _inverse_rms(flat, eps)
        found = _coefficients(u, base.double(), scale.double(), hc_eps, iterations)
        for one, target in zip(found, (pre_out, post_out, comb_out), strict=True):
            target.copy_(one)
        if x is not None:
            trunk_out.copy_(posted)

    return run


@functools.cache
def hyper_post(d: int) -> Kernel:
    """The trunk after a sub-layer."""

    def run(
        trunk: torch.Tensor, x: torch.Tensor, post: torch.Tensor, comb: torch.Tensor, trunk_out: torch.Tensor
    ) -> None:
        trunk_out.copy_(_posted(trunk, x, post, comb))

    return run


@functools.cache
def hyper_leave(d: int) -> Kernel:
    """The streams after a sub-layer, mixed."""

    def run(
        trunk: torch.Tensor,
        x: torch.Tensor | None,
        post: torch.Tensor | None,
        comb: torch.Tensor | None,
        pre: torch.Tensor,
        h: torch.Tensor,
    ) -> None:
        h.copy_(_weighted(pre, _posted(trunk, x, post, comb)))

    return run
