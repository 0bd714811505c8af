"""Cases of `norm_tl` (kernel_spec A.14)."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from deepinfer.ops.case import Argument, Call, Case

WIDTHS = (128, 512, 1024, 1280, 1536, 2048, 4096, 5120, 7168)
TYPES = {"bfloat16": torch.bfloat16, "float": torch.float32, "e4m3": torch.float8_e4m3fn}


@dataclass(frozen=True)
class Form:
    """What is written: e4m3 with scales for `group` channels (0: x's type or bfloat16), and what goes with it."""

    group: int = 0
    column_major: bool = False
    rounded: bool = False
    packed: bool = False
    bf16: bool = False
    buffers: bool = False
    block_m: int = 0

    @property
    def name(self) -> str:
        """As in "e4m3-32-col-round-packed-bf16"."""
        flags = (("col", self.column_major), ("round", self.rounded), ("packed", self.packed), ("bf16", self.bf16))
        parts = [f"e4m3-{self.group}" if self.group else "plain", *(word for word, on in flags if on)]
        parts += ["buffers"] * self.buffers + [f"shared{self.block_m}"] * bool(self.block_m)
        return "-".join(parts)


LAYOUTS = [
    (32, False, False, False),
    (32, False, True, False),
    (32, False, True, True),
    (32, True, True, True),
    (128, False, False, False),
    (128, False, True, False),
    (128, False, True, True),
    (128, True, False, False),
    (128, True, True, False),
    (128, True, True, True),
]
MEGA = (32, False, True, True)
FORMS = [Form(), Form(bf16=True), Form(buffers=True)]
FORMS += [Form(*layout) for layout in LAYOUTS]
FORMS += [Form(32, True, True, True, True), Form(128, True, True, True, True), Form(*MEGA, bf16=True, buffers=True)]
FORMS += [
    Form(*layout, bf16=True, buffers=True, block_m=block_m)
    for layout in (MEGA, (32, True, True, True), (32, False, True, False))
    for block_m in (16, 192)
]


def scale_buffer(batch: int, tokens: int, width: int, form: Form, *, gap: int = 0) -> torch.Tensor:
    """Where the scales go, filled with junk: a view as the form's layout says, with `gap` words between packed rows."""
    groups = width // form.group
    words = -(-groups // 4) if form.packed else groups
    dtype, junk = (torch.int32, 0x5A5A5A5A) if form.packed else (torch.float32, 7.0)
    if form.column_major:
        stored = torch.full((batch, words, -(-tokens // 4) * 4), junk, dtype=dtype)
        return stored.transpose(1, 2)[:, :tokens]
    return torch.full((batch, tokens, words + gap), junk, dtype=dtype)[..., :words]


def _values(generator: torch.Generator, batch: int, tokens: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    x = torch.randn(batch, tokens, width + 64, generator=generator)
    if tokens > 2:
        x[:, 1] = 0
        x[:, 2] *= 1e4
    x[:, ::3, ::7] = -0.0
    return x.to(dtype)[..., :width]


def _make(
    generator: torch.Generator,
    *,
    width: int,
    form: Form,
    tokens: int,
    residual: bool,
    batch: int = 1,
    dtype: str = "bfloat16",
    out_scale: float = 1.0,
    eps: float = 1e-6,
    spoilt: bool = False,
) -> Call:
    kind = TYPES[dtype]
    x = _values(generator, batch, tokens, width, kind)
    if spoilt:
        x[:, 1, 3], x[:, 2, 5] = torch.nan, torch.inf
    returned = "e4m3" if form.group else "bfloat16" if form.bf16 else dtype
    y = torch.full((batch, tokens, width + 32 * form.buffers), 5.0).to(TYPES[returned])[..., :width]
    weight = (1 + 0.1 * torch.randn(width, generator=generator)).to(kind)
    added = _values(generator, batch, tokens, width, kind) if residual else x
    total = torch.full((batch, tokens, width), 9.0, dtype=kind) if residual else x
    origin = torch.full((batch, tokens, width), 9.0, dtype=kind) if form.group and form.bf16 else x
    sf = scale_buffer(batch, tokens, width, form, gap=4 * form.buffers) if form.group else x
    shared = x
    if form.block_m:
        rows = -(-tokens // form.block_m) * (-(-form.block_m // 128) * 128)
        shared = torch.full((width // 128, rows, 4), 0x5A, dtype=torch.uint8).transpose(0, 1)
    arguments = [
        Argument("x", x),
        Argument("y", y, output=True),
        Argument("w", weight),
        Argument("residual", added),
        Argument("residual_out", total, output=residual),
        Argument("sf", sf, output=bool(form.group)),
        Argument("shared_sf", shared, output=bool(form.block_m)),
        Argument("y_origin", origin, output=origin is not x),
    ]
    named = {
        "has_residual": residual, "eps": eps, "out_scale": out_scale, "do_fp8_cast": bool(form.group),
        "num_per_channels": form.group, "use_tma_aligned_col_major_sf": form.column_major, "round_sf": form.rounded,
        "use_packed_ue8m0": form.packed, "return_origin_out": origin is not x, "xdim": 2 if batch == 1 else 3,
        "shared_sf_block_m": form.block_m, "x_stride_s": x.stride(1),
    }  # fmt: skip
    return Call(arguments, (width, dtype, returned), named)


def _every_form() -> list[Case]:
    """All forms with and without a sum before, the widths in turn: small, and with the specification's 16384 rows."""
    found = []
    widths = itertools.cycle(WIDTHS)
    for residual, form in itertools.product((False, True), FORMS):
        width = next(widths)
        if form.group and (width // form.group) % 4 and form.packed and form.block_m:
            width = next(widths)
        tokens = 3 if width > 2048 else 19
        name = f"{width}-{form.name}{'-residual' * residual}"
        make = partial(_make, width=width, form=form, residual=residual)
        found.append(Case("norm_tl", name, partial(make, tokens=tokens)))
        found.append(Case("norm_tl", f"{name}-16384", partial(make, tokens=16384), large=True))
    return found


def _of_the_model() -> list[Case]:
    """The widths 5120, 1280 and 512 as the model norms them: to bfloat16, to e4m3 per 32 channels, to both."""
    production = Form(32, True, True, True)
    forms = {
        5120: (Form(), Form(32, True, True, True, True), Form(*MEGA, bf16=True, buffers=True)),
        1280: (Form(), production, Form(32, False, True, False)),
        512: (Form(),),
    }
    found = []
    for width, of_width in forms.items():
        for form in of_width:
            make = partial(_make, width=width, form=form, residual=False, eps=1e-20)
            found.append(Case("norm_tl", f"model-{width}-{form.name}", partial(make, tokens=5), engine=True))
            large = partial(make, tokens=40000)
            found.append(Case("norm_tl", f"model-{width}-{form.name}-40000", large, large=True))
    return found


def cases() -> list[Case]:
    """Every output form; the model's own; float32, batches, no rows, one row, odd widths, NaN and infinities."""
    mega, rows = Form(*MEGA, bf16=True), Form(32, False, True, False)
    others: dict[str, dict[str, Any]] = {
        "float": {"width": 512, "dtype": "float"},
        "float-e4m3": {"width": 256, "dtype": "float", "form": mega},
        "float-to-bf16": {"width": 256, "dtype": "float", "form": Form(bf16=True)},
        "float-residual": {"width": 1280, "dtype": "float", "residual": True, "tokens": 3},
        "batch": {"width": 128, "batch": 3},
        "batch-columns": {"width": 384, "batch": 2, "form": Form(32, True, True, True, True), "residual": True},
        "batch-float-columns": {"width": 256, "batch": 2, "form": Form(128, True, True)},
        "scaled": {"width": 512, "out_scale": 1.5},
        "scaled-e4m3": {"width": 512, "out_scale": 1.5, "form": rows},
        "unfilled-pack": {"width": 160, "form": Form(32, False, True, True)},
        "unfilled-pack-columns": {"width": 160, "form": Form(32, True, True, True)},
        "narrow": {"width": 16},
        "odd-width": {"width": 1040, "residual": True},
        "widest": {"width": 8192, "tokens": 2, "form": mega},
        "no-rows": {"width": 512, "tokens": 0, "form": rows},
        "one-row": {"width": 512, "tokens": 1},
        "nan": {"width": 512, "tokens": 4, "form": mega, "spoilt": True},
        "nan-float-scales": {"width": 512, "tokens": 4, "form": Form(32), "spoilt": True},
    }
    defaults: dict[str, Any] = {"form": Form(), "tokens": 11, "residual": False}
    small = [Case("norm_tl", name, partial(_make, **{**defaults, **given})) for name, given in others.items()]
    return [*_every_form(), *_of_the_model(), *small]
