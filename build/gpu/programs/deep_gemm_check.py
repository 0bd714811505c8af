"""DeepGEMM's fp8_gemm_nt on this GPU: right against fp32, how fast beside torch's bf16, and how long its JIT takes.

out[m, n] = a[m, k] @ b[n, k].T with e4m3 operands, fp32 scales (a: one per row and 128 columns, b: one per 128 x 128
block), bf16 out. The reference multiplies the *dequantised* operands in fp32, so that quantisation is not an error.

Bounds. Rounding the output to bf16 alone gives a relative (Frobenius) error of about 2^-10, at most 2^-9. Hopper's FP8
tensor cores add the products of 128 columns with about 14 bits before fp32 takes over, another 2^-12 or so. 2^-8 leaves
room for both and for nothing else: a missing 128-column block of 8192 would give 2^-3. No single value may be further
off than 2^-8 of itself plus 2^-6 of the outputs' root mean square, so that one wrong value in a million is seen too.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

SHAPES = "4096x7168x2048,4096x4096x7168,8192x8192x8192"
GROUP = 128
E4M3_MAX = 448.0
RELATIVE_BOUND = 2.0**-8
VALUE_BOUND_RELATIVE = 2.0**-8
VALUE_BOUND_RMS = 2.0**-6
BURST = 10


def quantise(x: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """e4m3 values of `x` [r, k] and their fp32 scales [r / rows, k / 128], the largest value of each block at 448."""
    import torch

    blocks = x.float().view(x.shape[0] // rows, rows, x.shape[1] // GROUP, GROUP)
    scales = blocks.abs().amax(dim=(1, 3)).clamp_min(1e-4) / E4M3_MAX
    values = (blocks / scales[:, None, :, None]).clamp(-E4M3_MAX, E4M3_MAX)
    return values.view(x.shape).to(torch.float8_e4m3fn), scales


def dequantise(values: torch.Tensor, scales: torch.Tensor, rows: int) -> torch.Tensor:
    """The fp32 matrix that `values` and `scales` stand for."""
    blocks = values.float().view(values.shape[0] // rows, rows, values.shape[1] // GROUP, GROUP)
    return (blocks * scales[:, None, :, None]).view(values.shape)


def judge(out: torch.Tensor, reference: torch.Tensor) -> tuple[dict[str, float | None], str]:
    """Errors of `out` against `reference`, and what is wrong with them (empty if nothing)."""
    error = (out.float() - reference).abs()
    rms = reference.square().mean().sqrt()
    relative = float(error.square().mean().sqrt() / rms)
    excess = float(((error - VALUE_BOUND_RELATIVE * reference.abs()) / rms).max())
    worst = float((error / rms).max())
    figures = {  # JSON has no NaN
        "relative_error": relative if math.isfinite(relative) else None,
        "worst_value_rms": worst if math.isfinite(worst) else None,
    }
    if not relative <= RELATIVE_BOUND:  # also catches NaN
        return figures, f"relative error {relative:.2e} is over the bound {RELATIVE_BOUND:.2e}"
    if not excess <= VALUE_BOUND_RMS:
        return figures, f"a single value is off by {excess:.2e} of the root mean square beyond its own rounding"
    return figures, ""


def seconds(function: Callable[[], object], device: str, repeats: int = 10) -> float:
    """The median duration of one call, after three calls to warm up; on a GPU by CUDA events around BURST calls.

    A call alone would count the time that the CPU takes to launch it. DeepGEMM's calls lay the scales out anew, as an
    engine's would; that is counted.
    """
    import torch

    for _ in range(3):
        function()
    event: Any = torch.cuda.Event  # untyped in torch
    times = []
    for _ in range(repeats):
        if device == "cpu":
            start = time.perf_counter()
            function()
            times.append(time.perf_counter() - start)
            continue
        begin, end = event(enable_timing=True), event(enable_timing=True)
        begin.record()
        for _ in range(BURST):
            function()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3 / BURST)
    return statistics.median(times)


def check_shape(deep_gemm: Any, m: int, n: int, k: int, device: str) -> tuple[dict[str, float | None], str]:
    """One shape: first call (JIT), error, times."""
    import torch

    generator = torch.Generator(device).manual_seed(m * 31 + n * 7 + k)
    a = torch.randn(m, k, generator=generator, device=device).to(torch.bfloat16)
    b = torch.randn(n, k, generator=generator, device=device).to(torch.bfloat16)
    left, right = quantise(a, 1), quantise(b, GROUP)
    out = torch.full((m, n), float("nan"), dtype=torch.bfloat16, device=device)

    def multiply() -> None:
        deep_gemm.fp8_gemm_nt(left, right, out)

    start = time.perf_counter()
    multiply()
    if device != "cpu":
        torch.cuda.synchronize()
    jit = time.perf_counter() - start
    reference = dequantise(*left, 1) @ dequantise(*right, GROUP).T
    figures, wrong = judge(out, reference)
    del reference
    operations = 2.0 * m * n * k / 1e12
    fp8 = operations / seconds(multiply, device)
    bf16 = operations / seconds(lambda: torch.matmul(a, b.T), device)
    return figures | {"fp8_tflops": fp8, "bf16_tflops": bf16, "first_call_seconds": jit}, wrong


def check(shapes: list[tuple[int, int, int]], device: str) -> tuple[dict[str, object], str]:
    """All shapes; figures by shape, and the first thing that is wrong."""
    import torch

    import deepinfer  # noqa: F401 - puts deep_gemm's folder on the path and points its JIT at a tool chain

    torch.backends.cuda.matmul.allow_tf32 = False  # the reference is fp32
    if device != "cpu" and not torch.cuda.is_available():
        return {}, "torch sees no GPU"
    import deep_gemm

    figures: dict[str, object] = {"version": deep_gemm.__version__, "path": deep_gemm.__file__}
    wrong = ""
    for m, n, k in shapes:
        name = f"{m}x{n}x{k}"
        found, problem = check_shape(deep_gemm, m, n, k, device)
        figures[name] = found
        print(name, found, problem or "ok", file=sys.stderr, flush=True)
        wrong = wrong or (f"{name}: {problem}" if problem else "")
    return figures, wrong


def main() -> int:
    """Parse, check in a fresh JIT cache (so that the first call really compiles), print the verdict."""
    parser = argparse.ArgumentParser(description="check DeepGEMM's fp8_gemm_nt")
    parser.add_argument("--shapes", default=SHAPES, help="MxNxK, comma-separated; multiples of 128")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    args = parser.parse_args()
    shapes = [(int(m), int(n), int(k)) for m, n, k in (shape.split("x") for shape in args.shapes.split(","))]
    with tempfile.TemporaryDirectory(prefix="deep-gemm-jit-") as cache:
        os.environ["DG_JIT_CACHE_DIR"] = cache
        try:
            figures, reason = check(shapes, args.device)
        except Exception as problem:  # whatever the library raises is the finding
            figures, reason = {}, f"{type(problem).__name__}: {' '.join(str(problem).split())[:600]}"
    print(json.dumps({"ok": not reason, "reason": reason, "figures": figures}))
    return 0 if not reason else 5


if __name__ == "__main__":
    sys.exit(main())
