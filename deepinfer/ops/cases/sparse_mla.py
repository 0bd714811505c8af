"""Cases of attention over chosen keys (model_spec 3.3, 3.7, 4.2)."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from deepinfer.ops.case import Argument, Call, Case, Results
from deepinfer.ops.cases import paged
from deepinfer.ops.cases.noise import noise
from deepinfer.ops.formats import V41_FORMAT, V41_FP4_FORMAT, KVCacheFormat
from deepinfer.ops.reference.quantize import dequantize, quantize
from deepinfer.ops.tolerance import Tolerance

SCALE = 512**-0.5
RING = 134
ERROR = 2**-8
"""What rounding the weights twice, relative to two numbers, may change of (sum of w * |k|)."""
_DISTINCT = 10_007
"""Keys after which a cache repeats: to quantise a large one's would take ten seconds."""
_EACH = Tolerance(absolute=4 * ERROR, relative=ERROR)


def _close(expected: Results, got: Results) -> str:
    """No head's vector may be off by more of its length than every weight may be of its own."""
    first, second = expected["out"].double(), got["out"].double()
    off, length = (second - first).norm(dim=-1), first.norm(dim=-1)
    wrong = off > ERROR * length + 1e-6
    if not wrong.any():
        return ""
    return f"out: {int(wrong.sum())} heads are off by up to {float((off / length)[wrong].max()):.2e} of their length"


