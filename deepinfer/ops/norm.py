"""RMS norm, with a sum before it and a cast to e4m3 after it (kernel_spec A.14)."""

from __future__ import annotations

from typing import Any

import torch

from deepinfer.ops.checks import Arguments
from deepinfer.ops.dispatch import factory

TYPES = {torch.bfloat16: "bfloat16", torch.float32: "float"}
WIDEST = 8192


def norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    residual: torch.Tensor | None = None,
    eps: float = 1e-6,
    out: torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None = None,
    fmt: str = "",
    num_per_channels: int = 0,
    use_tma_aligned_col_major_sf: bool = False,
    round_sf: bool = False,
    use_packed_ue8m0: bool = False,
    extra_sf_layout: str | None = None,
    extra_sf_out: torch.Tensor | None = None,
    extra_sf_block_m: int = 0,
    return_bf16: bool = False,
    out_scale: float = 1.0,
) -> Any:
    """t * rsqrt(mean(t^2) + eps) * (weight * out_scale) for every row, t = x + residual rounded to x's type.

    The statistics are float32, in a fixed order of additions that the fused transform shares. A row with a NaN or an
    infinity becomes NaN and leaves the others alone.

    Args:
        x: [M, d] or [B, M, d], bfloat16 or float32, rows contiguous, d a multiple of 16 and at most 8192.
        weight: [d] of x's type, contiguous.
        residual: as x.
        out: as x, or e4m3 with a cast. A pair (values, scales) for the cast to rows of packed scales: int32
            [..., d / num_per_channels / 4], its rows at any stride.
        fmt: "" or "e4m3": cast the result, rounded to x's type, with a scale for each `num_per_channels` channels.
        use_tma_aligned_col_major_sf: scales lie channel by channel, each column padded to a multiple of 4 rows.
        round_sf: scales are powers of two. use_packed_ue8m0: and stored as bytes, four in an int32, lowest first.
        extra_sf_layout: "mega_moe": the scales are also written to extra_sf_out, int32 [M, d / 128] of strides
            (1, rows), where the fused expert kernel with tiles of extra_sf_block_m tokens reads them: token t at row
            t // bm * align(bm, 128) + i // 128 * 128 + i % 32 * 4 + i % 128 // 32, i = t % bm. Needs a 2-D x, 32
            channels a scale, round_sf, and rows >= ceil(M / bm) * align(bm, 128); other rows stay as they are.
        return_bf16: return the result without the cast too, in bfloat16.

    Returns:
        y, or (y, scales) with a cast: float32 [..., G] or int32 [..., ceil(G / 4)], G = d / num_per_channels. With
        return_bf16 then (that, result). With a residual then (that, t).

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("norm")
    x3, weight = _inputs(check, x, weight)
    cast = bool(fmt)
    _check_cast(check, x3, fmt, num_per_channels, round_sf, use_packed_ue8m0)
    shape: tuple[int | str | None, ...] = tuple(x.shape)
    total = added = x3
    if residual is not None:
        added = _three(check.tensor("residual", residual, x.dtype, shape))
        total = torch.empty(x3.shape, dtype=x.dtype, device=x.device)
    sf_out = None
    if isinstance(out, tuple):
        packed_rows = cast and use_packed_ue8m0 and not use_tma_aligned_col_major_sf
        check.require(len(out) == 2 and packed_rows, "out", "may be a pair only for a cast with rows of packed scales")
        out, sf_out = out
        words = x.shape[-1] // num_per_channels // 4
        check.require(words * 4 * num_per_channels == x.shape[-1], "out", "needs a multiple of four scales a row")
        check.tensor("out[1]", sf_out, torch.int32, (*shape[:-1], words))
    returned = torch.float8_e4m3fn if cast else x.dtype
    if out is None:
        out = torch.empty(x.shape, dtype=returned, device=x.device)
    y = _three(check.tensor("out", out, returned, shape))
    origin = torch.empty(x3.shape, dtype=x.dtype, device=x.device) if cast and return_bf16 else x3
    sf = x3
    if cast:
        groups = x.shape[-1] // num_per_channels
        columns, packed = use_tma_aligned_col_major_sf, use_packed_ue8m0
        sf = _scales(x3, groups, columns, packed) if sf_out is None else _three(sf_out)
    shared = _shared(check, x, extra_sf_layout, extra_sf_out, extra_sf_block_m, num_per_channels, round_sf)
    factory("norm_tl")(
        x.shape[-1],
        TYPES[x.dtype],
        "e4m3" if cast else TYPES[x.dtype],
        has_residual=residual is not None,
        eps=float(eps),
        out_scale=float(out_scale),
        do_fp8_cast=cast,
        num_per_channels=num_per_channels,
        use_tma_aligned_col_major_sf=use_tma_aligned_col_major_sf,
        round_sf=round_sf,
        use_packed_ue8m0=use_packed_ue8m0,
        return_origin_out=origin is not x3,
        xdim=2 if x3.shape[0] == 1 else 3,
        shared_sf_block_m=extra_sf_block_m,
    )(x3, y, weight, added, total, sf, x3 if shared is None else shared, origin)
    result: Any = out
    if cast:
        result = (out, sf_out if sf_out is not None else sf[0] if x.dim() == 2 else sf)
    if return_bf16:
        result = (result, _as_bf16(origin.view(x.shape) if cast else out))
    return result if residual is None else (result, total.view(x.shape))


def _inputs(check: Arguments, x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    check.require(isinstance(x, torch.Tensor) and x.dim() in (2, 3), "x", "must be a tensor of 2 or 3 dimensions")
    check.tensor("x", x, tuple(TYPES), (None,) * (x.dim() - 1) + ("d",))
    width = check.size("d")
    check.require(0 < width <= WIDEST and width % 16 == 0, "x", f"must have rows of 16 to {WIDEST} values, not {width}")
    return _three(x), check.tensor("weight", weight, x.dtype, ("d",), rows="contiguous")


def _check_cast(check: Arguments, x: torch.Tensor, fmt: str, group: int, round_sf: bool, packed: bool) -> None:
    check.one_of("fmt", fmt, ("", "e4m3"))
    check.require(bool(fmt) == (group != 0), "num_per_channels", "goes with fmt: both or neither")
    check.require(round_sf or not packed, "use_packed_ue8m0", "needs round_sf: its scales are powers of two")
    if fmt:
        check.one_of("num_per_channels", group, (32, 64, 128))
        check.require(x.shape[-1] % group == 0, "num_per_channels", f"must divide {x.shape[-1]}, not be {group}")


def _three(x: torch.Tensor) -> torch.Tensor:
    return x.unsqueeze(0) if x.dim() == 2 else x


def _as_bf16(y: torch.Tensor) -> torch.Tensor:
    return y if y.dtype == torch.bfloat16 else y.to(torch.bfloat16)


def _scales(x: torch.Tensor, groups: int, columns: bool, packed: bool) -> torch.Tensor:
    batch, tokens = x.shape[:2]
    words = -(-groups // 4) if packed else groups
    dtype = torch.int32 if packed else torch.float32
    if not columns:
        return torch.empty((batch, tokens, words), dtype=dtype, device=x.device)
    stored = torch.empty((batch, words, -(-tokens // 4) * 4), dtype=dtype, device=x.device)
    return stored.transpose(1, 2)[:, :tokens]


def _shared(
    check: Arguments,
    x: torch.Tensor,
    layout: str | None,
    out: torch.Tensor | None,
    block_m: int,
    group: int,
    round_sf: bool,
) -> torch.Tensor | None:
    """extra_sf_out as bytes [rows, d / 128, 4]."""
    check.one_of("extra_sf_layout", layout, (None, "mega_moe"))
    check.whole_number("extra_sf_block_m", block_m, at_least=0)
    if layout is None or out is None or not block_m:
        given = layout is None and out is None and not block_m
        check.require(given, "extra_sf_out", "goes with extra_sf_layout and extra_sf_block_m: all three or none")
        return None
    tokens, width = x.shape[-2:]
    check.require(x.dim() == 2 and width % 128 == 0, "extra_sf_layout", "needs a 2-D x of a multiple of 128 channels")
    check.require(group == 32 and round_sf, "extra_sf_layout", "needs num_per_channels=32 and round_sf")
    check.tensor("extra_sf_out", out, torch.int32, (tokens, width // 128), rows="any")
    rows, least = out.stride(1), -(-tokens // block_m) * (-(-block_m // 128) * 128)
    check.require(
        (out.stride(0) == 1 or tokens == 1) and rows >= least,
        "extra_sf_out",
        f"must have the strides (1, rows), rows at least {least}, not {out.stride()}",
    )
    words = width // 128
    last = out.storage_offset() + (words - 1) * rows + least
    check.require(last * 4 <= out.untyped_storage().nbytes(), "extra_sf_out", f"must lie in a buffer of {least} rows")
    whole = out.as_strided((words, rows if words > 1 else least), (rows, 1))
    return whole.view(torch.uint8).as_strided((least, words, 4), (4, 4 * rows, 1), 4 * out.storage_offset())
