"""A stand-in for DeepGEMM on the CPU. STAND_IN_FAULT makes it misbehave: the check has to find it."""

import os

import torch

__version__ = "stand-in"
_FAULT = os.environ.get("STAND_IN_FAULT", "")


def fp8_gemm_nt(a, b, out):
    """out = dequantised a @ dequantised b.T; a has a scale for 1 x 128 values, b one for 128 x 128."""
    left = a[0].float() * a[1].repeat_interleave(128, 1)
    scales = b[1].repeat_interleave(128, 0).repeat_interleave(128, 1)
    if _FAULT == "scales":
        scales = scales.roll(1, 0)
    right = b[0].float() * scales
    if _FAULT == "block":
        left[:, -128:] = 0
    result = left @ right.T
    if _FAULT == "value":
        result[17, 5] += result.square().mean().sqrt() / 8
    if _FAULT == "nan":
        result[0, 0] = torch.nan
    if _FAULT == "raise":
        raise RuntimeError("NVCC compilation failed")
    if _FAULT != "nothing written":
        out.copy_(result)
