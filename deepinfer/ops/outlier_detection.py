"""A check for values that no healthy model makes; for debugging (kernel_spec A.19)."""

from __future__ import annotations

import torch

from deepinfer.ops.checks import Arguments
from deepinfer.ops.dispatch import factory

MAX_ABS = 1e11
TYPES = (torch.float16, torch.bfloat16, torch.float32)


def detect_outlier_and_abort(data: torch.Tensor, id: int = 0, max_abs: float = MAX_ABS) -> None:
    """Abort where any value is NaN or has |value| >= max_abs, compared in float32.

    On a GPU the check is queued: a bad value prints id, value and offset, and is a device assertion; the next call
    that waits for the device fails, and the process can use the device no more. On a CPU it raises RuntimeError.

    Args:
        data: any shape, float16, bfloat16 or float32; copied first if it is not contiguous.
        id: shown with the value, to tell calls apart; fits int64.
        max_abs: above 0.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("detect_outlier_and_abort")
    check.require(isinstance(data, torch.Tensor), "data", "must be a tensor")
    check.tensor("data", data, TYPES, (None,) * data.dim(), rows="any")
    check.whole_number("id", id, at_least=-(2**63), at_most=2**63 - 1)
    check.require(max_abs > 0, "max_abs", f"must be above 0, not {max_abs}")
    if data.numel():
        factory("detect_outlier_and_abort_tl")(data.dtype, float(max_abs))(data.contiguous().view(-1), id)
