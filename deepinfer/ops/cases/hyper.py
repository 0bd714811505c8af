"""Cases of the hyper-connections' kernels (model_spec 3.2): the real model's width, a tiny one's, and edges."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from deepinfer.ops.case import Argument, Call, Case, Results
from deepinfer.ops.cases.noise import noise
from deepinfer.ops.reference.quantize import quantize
from deepinfer.ops.tolerance import Tolerance

_ULP = Tolerance(relative=2**-7, absolute=1e-6)
_FLOAT = Tolerance(relative=2e-5, absolute=2e-5)


def _cast_of_y(_: Results, got: Results) -> str:
    """Q8 is exact: values and scales must be those of the y that goes with them."""
    values, scales = quantize(got["y"], "e4m3", 32, True, "ue8m0")
    same = values.view(torch.uint8).equal(got["values"].view(torch.uint8)) and scales.equal(got["scales"])
    return "" if same else "values, scales: not Q8 of y"


def _state(generator: torch.Generator, n: int, d: int, given: bool, kind: str) -> dict[str, torch.Tensor | None]:
    """Trunk, x and coefficients as a sub-layer leaves them; comb has rows and columns of the sum 1."""
    trunk = noise(generator, (n, 4, d), torch.bfloat16)
    x = noise(generator, (n, d), torch.bfloat16)
    if kind == "zeros":
        trunk[::2], x[::2] = 0, 0
    if kind == "spoilt":
        trunk[1, 2, 3], x[2, 5], trunk[3, 0, 0] = torch.nan, torch.inf, -torch.inf
    if kind == "large":
        trunk *= 1000
    comb = torch.softmax(noise(generator, (n, 4, 4)), -1)
    for _ in range(5):
        comb = comb / comb.sum(-2, keepdim=True)
        comb = comb / comb.sum(-1, keepdim=True)
    post, pre = torch.rand(n, 4, generator=generator) * 2, torch.rand(n, 4, generator=generator)
    if kind == "first":
        trunk[:, 1:] = trunk[:, :1].clone()
        pre = torch.zeros(n, 4)
        pre[:, 0] = 1
    return {
        "trunk": trunk,
        "x": x if given else None,
        "post": post if given else None,
        "comb": comb.contiguous() if given else None,
        "pre": pre,
    }


def _step(
    generator: torch.Generator,
    *,
    n: int,
    d: int = 5120,
    given: bool = True,
    in_place: bool = False,
    iterations: int = 20,
    kind: str = "normal",
) -> Call:
    state = _state(generator, n, d, given, kind)
    trunk = state["trunk"]
    out = trunk if in_place or not given else torch.full((n, 4, d), 9.0).bfloat16()
    junk = {name: torch.full((n, *shape), 9.0) for name, shape in (("pre", (4,)), ("post", (4,)), ("comb", (4, 4)))}
    arguments = [
        *(Argument(name, value) for name, value in state.items()),
        Argument("fn", noise(generator, (24, 4 * d)) * (4 * d) ** -0.5),
        Argument("base", noise(generator, (24,))),
        Argument("scale", torch.tensor([0.7, 1.3, 1.1])),
        Argument("norm", (1 + 0.1 * noise(generator, (d,))).bfloat16()),
        Argument("trunk_out", out, output=given),
        Argument("y", torch.full((n, d), 9.0).bfloat16(), output=True, tolerance=_ULP),
        Argument("values", torch.full((n, d), 9.0).to(torch.float8_e4m3fn), output=True, tolerance=None),
        Argument("scales", torch.full((n, d // 32), 9, dtype=torch.uint8), output=True, tolerance=None),
        *(Argument(f"{name}_out", value, output=True, tolerance=_FLOAT) for name, value in junk.items()),
    ]
    return Call(arguments, (d, 1e-20, 1e-6, iterations), judge=_cast_of_y)


def _post(generator: torch.Generator, *, n: int, d: int = 5120, in_place: bool = False, kind: str = "normal") -> Call:
    state = _state(generator, n, d, True, kind)
    out = state["trunk"] if in_place else torch.full((n, 4, d), 9.0).bfloat16()
    arguments = [Argument(name, value) for name, value in state.items() if name != "pre"]
    return Call([*arguments, Argument("trunk_out", out, output=True)], (d,))


def _leave(generator: torch.Generator, *, n: int, d: int = 5120, given: bool = True, kind: str = "normal") -> Call:
    state = _state(generator, n, d, given, kind)
    h = torch.full((n, d), 9.0).bfloat16()
    return Call([*(Argument(name, value) for name, value in state.items()), Argument("h", h, output=True)], (d,))


def cases() -> list[Case]:
    """Real and tiny widths, with and without a sub-layer before; zeros, NaN, in place; odd widths, no rows."""
    makers: dict[str, tuple[Any, dict[str, dict[str, Any]]]] = {
        "hyper_step": (
            _step,
            {
                "model": {"n": 3},
                "model-first": {"n": 2, "given": False, "kind": "first"},
                "tiny": {"n": 37, "d": 128},
                "tiny-first": {"n": 5, "d": 128, "given": False},
                "in-place": {"n": 9, "d": 256, "in_place": True},
                "two-chunks": {"n": 4, "d": 1056},
                "zeros": {"n": 6, "d": 64, "kind": "zeros"},
                "spoilt": {"n": 6, "d": 64, "kind": "spoilt"},
                "large": {"n": 6, "d": 64, "kind": "large"},
                "one-turn": {"n": 3, "d": 32, "iterations": 1},
                "none": {"n": 0},
                "many": {"n": 261, "d": 544, "iterations": 2},
                "model-many": {"n": 300},
                "model-many-first": {"n": 300, "given": False},
                "model-8192": {"n": 8192},
                "model-8192-first": {"n": 8192, "given": False},
            },
        ),
        "hyper_post": (
            _post,
            {
                "post-model": {"n": 3},
                "post-tiny": {"n": 9, "d": 128},
                "post-odd": {"n": 3, "d": 1100, "in_place": True},
                "post-spoilt": {"n": 5, "d": 33, "kind": "spoilt"},
                "post-none": {"n": 0},
                "post-8192": {"n": 8192, "in_place": True},
            },
        ),
        "hyper_leave": (
            _leave,
            {
                "leave-model": {"n": 3},
                "leave-model-mean": {"n": 3, "given": False},
                "leave-tiny": {"n": 9, "d": 128},
                "leave-odd": {"n": 3, "d": 1100, "given": False},
                "leave-none": {"n": 0},
                "leave-8192": {"n": 8192},
            },
        ),
    }
    found = []
    for factory, (make, given) in makers.items():
        for name, values in given.items():
            large = (values["n"] > 256 and "model" in name) or values["n"] > 1000
            engine = "model" in name and values["n"] < 1000
            found.append(Case(factory, name, partial(make, **values), large=large, engine=engine))
    return found
