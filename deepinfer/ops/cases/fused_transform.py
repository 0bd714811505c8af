"""Cases of `fused_norm_rope_hadamard_cast_store_kvcache_tl` (kernel_spec A.13)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch

from deepinfer.ops.case import Argument, Call, Case
from deepinfer.ops.cases import paged
from deepinfer.ops.cases.store_kv_cache import NAMED
from deepinfer.ops.formats import QUANTIZED_DTYPES, SF_DTYPES

NAME = "fused_norm_rope_hadamard_cast_store_kvcache_tl"
TABLE_ROWS = 97


@dataclass(frozen=True)
class Transform:
    """A configuration. cast: (fmt, group, round_sf, sf_format). bf16: the stage returned, "" for none.

    stride: elements between two tokens' rows of x; cache: a name of NAMED, its blocks block_stride bytes apart.
    """

    heads: int = 1
    dim: int = 128
    norm: bool = False
    rope: bool = True
    rotary: int = 64
    neox: bool = False
    conjugate: bool = False
    wide_positions: bool = False
    hadamard: bool = False
    cast: tuple[str, int, bool, str] | None = None
    bf16: str = ""
    quant: bool = False
    cache: str = ""
    block_size: int = 0
    block_stride: int = 0
    stride: int = 0
    slots: str = "random"

    @property
    def form(self) -> tuple[str, int, bool, str]:
        """The cast, which a cache settles."""
        if not self.cache:
            return self.cast or ("", 0, False, "")
        layout = NAMED[self.cache]
        return (layout.quantized_dtype or "", layout.elements_per_sf, layout.round_sf, layout.sf_format or "")


MXFP8 = ("e4m3", 32, True, "ue8m0")
MXFP4 = ("e2m1", 32, True, "ue8m0")
Q = Transform(heads=64, dim=512, bf16="transform")
MAIN = Transform(dim=512, norm=True, cache="fp8-main", block_size=64)
INDEX = Transform(dim=128, norm=True, cache="fp4-index", block_size=64)

PRODUCTION = {
    "q-rope": Q,
    "q-rope-strided": replace(Q, stride=36864),
    "index-q-fp4": Transform(heads=32, cast=MXFP4, quant=True, stride=36864),
    "q-norm": replace(Q, heads=128, norm=True, rope=False, stride=73728),
    "q-norm-rope": replace(Q, heads=128, norm=True, stride=73728),
    "index-q-hadamard-fp4": Transform(heads=64, hadamard=True, cast=MXFP4, quant=True, stride=73728),
    "index-k-hadamard-fp4-b32": replace(INDEX, hadamard=True, block_size=32),
    "index-k-fp4-b64": INDEX,
    "index-k-fp4-b128": replace(INDEX, block_size=128),
    "swa-store-b129": replace(MAIN, block_size=129, stride=2048),
    "swa-store-b257": replace(MAIN, block_size=257, stride=2048),
    "index-q-mxfp8": Transform(heads=32, cast=MXFP8, quant=True, stride=69632),
    "index-k-mxfp8-b64": replace(INDEX, cache="mxfp8-index", block_stride=279040),
    "index-k-mxfp8-b128": replace(INDEX, cache="mxfp8-index", block_size=128, block_stride=279040),
    "compressed-mxfp8-b64": replace(MAIN, bf16="norm", block_stride=279840),
    "compressed-mxfp8-b128": replace(MAIN, bf16="norm", block_size=128, block_stride=279840),
    "swa-cast-back": Transform(dim=512, norm=True, cast=MXFP8, bf16="cast_back", stride=2048),
    "compressed-fp4-b128": replace(MAIN, cache="fp4-main", bf16="norm", block_size=128),
    "compressed-fp4-b64": replace(MAIN, cache="fp4-main", bf16="norm"),
}
HOPPER = {
    "o-inverse-rope": replace(Q, conjugate=True),
    "o-inverse-rope-mxfp8": replace(Q, conjugate=True, bf16="", cast=MXFP8, quant=True),
}
"""What attention needs besides where it is no single kernel: the inverse rotation of its output, and its cast."""
PLAIN = Transform(rope=False)
OTHERS = {
    "hadamard-mxfp8": replace(PLAIN, hadamard=True, cast=MXFP8, quant=True),
    "norm-hadamard": replace(PLAIN, heads=4, norm=True, hadamard=True, bf16="transform"),
    "rope-12-heads": Transform(heads=12, bf16="transform"),
    "copy": replace(PLAIN, bf16="transform"),
    "norm": replace(PLAIN, norm=True, bf16="transform"),
    "neox-conjugate-i64": Transform(neox=True, conjugate=True, wide_positions=True, bf16="transform"),
    "norm-neox": Transform(heads=3, norm=True, neox=True, bf16="transform"),
    "norm-conjugate": Transform(heads=2, dim=512, norm=True, conjugate=True, bf16="transform"),
    "rotary-32": Transform(rotary=32, bf16="transform"),
    "rotary-96-neox": Transform(rotary=96, neox=True, bf16="transform"),
    "rotary-all": Transform(rotary=128, bf16="transform"),
    "unrounded-float": Transform(cast=("e4m3", 128, False, "fp32"), quant=True),
    "rounded-float": Transform(cast=("e4m3", 128, True, "fp32"), quant=True),
    "g64": replace(PLAIN, dim=512, cast=("e4m3", 64, True, "ue8m0"), quant=True),
    "g64-float": replace(PLAIN, dim=512, cast=("e4m3", 64, True, "fp32"), quant=True),
    "e4m3-scales": replace(PLAIN, dim=512, cast=("e4m3", 32, False, "e4m3"), quant=True),
    "fp4-e4m3-scales": replace(PLAIN, heads=2, dim=512, cast=("e2m1", 16, False, "e4m3"), quant=True),
    "quant-and-cast-back": Transform(dim=512, norm=True, cast=MXFP8, quant=True, bf16="cast_back"),
    "fp4-cast-back": Transform(heads=2, cast=MXFP4, bf16="cast_back"),
    "store-fp8-main-b8": replace(MAIN, norm=False, block_size=8),
    "store-fp4-index-b8": replace(INDEX, block_size=8),
    "store-fp8-index-b8": replace(INDEX, cache="fp8-index", hadamard=True, block_size=8),
    "store-mxfp8-index-b8": replace(INDEX, cache="mxfp8-index", hadamard=True, block_size=8),
    "store-fp8-main-cast-back": replace(MAIN, bf16="cast_back", block_size=8),
    "store-fp4-main-norm-b8": replace(MAIN, cache="fp4-main", bf16="norm", block_size=8),
}
for _cache in ("fp8-main", "fp4-main"):
    for _slots in ("continuous", "cross-page", "invalid"):
        OTHERS[f"store-{_cache}-{_slots}"] = replace(MAIN, cache=_cache, bf16="norm", block_size=16, slots=_slots)


def _make(
    generator: torch.Generator, *, transform: Transform, count: int, spoilt: bool = False, wide: bool = False
) -> Call:
    t = transform
    shape = (count, t.heads, t.dim)
    flat = paged.rows(generator, count, t.heads * t.dim, t.stride or t.heads * t.dim)
    x = flat.as_strided(shape, (flat.stride(0), t.dim, 1))
    if wide:
        x.copy_(_of_any_size(generator, shape))
    if spoilt:
        x[0, 0, 3], x[2, 0, 40], x[3, 0, 100] = torch.nan, -torch.inf, torch.inf
    fmt, group, round_sf, sf_format = t.form
    weight = (1 + 0.1 * torch.randn(t.dim, generator=generator)).bfloat16()
    angles = torch.randn(TABLE_ROWS, t.rotary // 2, generator=generator) * 3
    table = torch.cat((angles.cos(), angles.sin()), dim=1)
    positions = torch.randint(0, TABLE_ROWS, (count,), generator=generator)
    positions[4::9], positions[5::9] = -1, TABLE_ROWS
    positions = positions if t.wide_positions else positions.int()
    out_bf16 = torch.full(shape, 9.0, dtype=torch.bfloat16)
    quant = sf = cache_quant = cache_sf = slots = None
    if t.quant:
        width = t.dim // 2 if fmt == "e2m1" else t.dim
        quant = torch.full((*shape[:2], width), 0x25, dtype=torch.int8).view(QUANTIZED_DTYPES[fmt])
        sf = torch.ones(*shape[:2], t.dim // group).to(SF_DTYPES[sf_format])
    if t.cache:
        blocks = -(-(count + 2 * t.block_size) // t.block_size)
        cache_quant, cache_sf, _ = paged.cache(NAMED[t.cache], blocks, t.block_size, block_stride=t.block_stride)
        slots = paged.slots(generator, t.slots, count, blocks * t.block_size, t.block_size)
    arguments = [
        Argument("x", x),
        Argument("weight", weight if t.norm else None),
        Argument("positions", positions if t.rope else None),
        Argument("cos", table[:, : t.rotary // 2] if t.rope else None),
        Argument("sin", table[:, t.rotary // 2 :] if t.rope else None),
        Argument("out_bf16", out_bf16 if t.bf16 else None, output=bool(t.bf16)),
        Argument("out_quant", quant, output=t.quant),
        Argument("out_sf", sf, output=t.quant),
        Argument("cache_quant", cache_quant, output=bool(t.cache)),
        Argument("cache_sf", cache_sf, output=bool(t.cache)),
        Argument("slot_mapping", slots),
    ]
    named = {
        "do_norm": t.norm, "norm_eps": 1e-20, "do_rope": t.rope, "rotary_dim": t.rotary if t.rope else 0,
        "rope_offset": t.dim - t.rotary if t.rope else 0, "positions_dtype": "int64" if t.wide_positions else "int32",
        "is_neox": t.neox, "conjugate": t.conjugate, "do_hadamard": t.hadamard, "hadamard_scale": 128**-0.5,
        "cast_fmt": fmt, "num_per_channels": group, "round_sf": round_sf, "sf_format": sf_format,
        "return_bf16": bool(t.bf16), "bf16_stage": t.bf16 or "transform", "return_quant": t.quant,
        "cache_layout": NAMED[t.cache] if t.cache else None, "block_size": t.block_size, "small_batch": count < 100,
    }  # fmt: skip
    return Call(arguments, (t.heads, t.dim), named)


def _of_any_size(generator: torch.Generator, shape: tuple[int, int, int]) -> torch.Tensor:
    """Finite values of any exponent, those of 32 neighbours within a few powers of two."""
    groups = torch.randint(0, 255, (*shape[:2], shape[2] // 32), generator=generator).repeat_interleave(32, 2)
    exponent = (groups - torch.randint(0, 6, shape, generator=generator)).clamp_min(0)
    fraction, sign = (torch.randint(0, most, shape, generator=generator) for most in (128, 2))
    return ((sign << 15) | (exponent << 7) | fraction).to(torch.int16).view(torch.bfloat16)


def cases() -> list[Case]:
    """The production configurations, small and large; the others; no rows; NaN, infinities and values of any size."""
    found = []
    for name, transform in {**PRODUCTION, **HOPPER}.items():
        make = partial(_make, transform=transform)
        small, large = (1, 4097) if transform.heads >= 64 else (3, 8193) if transform.heads > 1 else (17, 32769)
        found.append(Case(NAME, f"{name}-{small}", partial(make, count=small), engine=True))
        found.append(Case(NAME, f"{name}-{large}", partial(make, count=large), large=True))
    for name, transform in OTHERS.items():
        make = partial(_make, transform=transform)
        found.append(Case(NAME, f"{name}-11", partial(make, count=11)))
        found.append(Case(NAME, f"{name}-2333", partial(make, count=2333), large=True))
    for name in ("swa-store-b129", "index-k-hadamard-fp4-b32", "compressed-fp4-b64"):
        found.append(Case(NAME, f"{name}-nan", partial(_make, transform=PRODUCTION[name], count=5, spoilt=True)))
    query = PRODUCTION["index-q-fp4"]
    found.append(Case(NAME, "index-q-fp4-nan", partial(_make, transform=query, count=5, spoilt=True)))
    for count in (3, 513):
        make = partial(_make, transform=query, count=count, wide=True)
        found.append(Case(NAME, f"index-q-fp4-wide-{count}", make, large=count > 100))
    for name in ("q-rope", "swa-store-b129", "index-q-fp4"):
        found.append(Case(NAME, f"{name}-no-rows", partial(_make, transform=PRODUCTION[name], count=0)))
    return found
