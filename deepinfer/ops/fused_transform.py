"""Norm, rotation, Hadamard transform, cast and store of attention rows in one kernel (kernel_spec A.13)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from deepinfer.ops.checks import Arguments
from deepinfer.ops.dispatch import factory
from deepinfer.ops.formats import QUANTIZED_DTYPES, SF_DTYPES, KVCacheFormat, infer_format, split_kv_cache

NAME = "fused_norm_rope_hadamard_cast_store_kvcache"


@dataclass(frozen=True)
class NormArgs:
    """RMS norm of each row: weight [head_dim] bfloat16."""

    weight: torch.Tensor
    eps: float = 1e-6


@dataclass(frozen=True)
class RopeArgs:
    """Rotation of the last rotary_dim columns.

    positions: [n] int32 or int64; a row whose position is outside of the table is not rotated.
    cos_sin_cache: [P, rotary_dim] float32, cosines and then sines, rows at any stride.
    is_neox: pairs (j, j + rotary_dim / 2), else (2j, 2j + 1). conjugate: the inverse rotation.
    offset: the first column, which has to be head_dim - rotary_dim (None: that).
    """

    positions: torch.Tensor
    cos_sin_cache: torch.Tensor
    rotary_dim: int
    is_neox: bool
    offset: int | None = None
    conjugate: bool = False


@dataclass(frozen=True)
class HadamardArgs:
    """Walsh-Hadamard transform of rows of 128, times `scale`."""

    scale: float = 1.0


@dataclass(frozen=True)
class CastArgs:
    """Cast to "e4m3" or "e2m1" with a scale for each num_per_channels channels.

    sf_format: "ue8m0" (needs round_sf), "e4m3" (needs round_sf=False) or "fp32".
    cast_back: return what the cast values stand for, in bfloat16, instead of them.
    """

    fmt: str
    num_per_channels: int
    round_sf: bool = True
    sf_format: str = "ue8m0"
    cast_back: bool = False

    @classmethod
    def from_cache_format(cls, layout: KVCacheFormat) -> CastArgs:
        """The cast that a cache's format stores."""
        if layout.quantized_dtype is None:
            raise ValueError(f"CastArgs: {layout.note} is not quantised")
        return cls(layout.quantized_dtype, layout.elements_per_sf, layout.round_sf, layout.sf_format or "")


@dataclass(frozen=True)
class ContiguousOutArgs:
    """Where results go: out, and the scales sf with a cast."""

    out: torch.Tensor | None = None
    sf: torch.Tensor | None = None


@dataclass(frozen=True)
class KVCacheOutArgs:
    """Store in a paged cache, by slot [n] int32; rows of slots outside of the cache are left out.

    out: also return the row as it is at out_stage: after the "norm", after the "transform", or as "cast_back".
    layout: the cache's format; None infers it from the bytes a token.
    """

    kv_cache: torch.Tensor
    slot_mapping: torch.Tensor
    out: torch.Tensor | None = None
    out_stage: str = "transform"
    layout: KVCacheFormat | None = None


@dataclass
class _Call:
    """What the kernel is called with: its compile-time arguments, and the tensors that there are."""

    named: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)

    def run(self, x: torch.Tensor) -> None:
        order = ("weight", "positions", "cos", "sin", "out_bf16", "out_quant", "out_sf", "cache_quant", "cache_sf")
        if len(x):
            kernel = factory(f"{NAME}_tl")(x.shape[1], x.shape[2], small_batch=x.numel() <= 63 << 20, **self.named)
            kernel(x, *(self.tensors.get(name) for name in (*order, "slot_mapping")))


