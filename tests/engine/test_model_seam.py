"""A decode step outside of its kernels: nothing waits for the device, and no shape depends on data.

Kernels are held to that by tests of their own (tests/ops/test_no_aten.py); here they run unwatched.
"""

# The modes are untyped.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from deepinfer.ops import dispatch
from tests.engine.model_runs import FEW_CANDIDATES, Story, caches, forward, model, prompt, single_thread

one_thread = pytest.fixture(autouse=True, scope="module")(single_thread)

WAITING = {
    "aten::_local_scalar_dense",
    "aten::nonzero",
    "aten::masked_select",
    "aten::equal",
    "aten::is_nonzero",
    "aten::repeat_interleave.Tensor",
    "aten::_unique2",
    "aten::unique_dim",
    "aten::bincount",
}
READS = {torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__, torch.Tensor.cpu, torch.Tensor.item}


class Unwatched:
    """Kernels of the backend in use, within which `inside` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.inside = False
        self.calls = 0
        original: Callable[[str, str], Any] = dispatch._module
        monkeypatch.setattr(dispatch, "_module", lambda backend, family: self._wrapped(original(backend, family)))

    def _wrapped(self, module: Any) -> Any:
        def wrap(construct: Callable[..., Any]) -> Callable[..., Any]:
            def made(*parameters: Any, **named: Any) -> Callable[..., Any]:
                kernel = construct(*parameters, **named)

                def run(*arguments: Any, **by_name: Any) -> Any:
                    self.inside, self.calls = True, self.calls + 1
                    try:
                        return kernel(*arguments, **by_name)
                    finally:
                        self.inside = False

                return run

            return made

        return SimpleNamespace(**{name: wrap(one) for name, one in vars(module).items() if callable(one)})


@contextlib.contextmanager
def watched(unwatched: Unwatched) -> Iterator[list[str]]:
    found: list[str] = []

    class Operators(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = str(func._schema.name) + (f".{func._overloadname}" if func._overloadname != "default" else "")
            by_mask = name.startswith(("aten::index.", "aten::index_put")) and any(
                isinstance(one, torch.Tensor) and one.dtype == torch.bool for one in (args[1] if len(args) > 1 else ())
            )
            if not unwatched.inside and (name in WAITING or by_mask):
                found.append(name)
            return func(*args, **(kwargs or {}))

    class Functions(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if not unwatched.inside and func in READS:
                found.append(f"Tensor.{func.__name__}")
            return func(*args, **(kwargs or {}))

    with Operators(), Functions():
        yield found


def test_the_watch_notices_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    with watched(Unwatched(monkeypatch)) as found:
        x = torch.arange(3)
        x[x > 1]
        x.tolist()
        int(x[0])
        x.nonzero()
    assert {"Tensor.tolist", "aten::nonzero", "aten::_local_scalar_dense"} <= set(found)
    assert any(name.startswith("aten::index") for name in found)


def test_a_decode_step_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    own, memory = model(candidates=FEW_CANDIDATES), caches()
    stories = [Story(prompt(length), index) for index, length in enumerate((131, 9))]
    forward(own, memory, [story.rows(len(story.tokens) - 3) for story in stories])
    batch = own.batch([story.rows(3) for story in stories], decode=True)
    unwatched = Unwatched(monkeypatch)
    with watched(unwatched) as found:
        own.forward(batch, memory)
    assert unwatched.calls > 200 and found == []
