"""`norm` (kernel_spec A.14)."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from deepinfer.ops import using
from deepinfer.ops.case import Case
from deepinfer.ops.cases.norm import FORMS
from deepinfer.ops.norm import norm
from deepinfer.ops.reference.rms import sum_of_squares
from tests.ops.narrow import f32, quantise
from tests.ops.three_ways import Interpreted, agrees_in_the_interpreter, agrees_on_a_gpu, every_case, small_cases


@small_cases("norm")
def test_interpreted(case: Case, interpreted: Interpreted) -> None:
    agrees_in_the_interpreter(case, interpreted)


@pytest.mark.gpu
@every_case("norm")
def test_on_a_gpu(case: Case) -> None:
    agrees_on_a_gpu(case)


def test_all_output_forms_are_cases() -> None:
    assert len(set(FORMS)) == len(FORMS) == 22


def _rows(count: int, width: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(count, width + 64, generator=torch.Generator().manual_seed(width)).to(dtype)[:, :width]


def _row(x: list[float], weight: list[float], eps: float, out_scale: float = 1.0) -> list[float]:
    """A row's norm in float32, one operation after the other, as the contract says."""
    lanes = []
    for start in range(0, len(x), 16):
        sums = [0.0, 0.0]
        for index in range(16):
            value = x[start + index]
            sums[index % 2] = f32(sums[index % 2] + f32(value * value))
        lanes.append(f32(sums[0] + sums[1]))
    lanes += [0.0] * ((1 << (len(lanes) - 1).bit_length()) - len(lanes))
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = [f32(lanes[index] + lanes[index + half]) for index in range(half)]
    root = f32(1 / f32(math.sqrt(f32(f32(lanes[0] / len(x)) + f32(eps)))))
    scale = f32(out_scale)
    return [f32(f32(value * root) * f32(gain * scale)) for value, gain in zip(x, weight, strict=True)]


@pytest.mark.parametrize("width", [16, 128, 512, 1280, 5120])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
def test_reference_against_a_loop(width: int, dtype: torch.dtype) -> None:
    x, weight = _rows(3, width, dtype), _rows(1, width, dtype)[0].contiguous()
    with using("reference"):
        found = norm(x, weight, eps=1e-20, out_scale=1.5)
    expected = [_row(row, weight.tolist(), 1e-20, 1.5) for row in x.tolist()]
    assert found.equal(torch.tensor(expected).to(dtype))


def test_the_sum_is_near_the_exact_one() -> None:
    x = _rows(7, 7168, torch.float32)
    exact = x.double().square().sum(-1)
    assert ((sum_of_squares(x).double() - exact) / exact).abs().max() < 1e-6


def test_the_residual_is_rounded_before_the_statistics() -> None:
    x, residual, weight = _rows(5, 512), _rows(5, 512) * 3, _rows(1, 512)[0].contiguous()
    with using("reference"):
        found, total = norm(x, weight, residual)
        assert total.equal(x + residual) and found.equal(norm(total, weight))
        assert norm(x, weight, return_bf16=True)[1].equal(norm(x, weight))
        (values, scales), plain = norm(x, weight, fmt="e4m3", num_per_channels=32, return_bf16=True)
        assert plain.equal(norm(x, weight)) and values.dtype == torch.float8_e4m3fn and scales.shape == (5, 16)


@pytest.mark.parametrize("group", [32, 128])
@pytest.mark.parametrize("rounded", [False, True])
def test_cast_against_the_oracle(group: int, rounded: bool) -> None:
    x, weight = _rows(4, 512), _rows(1, 512)[0].contiguous()
    x[1] = 0
    with using("reference"):
        plain = norm(x, weight, eps=1e-20)
        values, scales = norm(x, weight, eps=1e-20, fmt="e4m3", num_per_channels=group, round_sf=rounded)
    for row, codes, steps in zip(
        plain.float().tolist(), values.view(torch.uint8).tolist(), scales.tolist(), strict=True
    ):
        assert (codes, steps) == quantise(row, "e4m3", group, "fp32", rounded)