def fused_norm_rope_hadamard_cast_store_kvcache(
    x: torch.Tensor,
    norm_args: NormArgs | None = None,
    rope_args: RopeArgs | None = None,
    hadamard_args: HadamardArgs | None = None,
    cast_args: CastArgs | None = None,
    out_args: torch.Tensor | ContiguousOutArgs | KVCacheOutArgs | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None:
    """Norm, rotate, transform and cast each row, each step if its arguments are there, and return or store it.

    The row is rounded to bfloat16 after every step. Results are, bit by bit, those of `norm`, of a cast of the rows,
    and of `store_kv_cache`.

    Args:
        x: [n, heads, head_dim] or [n, head_dim] bfloat16, head_dim 128 or 512, the last dimension contiguous.
        out_args: where results go: a tensor or a pair, contiguous; or a cache, which needs one head and cast_args as
            the cache's format has them. None makes them.

    Returns:
        bfloat16 like x; or (values, scales) with a cast, without cast_back: e4m3 like x or e2m1 as int8
        [..., head_dim / 2], and ue8m0 scales four to an int32 [n, heads, packs], or others [n, heads, groups] in their
        type, without the last axis where it is 1. With a cache: its `out`, or None. A 2-D x has no head axis.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments(NAME)
    check.require(isinstance(x, torch.Tensor) and x.dim() in (2, 3), "x", "must be a tensor of 2 or 3 dimensions")
    flat = x.dim() == 2
    check.tensor("x", x, torch.bfloat16, ("n", "d") if flat else ("n", "heads", "d"))
    check.one_of("head_dim", check.size("d"), (128, 512))
    rows = x.unsqueeze(1) if flat else x
    call = _Call()
    _norm(check, call, norm_args)
    _rope(check, call, rope_args)
    if hadamard_args is not None:
        check.require(x.shape[-1] == 128, "hadamard_args", "needs rows of 128")
        call.named |= {"do_hadamard": True, "hadamard_scale": float(hadamard_args.scale)}
    _cast(check, call, cast_args)
    if isinstance(out_args, KVCacheOutArgs):
        _cache(check, call, rows, cast_args, out_args, tuple(x.shape))
        call.run(rows)
        return out_args.out
    given = ContiguousOutArgs(out_args) if isinstance(out_args, torch.Tensor) else out_args or ContiguousOutArgs()
    check.require(isinstance(given, ContiguousOutArgs), "out_args", "must be a tensor, or arguments of an output")
    if cast_args is None or cast_args.cast_back:
        check.require(given.sf is None, "out_args", "cannot take scales: the result is bfloat16")
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device) if given.out is None else given.out
        check.tensor("out", out, torch.bfloat16, tuple(x.shape), rows="contiguous")
        call.tensors["out_bf16"] = out.view(rows.shape)
        call.named |= {"return_bf16": True, "bf16_stage": "transform" if cast_args is None else "cast_back"}
        call.run(rows)
        return out
    result = _quantised(check, call, rows, cast_args, given, flat)
    call.run(rows)
    return result


def _norm(check: Arguments, call: _Call, given: NormArgs | None) -> None:
    if given is not None:
        call.tensors["weight"] = check.tensor("weight", given.weight, torch.bfloat16, ("d",), rows="contiguous")
        call.named |= {"do_norm": True, "norm_eps": float(given.eps)}


def _rope(check: Arguments, call: _Call, given: RopeArgs | None) -> None:
    if given is None:
        return
    width, rotary = check.size("d"), check.whole_number("rotary_dim", given.rotary_dim, at_least=2)
    check.require(rotary % 2 == 0 and rotary <= width, "rotary_dim", f"must be even and at most {width}, not {rotary}")
    offset = width - rotary if given.offset is None else given.offset
    check.require(offset == width - rotary, "offset", f"must be {width} - {rotary}: the last columns are rotated")
    positions = check.tensor("positions", given.positions, (torch.int32, torch.int64), ("n",), rows="contiguous")
    table = check.tensor("cos_sin_cache", given.cos_sin_cache, torch.float32, (None, rotary))
    call.tensors |= {"positions": positions, "cos": table[:, : rotary // 2], "sin": table[:, rotary // 2 :]}
    kind = "int32" if positions.dtype == torch.int32 else "int64"
    call.named |= {"do_rope": True, "rotary_dim": rotary, "rope_offset": offset, "positions_dtype": kind}
    call.named |= {"is_neox": bool(given.is_neox), "conjugate": bool(given.conjugate)}


def _cast(check: Arguments, call: _Call, given: CastArgs | None) -> None:
    if given is None:
        return
    check.one_of("fmt", given.fmt, QUANTIZED_DTYPES)
    check.one_of("sf_format", given.sf_format, SF_DTYPES)
    check.one_of("num_per_channels", given.num_per_channels, (16, 32, 64, 128))
    form = (given.num_per_channels, given.round_sf, given.sf_format)
    check.require(given.round_sf or given.sf_format != "ue8m0", "round_sf", "must be True for ue8m0 scales")
    check.require(not given.round_sf or given.sf_format != "e4m3", "round_sf", "must be False for e4m3 scales")
    fitting = given.fmt == "e4m3" or form in ((16, False, "e4m3"), (32, True, "ue8m0"))
    check.require(fitting, "cast_args", "for e2m1 must be 16 channels with e4m3 scales or 32 with ue8m0 scales")
    call.named |= {"cast_fmt": given.fmt, "num_per_channels": given.num_per_channels}
    call.named |= {"round_sf": given.round_sf, "sf_format": given.sf_format}


def _cache(
    check: Arguments,
    call: _Call,
    rows: torch.Tensor,
    cast: CastArgs | None,
    given: KVCacheOutArgs,
    shape: tuple[int, ...],
) -> None:
    check.require(rows.shape[1] == 1, "x", f"must have one head to be stored in a cache, not {rows.shape[1]}")
    cache = check.tensor("kv_cache", given.kv_cache, torch.uint8, (None,) * 4, rows="any")
    if cast is None:
        raise ValueError(f"{NAME}: cast_args must be given with a cache")
    layout = infer_format(cache, layout=given.layout, sf_format=None if given.layout else cast.sf_format)
    wanted = CastArgs.from_cache_format(layout)
    form = (cast.fmt, cast.num_per_channels, cast.round_sf, cast.sf_format)
    same = form == (wanted.fmt, wanted.num_per_channels, wanted.round_sf, wanted.sf_format)
    check.require(same, "cast_args", f"must be those of the cache's format, {layout.note}")
    check.require(check.size("d") == layout.elements, "x", f"must have rows of {layout.elements} for {layout.note}")
    slots = check.tensor("slot_mapping", given.slot_mapping, torch.int32, ("n",), rows="contiguous")
    parts = split_kv_cache(cache, layout)
    assert parts.quantized_data is not None and parts.sf_data is not None
    call.tensors |= {"cache_quant": parts.quantized_data, "cache_sf": parts.sf_data, "slot_mapping": slots}
    call.named |= {"cache_layout": layout, "block_size": cache.shape[1]}
    check.one_of("out_stage", given.out_stage, ("norm", "transform", "cast_back"))
    if given.out is not None:
        out = check.tensor("out", given.out, torch.bfloat16, shape, rows="contiguous")
        call.tensors["out_bf16"] = out.view(rows.shape)
        call.named |= {"return_bf16": True, "bf16_stage": given.out_stage}


def _quantised(
    check: Arguments, call: _Call, rows: torch.Tensor, cast: CastArgs, given: ContiguousOutArgs, flat: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Allocate or check (values, scales), and hand the kernel three-dimensional views of them."""
    n, heads, width = rows.shape
    lead = (n,) if flat else (n, heads)
    values = (*lead, width // 2 if cast.fmt == "e2m1" else width)
    groups = width // cast.num_per_channels
    packed = cast.sf_format == "ue8m0"
    check.require(not packed or groups % 4 == 0, "num_per_channels", "must give a multiple of four ue8m0 scales a row")
    count = groups // 4 if packed else groups
    scales = lead if count == 1 else (*lead, count)
    sf_dtype = torch.int32 if packed else SF_DTYPES[cast.sf_format]
    out = given.out
    if out is None:
        out = torch.empty(values, dtype=QUANTIZED_DTYPES[cast.fmt], device=rows.device)
    sf = torch.empty(scales, dtype=sf_dtype, device=rows.device) if given.sf is None else given.sf
    check.tensor("out", out, QUANTIZED_DTYPES[cast.fmt], values, rows="contiguous")
    check.tensor("sf", sf, sf_dtype, scales, rows="contiguous")
    every = sf.view(n, heads, count)
    call.tensors |= {
        "out_quant": out.view(n, heads, values[-1]),
        "out_sf": every.view(torch.uint8) if packed else every,
    }
    call.named["return_quant"] = True
    return out, sf
