"""An oracle for narrow formats in plain Python: values from tables, scales from comparisons of exact numbers."""

from __future__ import annotations

import bisect
import itertools
import math
import struct
from collections.abc import Sequence
from fractions import Fraction

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E4M3 = tuple((code & 7) * 2.0**-9 if code < 8 else (8 + (code & 7)) * 2.0 ** ((code >> 3) - 10) for code in range(127))
LARGEST = {"e4m3": 448.0, "e2m1": 6.0}
MARGIN = {"e4m3": 1e-4, "e2m1": 6 * 2.0**-126}
LAST = 3.4028234663852886e38
_MIDDLES = {
    table: [(low + high) / 2 for low, high in itertools.pairwise(table)] for table in (E2M1, E4M3)
}  # exact in float64


def f32(value: float) -> float:
    """Rounded to float32."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def code(value: float, table: Sequence[float]) -> int:
    """The code of the nearest of a table of magnitudes; a tie goes to the even one, too large a value to the last."""
    if math.isnan(value):
        return 7 if len(table) == 8 else 0x7F
    middles = _MIDDLES[tuple(table)]
    index = bisect.bisect_left(middles, abs(value))
    if index < len(middles) and abs(value) == middles[index] and index % 2:
        index += 1
    negative = value < 0 or (value == 0 and str(value) == "-0.0")
    return index | (negative * (8 if len(table) == 8 else 0x80))


def number(code_: int, table: Sequence[float]) -> float:
    """The value of a code."""
    sign = 8 if len(table) == 8 else 0x80
    return table[code_ & (sign - 1)] * (-1.0 if code_ & sign else 1.0)


def quantise(
    row: Sequence[float], fmt: str, group: int, sf_format: str, round_sf: bool = True
) -> tuple[list[int], list]:
    """Bytes of a row of numbers, and its scales: bytes of ue8m0 and e4m3, numbers of fp32."""
    table = E2M1 if fmt == "e2m1" else E4M3
    codes: list[int] = []
    scales: list = []
    for start in range(0, len(row), group):
        part = row[start : start + group]
        amax = min(max(f32(MARGIN[fmt]), *(abs(value) for value in part if not math.isnan(value)), 0.0), LAST)
        if sf_format == "e4m3":
            floor = max(amax, LARGEST[fmt] * 2.0**-9)
            byte = code(min(f32(floor * f32(1 / LARGEST[fmt])), 448.0), E4M3)
            scales.append(byte)
            factor = f32(1 / E4M3[byte])
        elif round_sf:
            exponent = next(e for e in range(-126, 128) if Fraction(LARGEST[fmt]) * Fraction(2) ** e >= Fraction(amax))
            scales.append(exponent + 127 if sf_format == "ue8m0" else 2.0**exponent)
            factor = 2.0**-exponent
        else:
            scales.append(f32(amax / LARGEST[fmt]))
            factor = f32(LARGEST[fmt] / amax)
        codes += [code(f32(value * factor), table) for value in part]
    if fmt == "e2m1":
        codes = [low | high << 4 for low, high in zip(codes[0::2], codes[1::2], strict=True)]
    return codes, scales
