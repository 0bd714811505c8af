"""All kernels are there: each in both backends, with cases and tests (kernel_spec A.0)."""

from __future__ import annotations

import importlib
import inspect
from collections import Counter
from pathlib import Path

import pytest

from deepinfer.ops.ab.selection import selected
from deepinfer.ops.cases import cases
from deepinfer.ops.names import ALL_FAMILIES, FAMILIES, FAMILY_OF, MODEL_FAMILIES

TESTS = Path(__file__).parent


def test_there_are_43_and_each_in_one_family() -> None:
    assert len({name for names in FAMILIES.values() for name in names}) == 43
    assert sum(map(len, FAMILIES.values())) == 43, "one factory is in two families"


def test_the_models_own_are_in_one_family_each() -> None:
    assert len(ALL_FAMILIES) == len(FAMILIES) + len(MODEL_FAMILIES)
    assert sum(map(len, ALL_FAMILIES.values())) == len(FAMILY_OF), "one factory is in two families"
    assert not [name for names in MODEL_FAMILIES.values() for name in names if name.endswith("_tl")]


@pytest.mark.parametrize("name", FAMILY_OF)
def test_both_backends_have_it_each_its_own_with_one_signature(name: str) -> None:
    family = FAMILY_OF[name]
    made = {}
    for backend in ("reference", "triton"):
        module = importlib.import_module(f"deepinfer.ops.{backend}.{family}")
        made[backend] = getattr(module, name)
        assert made[backend].__module__.startswith(f"deepinfer.ops.{backend}."), f"{name} is another backend's"
        assert made[backend].__doc__, f"the {backend} backend's {name} does not say what it does"
    assert made["reference"] is not made["triton"]
    assert _parameters(made["reference"]) == _parameters(made["triton"])


def _parameters(factory: object) -> list[tuple[str, object, object]]:
    parameters = inspect.signature(factory).parameters.values()  # type: ignore[arg-type]
    return [(one.name, one.kind, one.default) for one in parameters]


@pytest.mark.parametrize("name", FAMILY_OF)
def test_it_has_cases_small_ones_and_one_of_the_engine(name: str) -> None:
    found = selected([name])
    assert any(not case.large for case in found), f"no case of {name} is small enough for the interpreter"
    assert any(case.engine for case in found), f"no case of {name} has the real model's parameters"


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_its_family_has_an_interface_and_tests(family: str) -> None:
    interface = importlib.import_module(f"deepinfer.ops.{family}")
    assert interface.__doc__
    tests = (TESTS / f"test_{family}.py").read_text()
    for word in ("agrees_in_the_interpreter", "agrees_on_a_gpu", "pytest.mark.gpu", "pytest.raises"):
        assert word in tests, f"test_{family}.py has no {word}"


def test_there_are_enough_cases() -> None:
    count = Counter(case.factory for case in cases())
    assert sum(count.values()) >= 160, count
