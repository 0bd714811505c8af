"""`hyper_step`, `hyper_post` and `hyper_leave` (model_spec 3.2)."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from deepinfer.config.model import HyperConnections
from deepinfer.ops import using
from deepinfer.ops.case import Case
from deepinfer.ops.hyper import hyper_leave, hyper_post, hyper_step
from deepinfer.ops.reference.quantize import quantize
from deepinfer.ops.tolerance import as_bits
from deepinfer.reference.layers import Mix, mix, mixed, post, rms_norm
from deepinfer.reference.precision import Precision, Tensor
from deepinfer.reference.weights import Weights
from tests.ops.compiler import CACHE_FOLDER
from tests.ops.narrow import f32
from tests.ops.test_variants import VERSIONS, needs_build
from tests.ops.three_ways import Interpreted, agrees_in_the_interpreter, agrees_on_a_gpu, every_case, small_cases

ROOT = Path(__file__).resolve().parents[2]


@small_cases("hyper")
def test_interpreted(case: Case, interpreted: Interpreted) -> None:
    agrees_in_the_interpreter(case, interpreted)


@pytest.mark.gpu
@every_case("hyper")
def test_on_a_gpu(case: Case) -> None:
    agrees_on_a_gpu(case)


def _inputs(n: int, d: int, seed: int = 1) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    return {
        "trunk": drawn(n, 4, d).bfloat16(),
        "x": drawn(n, d).bfloat16(),
        "post": 2 * torch.sigmoid(drawn(n, 4)),
        "comb": torch.softmax(drawn(n, 4, 4), -1),
        "pre": torch.sigmoid(drawn(n, 4)),
        "fn": drawn(24, 4 * d) * (4 * d) ** -0.5,
        "base": drawn(24),
        "scale": torch.tensor([0.7, 1.3, 1.1]),
        "norm": (1 + drawn(d) / 10).bfloat16(),
    }


CONSTANTS = (1e-20, 1e-6, 20)


@pytest.mark.parametrize("precision", [Precision(), Precision(rounded=False)], ids=["rounded", "ideal"])
def test_reference_against_the_oracle(precision: Precision) -> None:
    given = _inputs(17, 96)
    with using("reference"):
        found = hyper_step(*given.values(), *CONSTANTS)
        left = hyper_leave(given["trunk"], given["x"], given["post"], given["comb"], given["pre"])
    p, wide = precision, {name: value.double() for name, value in given.items()}
    trunk = post(p, wide["trunk"], wide["x"], Mix(wide["pre"], wide["post"], wide["comb"]))
    h = mixed(p, trunk, wide["pre"])
    hyper = HyperConnections(4, 1e-6, 20, shifted=True)
    w = Weights({f"hc_{name}": given[name] for name in ("fn", "base", "scale")}, torch.float64)
    after = mix(p, hyper, trunk, w, "hc", 1e-20)
    y = rms_norm(p, h, wide["norm"], 1e-20)
    slack = 0.0 if precision.rounded else 1e-2
    near = {"rtol": 2**-7 + slack, "atol": 1e-3 + slack}
    torch.testing.assert_close(found.trunk.double(), trunk, **near)
    torch.testing.assert_close(left.double(), h, **near)
    torch.testing.assert_close(found.y.double(), y, **near)
    for one, expected in zip((found.pre, found.post, found.comb), (after.pre, after.post, after.comb), strict=True):
        torch.testing.assert_close(one.double(), expected, rtol=1e-4 + slack, atol=1e-4 + slack)
    if precision.rounded:
        # Float32 and float64 sums of five numbers seldom round to different numbers of bfloat16.
        assert (found.trunk.double() != trunk).float().mean() < 0.002
        assert (found.y.double() != y).float().mean() < 0.005


def _bf16(value: float) -> float:
    return torch.tensor(value, dtype=torch.float32).bfloat16().item()


def test_post_and_mix_against_a_loop() -> None:
    given = _inputs(2, 3, seed=2)
    trunk, x, after, comb, pre = (given[name] for name in ("trunk", "x", "post", "comb", "pre"))
    with using("reference"):
        found = hyper_post(trunk, x, after, comb)
        h = hyper_leave(trunk, x, after, comb, pre)
    for row in range(2):
        for column in range(3):
            streams = []
            for j in range(4):
                total = f32(after[row, j].item() * x[row, column].item())
                for i in range(4):
                    total = f32(total + f32(comb[row, i, j].item() * trunk[row, i, column].item()))
                streams.append(_bf16(total))
            total = f32(pre[row, 0].item() * streams[0])
            for j in range(1, 4):
                total = f32(total + f32(pre[row, j].item() * streams[j]))
            assert found[row, :, column].tolist() == streams and h[row, column].item() == _bf16(total)


def _sinkhorn(c: list[list[float]], eps: float, iterations: int) -> list[list[float]]:
    powers = [[math.exp(value - max(row)) for value in row] for row in c]
    c = [[value / sum(row) + eps for value in row] for row in powers]
    for turn in range(iterations):
        if turn:
            c = [[value / (sum(row) + eps) for value in row] for row in c]
        sums = [sum(row[j] for row in c) for j in range(4)]
        c = [[value / (sums[j] + eps) for j, value in enumerate(row)] for row in c]
    return c


def test_coefficients_against_a_loop() -> None:
    given = _inputs(3, 32, seed=3)
    with using("reference"):
        found = hyper_step(*given.values(), *CONSTANTS)
    fn, base, scale = (given[name].double().tolist() for name in ("fn", "base", "scale"))
    for row in range(3):
        flat = found.trunk[row].flatten().double().tolist()
        root = 1 / math.sqrt(sum(value * value for value in flat) / 128 + 1e-20)
        u = [sum(a * b for a, b in zip(flat, line, strict=True)) * root for line in fn]
        for j in range(4):
            sigmoid = [1 / (1 + math.exp(-(u[k] * scale[k // 4] + base[k]))) for k in (j, 4 + j)]
            assert found.pre[row, j].item() == pytest.approx(sigmoid[0] + 1e-6, rel=1e-6)
            assert found.post[row, j].item() == pytest.approx(2 * sigmoid[1], rel=1e-6)
        c = [[u[8 + 4 * i + j] * scale[2] + base[8 + 4 * i + j] for j in range(4)] for i in range(4)]
        assert found.comb[row].tolist() == [pytest.approx(line, rel=1e-5) for line in _sinkhorn(c, 1e-6, 20)]
    assert (found.comb.sum(1) - (1 - 1e-6)).abs().max() < 1e-6


def test_the_cast_is_of_y() -> None:
    given = _inputs(5, 64, seed=4)
    with using("reference"):
        found = hyper_step(*given.values(), *CONSTANTS)
    values, scales = quantize(found.y, "e4m3", 32, True, "ue8m0")
    assert found.values.view(torch.uint8).equal(values.view(torch.uint8)) and found.scales.equal(scales)


def test_without_a_sub_layer_the_trunk_stays() -> None:
    given = _inputs(4, 64, seed=5)
    first = torch.tensor([[1.0, 0.0, 0.0, 0.0]]).repeat(4, 1)
    rest = [given[name] for name in ("fn", "base", "scale", "norm")]
    with using("reference"):
        found = hyper_step(given["trunk"], None, None, None, first, *rest, *CONSTANTS)
        # In two steps, with something between them, as in one.
        posted = hyper_post(given["trunk"], given["x"], given["post"], given["comb"])
        two = hyper_step(posted, None, None, None, given["pre"], *rest, *CONSTANTS)
        one = hyper_step(*given.values(), *CONSTANTS)
        embedding = hyper_leave(given["trunk"], None, None, None, first)
        mean = hyper_leave(given["trunk"], None, None, None, torch.full((4, 4), 0.25))
    assert found.trunk is given["trunk"] and two.trunk is posted
    for a, b in zip(one, two, strict=True):
        assert a.float().equal(b.float())
    assert embedding.equal(given["trunk"][:, 0])
    assert mean.equal(given["trunk"].float().mean(1).bfloat16())


def test_one_bad_row_leaves_the_others() -> None:
    given = _inputs(3, 32, seed=6)
    with using("reference"):
        good = hyper_step(*given.values(), *CONSTANTS)
        given["trunk"][1, 2, 3] = torch.nan
        found = hyper_step(*given.values(), *CONSTANTS)
    for before, after in zip(good, found, strict=True):
        assert before[::2].float().equal(after[::2].float())
    assert found.y[1].isnan().all() and found.comb[1].isnan().all()


def test_few_rows_and_many_add_up_in_the_same_order() -> None:
    """In a process of its own, as Triton is told at its import that it interprets."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.ops.hyper_interpreted"],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout) == []


