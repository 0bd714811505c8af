"""Norm, rotary embedding, hyper-connections and experts of the oracle (model_spec 3.0, 3.2, 3.9)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from deepinfer.config import HyperConnections, Moe
from deepinfer.reference.precision import Precision, Tensor
from deepinfer.reference.weights import Weights


def rms_norm(p: Precision, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x * rsqrt(mean(x^2) + eps) * weight, rounded once."""
    return p.bf16(x * torch.rsqrt(p.total(x * x) / x.shape[-1] + eps) * weight)


def linear8(p: Precision, x: Tensor, weight: Tensor) -> Tensor:
    """L8: FP8 activations times a dequantised weight, bf16."""
    return p.bf16(p.matmul(p.q8(x), weight))


def rotate(p: Precision, x: Tensor, positions: Tensor, per_position: Tensor, *, inverse: bool = False) -> Tensor:
    """Rotate the last pairs (2j, 2j+1) of x [n, ..., d] by its row's position; not rounded."""
    angles = positions.float()[:, None] * per_position
    cos, sin = p.wide(angles.cos()), p.wide(angles.sin())
    sin = -sin if inverse else sin
    shape = (len(positions), *(1,) * (x.dim() - 2), cos.shape[-1])
    cos, sin = cos.view(shape), sin.view(shape)
    kept, pairs = x[..., : -2 * per_position.numel()], x[..., -2 * per_position.numel() :]
    a, b = pairs[..., 0::2], pairs[..., 1::2]
    turned = torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
    return torch.cat((kept, turned), -1)


@dataclass(frozen=True)
class Mix:
    """Coefficients of one sub-layer: pre [n, m], post [n, m], comb [n, m, m] (from, to)."""

    pre: Tensor
    post: Tensor
    comb: Tensor


def mix(p: Precision, hyper: HyperConnections, trunk: Tensor, w: Weights, name: str, eps: float) -> Mix:
    """The coefficients that the trunk [n, m, d] gives a sub-layer (model_spec 3.2, steps 5 and 6)."""
    m = hyper.streams
    flat = trunk.flatten(1)
    u = p.matmul(flat, w.plain(f"{name}_fn")) * torch.rsqrt(p.total(flat * flat) / flat.shape[1] + eps)
    base, scale = w.plain(f"{name}_base"), w.plain(f"{name}_scale")
    pre = torch.sigmoid(u[:, :m] * scale[0] + base[:m]) + hyper.eps
    post = 2 * torch.sigmoid(u[:, m : 2 * m] * scale[1] + base[m : 2 * m])
    comb = (u[:, 2 * m :] * scale[2] + base[2 * m :]).reshape(-1, m, m)
    return Mix(p.fp32(pre), p.fp32(post), p.fp32(sinkhorn(comb, hyper)))


def sinkhorn(c: Tensor, hyper: HyperConnections) -> Tensor:
    """Rows and columns of c [n, m, m] brought to the sum 1 by turns, columns last."""
    c = torch.softmax(c, -1) + hyper.eps
    c = c / (c.sum(-2, keepdim=True) + hyper.eps)
    for _ in range(hyper.sinkhorn_iterations - 1):
        c = c / (c.sum(-1, keepdim=True) + hyper.eps)
        c = c / (c.sum(-2, keepdim=True) + hyper.eps)
    return c


def post(p: Precision, trunk: Tensor, x: Tensor, coefficients: Mix) -> Tensor:
    """The trunk after a sub-layer gave x: post_j x + sum_i comb_ij trunk_i."""
    return p.bf16(coefficients.post[..., None] * x[:, None] + torch.einsum("nij,nid->njd", coefficients.comb, trunk))


def mixed(p: Precision, trunk: Tensor, pre: Tensor) -> Tensor:
    """The streams summed with the weights pre [n, m]."""
    return p.bf16(torch.einsum("nj,njd->nd", pre, trunk))


@dataclass(frozen=True)
class Routing:
    """ids [n, k] of the experts in the order of their ranks, and the scores [n, experts] that ranked them."""

    ids: Tensor
    scores: Tensor


def route(p: Precision, y: Tensor, w: Weights, name: str, topk: int, forced: Tensor | None) -> tuple[Routing, Tensor]:
    """The experts of each row, and their weights before scaling. Ties go to the lower id."""
    z = p.fp32(p.matmul(y, w.linear(f"{name}.gate")))
    s = torch.sqrt(torch.nn.functional.softplus(z))  # z itself above 20
    ranked = s + w.plain(f"{name}.gate.bias")
    ids = torch.sort(ranked, dim=-1, descending=True, stable=True).indices[:, :topk] if forced is None else forced
    chosen = s.gather(-1, ids)
    return Routing(ids, ranked), chosen / (p.total(chosen) + 1e-20)


def experts(p: Precision, moe: Moe, y: Tensor, routing: Routing, weights: Tensor, w: Weights, name: str) -> Tensor:
    """The shared expert and the routed ones, summed in the order of their ranks (model_spec 3.9)."""
    one = torch.ones_like(y[:, :1])
    out = _expert(p, moe, y, one, w, f"{name}.shared_experts")
    scaled = weights * moe.scaling
    values = torch.zeros((*routing.ids.shape, y.shape[-1]), dtype=y.dtype)
    for expert in sorted(set(routing.ids.flatten().tolist())):
        rows, ranks = (routing.ids == expert).nonzero(as_tuple=True)
        values[rows, ranks] = _expert(p, moe, y[rows], scaled[rows, ranks, None], w, f"{name}.experts.{expert}")
    for rank in range(routing.ids.shape[1]):
        out = out + values[:, rank]
    return p.bf16(out)


def _expert(p: Precision, moe: Moe, y: Tensor, weight: Tensor, w: Weights, name: str) -> Tensor:
    gate = linear8(p, y, w.linear(f"{name}.w1")).clamp_max(moe.swiglu_limit)
    up = linear8(p, y, w.linear(f"{name}.w3")).clamp(-moe.swiglu_limit, moe.swiglu_limit)
    return linear8(p, p.fp32(gate / (1 + torch.exp(-gate)) * up * weight), w.linear(f"{name}.w2"))
