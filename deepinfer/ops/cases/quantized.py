"""Quantised rows and weights of the checkpoint's formats, of a size at which sums are about 1 (model_spec 2.2, 2.3)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from deepinfer.ops.cases.noise import noise
from deepinfer.ops.reference.quantize import quantize
from deepinfer.ops.tolerance import Tolerance

# Sums here stay below 4 while they grow, and each of up to 15360 / 16 steps of a tensor core may cut off 2^-23 of that.
_SUMS = 5e-4
GROUP = 32
"""Columns that share a scale."""
BF16_PRODUCT = Tolerance(absolute=_SUMS, relative=2**-7)
"""One step of bfloat16, and what float32 sums differ by in another order."""
FP32_PRODUCT = Tolerance(absolute=_SUMS, relative=2**-16)

SAME_NUMBERS = Tolerance(absolute=2.0**-149)
"""Exact, but for the sign of a zero."""


def rows(generator: torch.Generator, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Activations: e4m3 [..., k] and uint8 [..., k / 32]. Rows differ in size, a group in each is small."""
    x = noise(generator, shape)
    x[..., :32] *= 2.0**-9
    if len(x) > 2:
        x[1] *= 3.0
        x[2] = 0.0
    return quantize(x, "e4m3", 32, True, "ue8m0")


def unit_rows(columns: Sequence[int], k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Activations e4m3 [n, k] and uint8 [n, k / 32]: row i is 1 in columns[i] and 0 elsewhere."""
    codes = torch.zeros(len(columns), k, dtype=torch.uint8)
    codes[torch.arange(len(columns)), torch.as_tensor(columns)] = 0x38
    return codes.view(torch.float8_e4m3fn), torch.full((len(columns), k // GROUP), 127, dtype=torch.uint8)


def fp8_weight(generator: torch.Generator, o: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """e4m3 [o, k] and uint8 [ceil(o / 32), k / 32]: the blocks' scales differ."""
    values = (noise(generator, (o, k)) * 64).to(torch.float8_e4m3fn)
    # The root of k lies between two powers of two; values have a deviation of 64.
    middle = 127 - 6 - (k.bit_length() // 2)
    return values, torch.randint(middle - 2, middle + 1, (-(-o // 32), k // 32), generator=generator, dtype=torch.uint8)


def fp4_weight(generator: torch.Generator, experts: int, o: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """e2m1 as int8 [experts, o, k / 2] and uint8 [experts, o, k / 32]: the groups' scales differ."""
    values = torch.randint(-128, 128, (experts, o, k // 2), generator=generator, dtype=torch.int8)
    middle = 127 - 1 - (k.bit_length() // 2)
    return values, torch.randint(middle - 2, middle + 1, (experts, o, k // 32), generator=generator, dtype=torch.uint8)
