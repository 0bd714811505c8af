"""How two results are compared: one helper that tells the largest error, the share of wrong values and the first."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Tolerance:
    """|got - expected| <= absolute + relative * |expected|; both 0 asks for the same bits.

    NaN equals NaN, an infinity equals only itself. ratio: the share of values that may be beyond it.
    """

    absolute: float = 0.0
    relative: float = 0.0
    ratio: float = 0.0


EXACT = Tolerance()


def difference(name: str, expected: torch.Tensor, got: torch.Tensor, tolerance: Tolerance = EXACT) -> str:
    """'' where `got` is as expected, else what is wrong: largest error, share of wrong values, first wrong index.

    Both are tensors of one dtype and shape, on any device.
    """
    if got.dtype != expected.dtype or got.shape != expected.shape:
        return f"{name}: {_kind(got)}, expected {_kind(expected)}"
    expected, got = expected.detach().cpu(), got.detach().cpu()
    bits_expected, bits_got = as_bits(expected), as_bits(got)
    wrong = bits_expected != bits_got
    if not wrong.any():
        return ""
    # In double only where bits differ: of a large pool that is little or nothing.
    errors, beyond = _errors(bits_expected[wrong].view(expected.dtype), bits_got[wrong].view(expected.dtype), tolerance)
    wrong[wrong.clone()] = beyond
    count = int(beyond.sum())
    if count <= tolerance.ratio * expected.numel():
        return ""
    where = tuple(wrong.nonzero()[0].tolist())
    largest = float(errors[beyond].max())  # NaN, if one is
    return (
        f"{name}: largest error {largest:.3e}, {count} of {expected.numel()} values wrong "
        f"({count / expected.numel():.2%}), "
        f"first at {list(where)}: {_shown(got, where)}, expected {_shown(expected, where)}"
    )


def _errors(expected: torch.Tensor, got: torch.Tensor, tolerance: Tolerance) -> tuple[torch.Tensor, torch.Tensor]:
    """Of values whose bits differ: (|got - expected|, which are wrong). Integers are, whatever the tolerance."""
    wide_expected, wide_got = expected.double(), got.double()
    errors = (wide_got - wide_expected).abs()
    if not expected.dtype.is_floating_point:
        return errors, torch.ones_like(errors, dtype=torch.bool)
    both_nan = wide_expected.isnan() & wide_got.isnan()
    if tolerance.absolute == 0 and tolerance.relative == 0:
        return errors, ~both_nan
    within = errors <= tolerance.absolute + tolerance.relative * wide_expected.abs()
    return errors, ~(within & ~wide_expected.isinf()) & ~both_nan & (wide_expected != wide_got)


def as_bits(value: torch.Tensor) -> torch.Tensor:
    """The tensor's values as integers of the same width."""
    widths = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return value.contiguous().view(widths[value.element_size()])


def _kind(value: torch.Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"


def _shown(value: torch.Tensor, where: tuple[int, ...]) -> str:
    one = value[where]
    return str(one.item() if one.dtype.itemsize > 1 or not one.dtype.is_floating_point else one.float().item())