@needs_build
@pytest.mark.parametrize("version", VERSIONS)
def test_no_tile_settles_the_order_of_a_sum(version: str) -> None:
    """Sums over an axis are of two numbers, and products are made by one instruction from zero, for few rows and many.

    In a process of its own, which takes another Triton.
    """
    from build import cache
    from build.triton_versions import triton_dir

    own = {
        "PYTHONPATH": os.pathsep.join([str(triton_dir(version)), str(ROOT)]),
        "TRITON_CACHE_DIR": str(cache.folder(f"{CACHE_FOLDER}/triton-{version}")),
        "OMP_NUM_THREADS": "1",
    }
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.ops.hyper_compiled"],
        cwd=ROOT,
        env=environment | own,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout)
    assert told["triton"] == version
    assert [one["kernel"] for one in told["kernels"]] == ["spread", "finish"] * 4
    assert {count for one in told["kernels"] for count in one["addends"]} == {2}
    first, *others = [one for one in told["kernels"] if one["kernel"] == "spread"]
    assert len(first["instructions of products"]) == 1 and first["products"] == 3
    assert first["products onto a sum"] == first["fused additions"] == 0 and len(first["addends"]) == 10
    alike = set(first) - {"rows", "after a sub-layer"}
    assert [{key: one[key] for key in alike} for one in others] == [{key: first[key] for key in alike}] * 3


