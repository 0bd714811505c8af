"""Running a case, and what is noticed about the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from deepinfer.errors import KernelUnavailableError
from deepinfer.ops import dispatch, execution
from deepinfer.ops.case import Argument, Call, Case, Results
from deepinfer.ops.execution import execute, own_factory, problems, relocated, run
from deepinfer.ops.tolerance import Tolerance

Body = Callable[..., None]


def _factory(body: Body) -> dispatch.Factory:
    return lambda: body


def _call(**options: Any) -> Call:
    """An input of 4 values, and an output of 2 in the middle of a buffer of 6."""
    buffer = torch.full((6,), 7.0)
    return Call([Argument("x", torch.arange(4.0)), Argument("y", buffer[2:4], output=True, **options)])


def _right(x: torch.Tensor, y: torch.Tensor) -> None:
    y.copy_(x[:2])


def _found(body: Body, call: Call, *, watch: bool = False) -> list[str]:
    expected = execute(_factory(_right), call, "cpu")
    return problems(call, expected, execute(_factory(body), call, "cpu", watch=watch))


def test_a_kernel_that_does_as_the_other_is_right() -> None:
    assert _found(_right, _call()) == []


def test_a_wrong_value_is_found() -> None:
    (text,) = _found(lambda x, y: y.copy_(x[1:3]), _call())
    assert text.startswith("y: largest error 1.000e+00, 2 of 2 values wrong") and "first at [0]: 1.0" in text


def test_writing_beside_an_output_is_found() -> None:
    def body(x: torch.Tensor, y: torch.Tensor) -> None:
        _right(x, y)
        y.as_strided((1,), (1,), y.storage_offset() + 2).fill_(0.0)

    (text,) = _found(body, _call())
    assert "bytes outside of every output, storage 1" in text


def test_storages_are_looked_through_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes found do not depend on how many are looked at at a time."""
    call = _gather()
    whole = run("gather_tl", call, "reference", "cpu")
    monkeypatch.setattr(execution, "_AT_A_TIME", 7)
    parted = run("gather_tl", call, "reference", "cpu")
    assert len(whole.rest) == len(parted.rest) > 2 and any(len(one) > 7 for one in whole.rest)
    assert all(one.equal(other) for one, other in zip(whole.rest, parted.rest, strict=True))


def test_writing_an_input_is_found() -> None:
    def body(x: torch.Tensor, y: torch.Tensor) -> None:
        _right(x, y)
        x[3] = 9.0

    (text,) = _found(body, _call())
    assert "bytes outside of every output, storage 0" in text


def test_the_other_side_is_watched_too() -> None:
    call = _call()

    def body(x: torch.Tensor, y: torch.Tensor) -> None:
        _right(x, y)
        x[0] = 1.0

    wrong, right = execute(_factory(body), call, "cpu"), execute(_factory(_right), call, "cpu")
    (text,) = problems(call, wrong, right)
    assert text.startswith("expected side: ")


def test_the_case_s_own_tensors_stay_as_they_were() -> None:
    call = _call()
    outcome = execute(_factory(_right), call, "cpu")
    assert call.arguments[1].value.tolist() == [7.0, 7.0]
    assert outcome.results["y"].tolist() == [0.0, 1.0] and outcome.after.arguments[1].value.tolist() == [0.0, 1.0]


def test_a_tolerance_and_a_judge_decide() -> None:
    def near(x: torch.Tensor, y: torch.Tensor) -> None:
        y.copy_(x[:2] + 0.25)

    assert _found(near, _call(tolerance=Tolerance(0.3))) == []
    assert _found(near, _call(tolerance=None)) == []

    def judge(expected: Results, got: Results) -> str:
        return "" if bool((got["y"] == expected["y"]).all()) else "y is off"

    call = Call(_call(tolerance=None).arguments, judge=judge)
    assert _found(near, call) == ["y is off"] and _found(_right, call) == []


def test_relocating_keeps_strides_offsets_and_shared_storages() -> None:
    pool = torch.arange(24, dtype=torch.int32)
    first, second = pool[2:20:3], pool.view(4, 6)[1:, ::2]
    moved = relocated(Call([Argument("a", first), Argument("b", second), Argument("n", 3), Argument("z", None)]), "cpu")
    a, b, n, z = (one.value for one in moved.arguments)
    assert a.equal(first) and a.stride() == first.stride() and a.storage_offset() == 2 and (n, z) == (3, None)
    assert b.equal(second) and b.stride() == second.stride()
    assert a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() != pool.untyped_storage().data_ptr()
    b[0, 0] = -1
    assert pool[6] == 6


def test_empty_tensors_are_no_trouble() -> None:
    call = Call([Argument("x", torch.zeros(0, 4)), Argument("y", torch.zeros(0), output=True)])
    first, second = (execute(_factory(lambda x, y: None), call, "cpu") for _ in range(2))
    assert problems(call, first, second) == [] and first.results["x"].shape == (0, 4)


def test_a_backend_s_factory_must_be_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from deepinfer.ops.reference import gather as reference
    from deepinfer.ops.triton import gather

    monkeypatch.setattr(gather, "gather_tl", reference.gather_tl)
    with dispatch.using("triton"), pytest.raises(KernelUnavailableError, match=r"is that of deepinfer\.ops\.reference"):
        own_factory("gather_tl", "triton")


def test_a_run_is_strict_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def spy(name: str, backend: str) -> dispatch.Factory:
        seen.append(dispatch.settings())
        return own_factory(name, backend)

    monkeypatch.setattr(execution, "own_factory", spy)
    with dispatch.using(dispatch.Settings("triton", frozenset({"gather_tl"}))):
        run("gather_tl", _gather(), "reference", "cpu")
    assert seen == [dispatch.Settings("reference", strict=True)]


def _gather() -> Call:
    from deepinfer.ops.cases.gather import cases

    return cases()[0].call()


def test_a_case_gives_the_same_inputs_each_time() -> None:
    def make(generator: torch.Generator) -> Call:
        return Call([Argument("x", torch.randn(8, generator=generator))])

    case = Case("gather_tl", "random", make)
    first, second = (case.call().arguments[0].value for _ in range(2))
    assert first.equal(second) and case.family == "gather"
