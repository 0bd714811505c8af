"""A Triton kernel's host code asks PyTorch for allocation, views and fills, and for nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from deepinfer.ops.case import Argument, Call
from deepinfer.ops.cases import cases
from deepinfer.ops.execution import execute, problems, run
from deepinfer.ops.launch import launch
from deepinfer.ops.operators import Watched

X = torch.arange(12.0).view(3, 4)


@pytest.mark.parametrize(
    "host",
    [
        lambda: torch.empty(3),
        lambda: torch.empty((2, 2), dtype=torch.int8),
        lambda: torch.empty_like(X),
        lambda: X.new_empty(3),
        lambda: torch.empty_strided((2, 2), (8, 1)),
        lambda: torch.zeros(3),
        lambda: torch.full((3,), -1, dtype=torch.int32),
        lambda: torch.ones_like(X),
        lambda: X.clone,
        lambda: X.view(-1),
        lambda: X.view(torch.int32),
        lambda: X.view(torch.int8)[..., ::2],
        lambda: X.reshape(4, 3),
        lambda: X.T,
        lambda: X[1:, None, :2],
        lambda: X.as_strided((2, 2), (1, 1), 3),
        lambda: X.expand(5, 3, 4),
        lambda: X.split(1),
        lambda: X.unbind(),
        lambda: X.narrow(0, 1, 2).flatten(),
        lambda: X.detach(),
        lambda: torch.empty(3).fill_(2.0),
        lambda: torch.empty(3).zero_(),
        lambda: (X.shape, X.stride(), X.data_ptr(), X.is_contiguous(), X.numel(), X.device),
    ],
)
def test_allowed(host: Callable[[], object]) -> None:
    with Watched() as watched:
        host()
    assert watched.found == []


@pytest.mark.parametrize(
    ("host", "operator"),
    [
        (lambda: X.sort(), "aten.sort"),
        (lambda: X.cumsum(0), "aten.cumsum"),
        (lambda: X + 1, "aten.add"),
        (lambda: X.clone().add_(1), "aten.add_"),
        (lambda: torch.where(X > 1, X, 0.0), "aten.where"),
        (lambda: X.clone(), "aten.clone"),
        (lambda: X.T.contiguous(), "aten.clone"),
        (lambda: X.T.reshape(-1), "aten.clone"),
        (lambda: X.to(torch.bfloat16), "aten._to_copy"),
        (lambda: torch.empty(3, 4).copy_(X), "aten.copy_"),
        (lambda: X[0, 0].item(), "aten._local_scalar_dense"),
        (lambda: X.tolist(), "Tensor.tolist"),
        (lambda: X.cpu(), "Tensor.cpu"),
        (lambda: X.numpy(), "Tensor.numpy"),
        (lambda: bool(X.any()), "aten.any"),
        (lambda: torch.arange(3), "aten.arange"),
        (lambda: torch.tensor([1, 2]), "aten.lift_fresh"),
        (lambda: torch.cat([X, X]), "aten.cat"),
        (lambda: X[torch.zeros(1, dtype=torch.int64)], "aten.index"),
    ],
)
def test_not_allowed(host: Callable[[], object], operator: str) -> None:
    with Watched() as watched:
        host()
    assert any(found.startswith(operator) for found in watched.found), watched.found


def test_what_a_launch_does_itself_does_not_count() -> None:
    class Interpreted:
        def __getitem__(self, grid: object) -> Callable[..., None]:
            return lambda x: x.add_(1)

    x = torch.zeros(2)
    with Watched() as watched:
        launch(Interpreted(), (1,), x)
        assert watched.found == []
        x.add_(1)
    assert watched.found == ["aten.add_.Tensor"] and x.tolist() == [2.0, 2.0]


def test_a_comparison_tells_each_operator_once() -> None:
    call = Call([Argument("x", torch.zeros(2), output=True)])

    def right(x: torch.Tensor) -> None:
        x.fill_(2.0)

    def wrong(x: torch.Tensor) -> None:
        x.add_(1).add_(1)

    expected = execute(lambda: right, call, "cpu", watch=True)
    assert expected.operators == []
    got = execute(lambda: wrong, call, "cpu", watch=True)
    assert problems(call, expected, got) == ["asks PyTorch for more than allocation, views and fills: aten.add_.Tensor"]


def test_the_reference_may_use_pytorch() -> None:
    case = cases(["gather"])[0]
    assert run(case.factory, case.call(), "reference", "cpu").operators == ()
