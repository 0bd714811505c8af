"""The same cases three ways: what every family's test file has beside its own checks of the reference.

@small_cases("gather")
def test_interpreted(case, interpreted):
    agrees_in_the_interpreter(case, interpreted)

@pytest.mark.gpu
@every_case("gather")
def test_on_a_gpu(case):
    agrees_on_a_gpu(case)
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from deepinfer.ops.case import Case
from deepinfer.ops.cases import cases
from deepinfer.ops.execution import problems, run
from deepinfer.ops.tolerance import as_bits

Interpreted = Callable[[str], dict[str, list[str]]]


def every_case(family: str) -> pytest.MarkDecorator:
    """Parametrize a test over all cases of a family, as `case`."""
    found = cases([family])
    return pytest.mark.parametrize("case", found, ids=[f"{one.factory}-{one.name}" for one in found])


def small_cases(family: str) -> pytest.MarkDecorator:
    """As `every_case`, without those that only a GPU can run."""
    found = [one for one in cases([family]) if not one.large]
    return pytest.mark.parametrize("case", found, ids=[f"{one.factory}-{one.name}" for one in found])


def agrees_in_the_interpreter(case: Case, interpreted: Interpreted) -> None:
    """Triton's interpreter against the reference, on a CPU."""
    assert interpreted(case.family)[f"{case.factory}/{case.name}"] == []


def agrees_on_a_gpu(case: Case) -> None:
    """Triton against the reference, both on the GPU, twice: the same bits each time."""
    call = case.call()
    expected = run(case.factory, call, "reference", "cuda")
    first, second = (run(case.factory, call, "triton", "cuda") for _ in range(2))
    assert problems(call, expected, first) == []
    for one in call.arguments:
        if one.output and one.repeatable and one.tolerance is not None and one.name in first.results:
            assert _same_bits(first.results[one.name], second.results[one.name]), f"{one.name} differs between two runs"


def _same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    return bool(as_bits(first).equal(as_bits(second)))
