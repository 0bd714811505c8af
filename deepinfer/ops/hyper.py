"""Hyper-connections: what becomes of the four streams between two sub-layers (model_spec 3.2)."""

from __future__ import annotations

from typing import NamedTuple

import torch

from deepinfer.ops.checks import Arguments
from deepinfer.ops.dispatch import factory

STREAMS = 4
COEFFICIENTS = STREAMS * (2 + STREAMS)
GROUP = 32


class HyperStep(NamedTuple):
    """What a sub-layer gets and what goes on to the next one; see `hyper_step`."""

    trunk: torch.Tensor
    y: torch.Tensor
    values: torch.Tensor
    scales: torch.Tensor
    pre: torch.Tensor
    post: torch.Tensor
    comb: torch.Tensor


def hyper_step(
    trunk: torch.Tensor,
    x: torch.Tensor | None,
    post: torch.Tensor | None,
    comb: torch.Tensor | None,
    pre: torch.Tensor,
    fn: torch.Tensor,
    base: torch.Tensor,
    scale: torch.Tensor,
    norm: torch.Tensor,
    eps: float,
    hc_eps: float,
    iterations: int,
    out: torch.Tensor | None = None,
) -> HyperStep:
    """From one sub-layer to the next: model_spec 3.2, steps 1 and 3 to 6, of the shifted variant.

    R'_j = bf16(post_j * x + sum_i comb_ij * R_i), or the trunk as it is without x; h = bf16(sum_j pre_j * R'_j);
    y = bf16(h * rsqrt(mean(h^2) + eps) * norm). u = flat(R') fn^T * rsqrt(mean(flat(R')^2) + eps) gives what goes on:
    pre' = sigmoid(u_j * scale_0 + base_j) + hc_eps, post' = 2 * sigmoid(…), comb' = Sinkhorn(…). Float32 between the
    roundings; of R' and h every product and every sum is rounded, in the order written. u is a float32 product, not
    a TF32 one. A row's result is the same in any batch.

    Args:
        trunk: [n, 4, d] bfloat16, contiguous, d a multiple of 32: the streams R.
        x: [n, d] bfloat16, contiguous: what the last sub-layer gave. None leaves R as it is (the first sub-layer, or
            a trunk that `hyper_post` made); then post and comb may be None, and are not read.
        post: [n, 4], comb: [n, 4, 4] (from, to), pre: [n, 4], float32, contiguous: what the last sub-layer decided.
        fn: [24, 4 * d], base: [24], scale: [3], float32, contiguous: of this sub-layer.
        norm: [d] bfloat16, contiguous: of this sub-layer.
        eps, hc_eps: rms_norm_eps and hc_eps of the configuration. iterations: hc_sinkhorn_iters, at least 1.
        out: as trunk, and may be it: where R' goes; made when it is None. Not with x None, where R' is the trunk.

    Returns:
        trunk R'; y [n, d] bfloat16 with values e4m3 [n, d] and scales uint8 (ue8m0) [n, d / 32], Q8 of y; pre' [n, 4],
        post' [n, 4] and comb' [n, 4, 4] float32.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("hyper_step")
    _streams(check, trunk, x, post, comb)
    check.tensor("pre", pre, torch.float32, ("n", STREAMS), rows="contiguous")
    n, d = check.size("n"), check.size("d")
    check.require(d % GROUP == 0, "trunk", f"must have streams of a multiple of {GROUP} values, not {d}")
    check.tensor("fn", fn, torch.float32, (COEFFICIENTS, STREAMS * d), rows="contiguous")
    check.tensor("base", base, torch.float32, (COEFFICIENTS,), rows="contiguous")
    check.tensor("scale", scale, torch.float32, (3,), rows="contiguous")
    check.tensor("norm", norm, torch.bfloat16, ("d",), rows="contiguous")
    check.whole_number("iterations", iterations, at_least=1, at_most=1000)
    check.require(x is not None or out is None, "out", "goes with x: without it, the trunk stays as it is")
    out = _like(check, trunk, out) if x is not None else trunk
    kind = {"dtype": torch.float32, "device": trunk.device}
    found = HyperStep(
        out,
        torch.empty((n, d), dtype=torch.bfloat16, device=trunk.device),
        torch.empty((n, d), dtype=torch.float8_e4m3fn, device=trunk.device),
        torch.empty((n, d // GROUP), dtype=torch.uint8, device=trunk.device),
        torch.empty((n, STREAMS), **kind),  # type: ignore[call-overload]
        torch.empty((n, STREAMS), **kind),  # type: ignore[call-overload]
        torch.empty((n, STREAMS, STREAMS), **kind),  # type: ignore[call-overload]
    )
    kernel = factory("hyper_step")(d, float(eps), float(hc_eps), iterations)
    kernel(trunk, x, post, comb, pre, fn, base, scale, norm, *found)
    return found


def hyper_post(
    trunk: torch.Tensor, x: torch.Tensor, post: torch.Tensor, comb: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """R' of `hyper_step` alone, for a layer that works on it before the streams are mixed (the n-gram memory).

    Args:
        trunk, x, post, comb, out: as in `hyper_step`; any d.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("hyper_post")
    check.require(x is not None, "x", "must be a tensor")
    _streams(check, trunk, x, post, comb)
    out = _like(check, trunk, out)
    factory("hyper_post")(check.size("d"))(trunk, x, post, comb, out)
    return out


def hyper_leave(
    trunk: torch.Tensor,
    x: torch.Tensor | None,
    post: torch.Tensor | None,
    comb: torch.Tensor | None,
    pre: torch.Tensor,
) -> torch.Tensor:
    """h of `hyper_step` alone, [n, d] bfloat16: the model's end; R' is not stored.

    Without x and with all of pre 0.25 it is the mean of the streams, which the draft model takes.

    Args:
        trunk, x, post, comb, pre: as in `hyper_step`; any d.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("hyper_leave")
    _streams(check, trunk, x, post, comb)
    check.tensor("pre", pre, torch.float32, ("n", STREAMS), rows="contiguous")
    h = torch.empty((check.size("n"), check.size("d")), dtype=torch.bfloat16, device=trunk.device)
    factory("hyper_leave")(check.size("d"))(trunk, x, post, comb, pre, h)
    return h


def _streams(
    check: Arguments,
    trunk: torch.Tensor,
    x: torch.Tensor | None,
    post: torch.Tensor | None,
    comb: torch.Tensor | None,
) -> None:
    check.tensor("trunk", trunk, torch.bfloat16, ("n", STREAMS, "d"), rows="contiguous")
    check.require(check.size("d") > 0, "trunk", "must have streams of at least one value")
    check.optional("x", x, torch.bfloat16, ("n", "d"), rows="contiguous")
    given = post is not None and comb is not None
    check.require(x is None or given, "x", "goes with post and comb: give all three")
    check.optional("post", post, torch.float32, ("n", STREAMS), rows="contiguous")
    check.optional("comb", comb, torch.float32, ("n", STREAMS, STREAMS), rows="contiguous")


def _like(check: Arguments, trunk: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    out = torch.empty_like(trunk) if out is None else out
    return check.tensor("out", out, torch.bfloat16, ("n", STREAMS, "d"), rows="contiguous")