def _queries(generator: torch.Generator, n: int, h: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows whose weights are alike, and such that one key has nearly all; sinks that matter more or less."""
    q = noise(generator, (n, h, 512), torch.bfloat16)
    sizes = torch.tensor([1.0, 4.0, 0.25, 16.0, 0.0]).repeat(-(-n // 5))[:n]
    q *= sizes.bfloat16()[:, None, None]
    return q, noise(generator, (h,)) * 2


def _lists(generator: torch.Generator, n: int, width: int, room: int, kind: str) -> torch.Tensor:
    """[n, width] entries below `room`, -1 behind a length that differs, within a larger tensor of other numbers."""
    whole = torch.full((n + 2, width + 3), 5, dtype=torch.int32)
    listed = whole[1 : n + 1, :width]
    if not listed.numel():
        return listed
    listed.copy_(torch.randint(0, max(room, 1), listed.shape, generator=generator))
    if kind == "full":
        return listed
    length = torch.randint(0, width + 1, (n, 1), generator=generator)
    listed.masked_fill_(torch.arange(width) >= length, -1)
    listed[n // 2] = -1
    if kind == "holes":
        listed.masked_fill_(torch.rand(listed.shape, generator=generator) < 0.4, -1)
        listed[0, ::3], listed[0, 1::5], listed[0, 2::7] = room, -7, 2**31 - 1
    return listed


def _sinks(sink: torch.Tensor, kind: str) -> torch.Tensor:
    if kind == "holes":
        sink[0], sink[1], sink[2] = -torch.inf, 90.0, -90.0
    return sink


def _call(arguments: list[Argument], n: int, h: int, parameters: tuple[Any, ...]) -> Call:
    out = torch.full((n, h, 512), 77.0)
    return Call([*arguments, Argument("out", out, output=True, tolerance=_EACH)], parameters, judge=_close)


def _prefill(generator: torch.Generator, *, n: int, h: int, window: int, topk: int, t: int, kind: str = "some") -> Call:
    q, sink = _queries(generator, n, h)
    kv = dequantize(*quantize(noise(generator, (t, 512)), "e4m3", 32, True, "ue8m0")).bfloat16()
    arguments = [
        Argument("q", q),
        Argument("kv", kv),
        Argument("indices", _lists(generator, n, window + topk, t, kind)),
        Argument("sink", _sinks(sink, kind)),
    ]
    return _call(arguments, n, h, (window, SCALE))


def entries(generator: torch.Generator, layout: KVCacheFormat, blocks: int, size: int, stride: int = 0) -> torch.Tensor:
    """A cache uint8 [blocks, size, 1, bytes] of normally distributed keys; blocks `stride` bytes apart, in junk."""
    values, scales, _ = paged.cache(layout, blocks, size, block_stride=stride)
    assert values is not None and scales is not None
    codes, stored = quantize(
        noise(generator, (min(blocks * size, _DISTINCT), 512)),
        layout.quantized_dtype or "",
        layout.elements_per_sf,
        layout.round_sf,
        layout.sf_format or "",
    )
    row = (torch.arange(blocks * size) % _DISTINCT).view(blocks, size)
    values.view(torch.uint8).copy_(codes.view(torch.uint8)[row])
    scales.view(torch.uint8).copy_(stored.view(torch.uint8)[row])
    width = layout.bytes_per_token
    return values.view(torch.uint8).as_strided((blocks, size, 1, width), (values.stride(0), width, width, 1))


def _decode(
    generator: torch.Generator,
    *,
    n: int,
    h: int,
    window: int,
    slots: int,
    topk: int = 0,
    layout: KVCacheFormat | None = None,
    blocks: int = 3,
    size: int = 64,
    ring: int = RING,
    kind: str = "some",
    stride: int = 0,
) -> Call:
    q, sink = _queries(generator, n, h)
    cache = listed = None
    if layout is not None:
        cache = entries(generator, layout, blocks, size, stride)
        listed = _lists(generator, n, topk, blocks * size, kind)
    arguments = [
        Argument("q", q),
        Argument("swa_cache", entries(generator, V41_FORMAT, slots, ring, stride)),
        Argument("swa_indices", _lists(generator, n, window, slots * ring, kind)),
        Argument("cache", cache),
        Argument("indices", listed),
        Argument("sink", _sinks(sink, kind)),
    ]
    return _call(arguments, n, h, (layout, SCALE))


def cases() -> list[Case]:
    """The model's widths in every format; holes and numbers that are no entries; few heads, few columns, no rows."""
    return [*_prefills(), *_decodes()]


def _prefills() -> list[Case]:
    small: dict[str, dict[str, Any]] = {
        "tiny": {"n": 6, "h": 4, "window": 32, "topk": 16, "t": 90},
        "holes": {"n": 5, "h": 4, "window": 70, "topk": 30, "t": 90, "kind": "holes"},
        "heads": {"n": 3, "h": 70, "window": 5, "topk": 1, "t": 20},
        "one-set": {"n": 3, "h": 8, "window": 100, "topk": 0, "t": 300, "kind": "full"},
        "second-set": {"n": 3, "h": 8, "window": 0, "topk": 20, "t": 30},
        "no-keys": {"n": 2, "h": 3, "window": 4, "topk": 2, "t": 0},
        "no-rows": {"n": 0, "h": 64, "window": 128, "topk": 512, "t": 7},
    }
    found = [
        Case("sparse_attention_prefill", f"prefill-{name}", partial(_prefill, **given)) for name, given in small.items()
    ]
    for topk in (0, 512):
        make = partial(_prefill, h=64, window=128, topk=topk)
        few, many = partial(make, n=3, t=900), partial(make, n=2048, t=30_000, kind="full")
        found.append(Case("sparse_attention_prefill", f"prefill-model-{topk}", few, engine=True))
        found.append(Case("sparse_attention_prefill", f"prefill-model-{topk}-2048", many, large=True))
    return found


def _decodes() -> list[Case]:
    fp4, fp8 = V41_FP4_FORMAT, V41_FORMAT
    small: dict[str, dict[str, Any]] = {
        "tiny": {"n": 6, "h": 4, "window": 32, "slots": 3, "ring": 38, "topk": 16, "layout": fp4},
        "tiny-window": {"n": 3, "h": 4, "window": 32, "slots": 3, "ring": 38},
        "holes": {"n": 5, "h": 4, "window": 70, "slots": 2, "topk": 90, "layout": fp4, "kind": "holes"},
        "holes-fp8": {"n": 5, "h": 4, "window": 3, "slots": 2, "topk": 70, "layout": fp8, "kind": "holes"},
        "odd-strides": {"n": 3, "h": 4, "window": 9, "slots": 2, "topk": 9, "layout": fp4, "stride": RING * 528 + 7},
        "no-blocks": {"n": 2, "h": 4, "window": 9, "slots": 2, "topk": 5, "layout": fp4, "blocks": 0},
        "no-columns": {"n": 2, "h": 4, "window": 0, "slots": 1, "topk": 0, "layout": fp8},
        "no-rows": {"n": 0, "h": 64, "window": 128, "slots": 1},
    }
    found = [
        Case("sparse_attention_decode", f"decode-{name}", partial(_decode, **given)) for name, given in small.items()
    ]
    # What the layers without compressed keys see, the draft, and those with: two tokens an entry, one, or all FP8.
    kinds: dict[str, dict[str, Any]] = {
        "window": {"window": 128},
        "draft": {"window": 133},
        "fp4-64": {"window": 128, "topk": 512, "layout": fp4, "size": 64},
        "fp4-128": {"window": 128, "topk": 512, "layout": fp4, "size": 128},
        "fp8-64": {"window": 128, "topk": 512, "layout": fp8, "size": 64},
    }
    for name, given in kinds.items():
        make = partial(_decode, h=64, **given)
        few, many = partial(make, n=3, slots=2, blocks=12), partial(make, n=384, slots=77, blocks=1500, kind="full")
        found.append(Case("sparse_attention_decode", f"decode-model-{name}", few, engine=True))
        # Rows enough for programs of more columns, and of whole rows: large, as the interpreter would take long.
        for n in (24, 48, 96):
            some = partial(make, n=n, slots=20, blocks=12)
            found.append(Case("sparse_attention_decode", f"decode-model-{name}-{n}", some, engine=True, large=True))
        found.append(Case("sparse_attention_decode", f"decode-model-{name}-384", many, large=True))
    return found