@pytest.mark.gpu
@pytest.mark.parametrize("given", [True, False], ids=["after-a-sub-layer", "first"])
@pytest.mark.parametrize("d", [5120, 1056, 32])
def test_a_row_has_its_bits_alone_and_in_any_batch(d: int, given: bool) -> None:
    """On both sides of what decides how many programs share a row's columns."""
    inputs = {name: value.cuda() for name, value in _inputs(700, d, seed=7).items()}
    inputs["trunk"][300, 1, 5] = torch.nan
    if not given:
        inputs |= dict.fromkeys(("x", "post", "comb"))
    rows = ("trunk", "x", "post", "comb", "pre")

    def step(part: slice) -> list[Tensor]:
        own = {name: value if name not in rows or value is None else value[part] for name, value in inputs.items()}
        return [as_bits(one) for one in hyper_step(*own.values(), *CONSTANTS)]

    with using("triton"):
        batch = step(slice(None))
        parts = [slice(row, row + 1) for row in (0, 15, 16, 63, 64, 299, 300, 301, 699)]
        for part in [*parts, slice(3, 10), slice(0, 256), slice(100, 357), slice(290, 691)]:
            for whole, alone in zip(batch, step(part), strict=True):
                assert whole[part].equal(alone)


GIVEN = _inputs(2, 32)


@pytest.mark.parametrize(
    ("changed", "error", "text"),
    [
        ({"trunk": GIVEN["trunk"].float()}, TypeError, "hyper_step: trunk must be bfloat16, not float32"),
        ({"trunk": GIVEN["trunk"][:, :3]}, ValueError, "trunk must have the shape"),
        ({"x": GIVEN["x"][:1]}, ValueError, "x has the shape"),
        ({"post": None}, ValueError, "x goes with post and comb"),
        ({"comb": GIVEN["comb"].mT}, ValueError, "comb must be contiguous"),
        ({"pre": GIVEN["pre"].bfloat16()}, TypeError, "pre must be float32"),
        ({"fn": GIVEN["fn"][:, :64]}, ValueError, "fn must have the shape"),
        ({"base": GIVEN["base"][:8]}, ValueError, "base must have the shape"),
        ({"scale": GIVEN["scale"].to("meta")}, ValueError, "all must be on one device"),
        ({"norm": GIVEN["norm"][:16]}, ValueError, "norm has the shape"),
        ({"iterations": 0}, ValueError, "iterations must be at least 1"),
        ({"out": GIVEN["trunk"][:1]}, ValueError, "out has the shape"),
        ({"x": None, "out": GIVEN["trunk"]}, ValueError, "out goes with x"),
    ],
)
def test_refused(changed: dict, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        hyper_step(**{**GIVEN, "eps": 1e-20, "hc_eps": 1e-6, "iterations": 20, **changed})


@pytest.mark.parametrize("name", ["trunk", "pre", "fn", "base", "scale", "norm"])
def test_what_has_to_be_there_is_missed_by_name(name: str) -> None:
    with pytest.raises(TypeError, match=f"hyper_step: {name} must be a tensor, not None"):
        hyper_step(*{**GIVEN, name: None}.values(), *CONSTANTS)
    if name in ("trunk", "pre"):
        with pytest.raises(TypeError, match=f"hyper_leave: {name} must be a tensor, not None"):
            hyper_leave(*({**GIVEN, name: None}[one] for one in ("trunk", "x", "post", "comb", "pre")))


def test_refused_widths() -> None:
    given = _inputs(2, 48)
    with pytest.raises(ValueError, match="a multiple of 32 values, not 48"):
        hyper_step(*given.values(), *CONSTANTS)
    with pytest.raises(ValueError, match="x must be a tensor"):
        hyper_post(given["trunk"], None, given["post"], given["comb"])  # type: ignore[arg-type]