@pytest.mark.parametrize("shape", [(9, 640), (2, 9, 640)], ids=["2d", "3d"])
def test_every_layout_of_scales_holds_the_same(shape: tuple[int, ...]) -> None:
    x, weight = torch.randn(shape, generator=torch.Generator().manual_seed(1)).bfloat16(), torch.ones(640).bfloat16()
    common: dict[str, Any] = {"fmt": "e4m3", "num_per_channels": 128, "round_sf": True}
    with using("reference"):
        values, rows = norm(x, weight, **common)
        found = {
            (columns, packed): norm(x, weight, **common, use_tma_aligned_col_major_sf=columns, use_packed_ue8m0=packed)
            for columns in (False, True)
            for packed in (False, True)
        }
    exponents = (rows.view(torch.int32) >> 23).to(torch.uint8)
    for (columns, packed), (same, scales) in found.items():
        assert same.view(torch.uint8).equal(values.view(torch.uint8))
        assert scales.shape == (*shape[:-1], 2 if packed else 5)
        assert scales.stride()[-2:] == ((1, 12) if columns else (scales.shape[-1], 1))
        if packed:
            words = scales.long() & 0xFFFFFFFF
            unpacked = torch.stack([words[..., group // 4] >> 8 * (group % 4) & 0xFF for group in range(5)], -1)
            assert unpacked.to(torch.uint8).equal(exponents)
        else:
            assert scales.equal(rows)


@pytest.mark.parametrize("block_m", [16, 192])
def test_scales_for_the_expert_kernel(block_m: int) -> None:
    tokens, width, aligned = 210, 256, -(-block_m // 128) * 128
    rows = -(-tokens // block_m) * aligned + 3
    x, weight = _rows(tokens, width), torch.ones(width).bfloat16()
    extra = torch.full((2, rows), -1, dtype=torch.int32).T[:tokens]
    buffers = (torch.empty(tokens, width, dtype=torch.float8_e4m3fn), torch.empty(tokens, 9, dtype=torch.int32)[:, :2])
    with using("reference"):
        result = norm(
            x, weight, out=buffers, fmt="e4m3", num_per_channels=32, round_sf=True, use_packed_ue8m0=True,
            extra_sf_layout="mega_moe", extra_sf_out=extra, extra_sf_block_m=block_m,
        )  # fmt: skip
    assert result[0] is buffers[0] and result[1] is buffers[1]
    expected = torch.full((rows, 2), -1, dtype=torch.int32)
    for token in range(tokens):
        tile, within = divmod(token, block_m)
        row = tile * aligned + within // 128 * 128 + within % 32 * 4 + within % 128 // 32
        expected[row] = buffers[1][token]
    assert extra.as_strided((rows, 2), (1, rows)).equal(expected)


def test_one_bad_row_leaves_the_others() -> None:
    x, weight = _rows(4, 512), _rows(1, 512)[0].contiguous()
    with using("reference"):
        good = norm(x, weight)
        x[1, 7], x[2, 9] = torch.nan, torch.inf
        found = norm(x, weight)
    assert found[0].equal(good[0]) and found[3].equal(good[3]) and found[1].isnan().all() and found[2, 9].isnan()


def test_a_thread_loads_no_more_side_by_side_than_one_instruction_takes(tmp_path: Path) -> None:
    """Sixteen values of bfloat16 would be two loads of 16 bytes each, with gaps between the threads in either."""
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-m", "deepinfer.ops.variants", "norm", "--engine"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    loads = []
    for path in tmp_path.rglob("*.ttgir"):
        text = path.read_text()
        each = dict(re.findall(r"^(#\w+) = #ttg\.blocked<\{sizePerThread = \[(?:\d+, )*(\d+)\]", text, re.MULTILINE))
        loads += [int(each[layout]) for layout in re.findall(r"tt\.load .*x!tt\.ptr<bf16>, (#\w+)>", text)]
    assert loads and max(loads) == 8


def test_no_rows() -> None:
    weight = torch.ones(512).bfloat16()
    with using("reference"):
        values, scales = norm(torch.empty(0, 512).bfloat16(), weight, fmt="e4m3", num_per_channels=32)
    assert values.shape == (0, 512) and scales.shape == (0, 16)


X, W = torch.zeros(2, 256, dtype=torch.bfloat16), torch.zeros(256, dtype=torch.bfloat16)
CAST = {"fmt": "e4m3", "num_per_channels": 32}
SHARED = {"extra_sf_layout": "mega_moe", "extra_sf_block_m": 16}


@pytest.mark.parametrize(
    ("arguments", "named", "error", "text"),
    [
        ((X.half(), W), {}, TypeError, "norm: x must be bfloat16 or float32, not float16"),
        ((X[0], W), {}, ValueError, "x must be a tensor of 2 or 3 dimensions"),
        ((X.T, W), {}, ValueError, "the last dimension of x must be contiguous"),
        ((X[:, :100], W[:100]), {}, ValueError, "rows of 16 to 8192 values, not 100"),
        ((X, W.float()), {}, TypeError, "weight must be bfloat16"),
        ((X, W[:128]), {}, ValueError, "weight has the shape"),
        ((X, W.to("meta")), {}, ValueError, "must be on one device"),
        ((X, W, X[:1]), {}, ValueError, "residual must have the shape"),
        ((X, W), {"fmt": "e5m2", "num_per_channels": 32}, ValueError, "fmt must be one of"),
        ((X, W), {"fmt": "e4m3"}, ValueError, "num_per_channels goes with fmt"),
        ((X, W), {"num_per_channels": 32}, ValueError, "num_per_channels goes with fmt"),
        ((X, W), {"fmt": "e4m3", "num_per_channels": 48}, ValueError, "num_per_channels must be one of"),
        ((X, W), {**CAST, "use_packed_ue8m0": True}, ValueError, "use_packed_ue8m0 needs round_sf"),
        ((X, W), {"out": X[:1]}, ValueError, "out must have the shape"),
        ((X, W), {**CAST, "out": X}, TypeError, "out must be float8_e4m3fn"),
        ((X, W), {**CAST, "out": (X, X)}, ValueError, "out may be a pair only"),
        ((X, W), {**CAST, **SHARED}, ValueError, "extra_sf_out goes with"),
        ((X, W), {**CAST, "round_sf": True, "extra_sf_out": torch.zeros(2, 2).int(), **SHARED}, ValueError, "strides"),
        ((X, W), {**CAST, "extra_sf_out": torch.zeros(2, 128).int().T[:2], **SHARED}, ValueError, "and round_sf"),
        ((X, W), {"extra_sf_layout": "other"}, ValueError, "extra_sf_layout must be one of"),
    ],
)  # fmt: skip
def test_refused(arguments: tuple, named: dict, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        norm(*arguments, **named)
