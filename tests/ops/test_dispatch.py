"""Which backend a kernel comes from, and what is said and recorded about it."""

from __future__ import annotations

import ast
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import deepinfer
from deepinfer import ops
from deepinfer.errors import KernelUnavailableError, VariableError
from deepinfer.ops import dispatch

PACKAGE = Path(deepinfer.__file__).parent
STRANGERS = {"tilelang", "tile_kernels", "tvm", "vllm", "flag_gems", "sglang"}


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test begins with no variable set and nothing remembered."""
    for name in ("OPS_BACKEND", "OPS_FALLBACK", "OPS_STRICT", "TRACE_KERNELS"):
        monkeypatch.delenv(f"DEEPINFER_{name}", raising=False)
    for cached in (dispatch._of_environment, dispatch._notice):
        cached.cache_clear()
    yield
    dispatch._of_environment.cache_clear()


def _gathered(factory: dispatch.Factory) -> torch.Tensor:
    x, y = torch.arange(6, dtype=torch.int8).view(3, 2), torch.zeros(2, 2, dtype=torch.int8)
    factory(2, torch.int8, torch.int32, 2)(x, torch.tensor([2, -1], dtype=torch.int32), y)
    return y


def test_the_factory_is_the_backend_s_own_object() -> None:
    with dispatch.using("reference"):
        found = ops.gather_tl
        from deepinfer.ops.reference import gather

        assert found is gather.gather_tl and found.__module__ == "deepinfer.ops.reference.gather"
    with dispatch.using("triton"):
        assert ops.gather_tl.__module__ == "deepinfer.ops.triton.gather"


def test_without_a_gpu_the_reference_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert dispatch.settings().backend == ("triton" if torch.cuda.is_available() else "reference")
    assert dispatch.reason()
    monkeypatch.setenv("DEEPINFER_OPS_BACKEND", "triton")
    dispatch._of_environment.cache_clear()
    assert dispatch.settings() == dispatch.Settings("triton")
    assert dispatch.reason() == "DEEPINFER_OPS_BACKEND says so"


def test_named_kernels_fall_back_and_it_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("DEEPINFER_OPS_BACKEND", "triton")
    monkeypatch.setenv("DEEPINFER_OPS_FALLBACK", " gather_tl, expand_swa_index_tl ,")
    assert dispatch.settings().fallbacks == {"gather_tl", "expand_swa_index_tl"}
    with caplog.at_level(logging.WARNING, "deepinfer.ops"):
        assert ops.gather_tl.__module__ == "deepinfer.ops.reference.gather"
        assert ops.gather_tl.__module__ == "deepinfer.ops.reference.gather"
    notices = [record.getMessage() for record in caplog.records]
    assert notices == ["gather_tl runs on the reference backend: DEEPINFER_OPS_FALLBACK names it"]


def test_a_fallback_to_what_is_the_backend_anyhow_is_none(caplog: pytest.LogCaptureFixture) -> None:
    with dispatch.using(dispatch.Settings("reference", frozenset({"gather_tl"}), strict=True)):
        assert ops.gather_tl.__module__ == "deepinfer.ops.reference.gather"
    assert caplog.records == []


def test_strict_makes_a_fallback_an_error() -> None:
    with dispatch.using(dispatch.Settings("triton", frozenset({"gather_tl"}), strict=True)):
        with pytest.raises(KernelUnavailableError, match="gather_tl would fall back") as caught:
            _ = ops.gather_tl
        assert "DEEPINFER_OPS_STRICT" in str(caught.value)
        assert ops.norm_tl.__module__ == "deepinfer.ops.triton.norm"


def test_using_nests_and_is_undone_by_an_error() -> None:
    outside = dispatch.settings()
    with dispatch.using("triton"):
        with pytest.raises(ZeroDivisionError), dispatch.using("reference"):
            assert dispatch.settings().backend == "reference"
            raise ZeroDivisionError
        assert dispatch.settings().backend == "triton"
    assert dispatch.settings() == outside


@pytest.mark.parametrize(
    ("variable", "value", "text"),
    [
        ("DEEPINFER_OPS_BACKEND", "tritn", "did you mean 'triton'"),
        ("DEEPINFER_OPS_BACKEND", "tilelang", "there are triton and reference"),
        ("DEEPINFER_OPS_FALLBACK", "gather_tl,nrom_tl", "did you mean 'norm_tl'"),
        ("DEEPINFER_OPS_STRICT", "perhaps", "it takes 0 or 1"),
    ],
)
def test_bad_variables_are_told(monkeypatch: pytest.MonkeyPatch, variable: str, value: str, text: str) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(VariableError, match=text) as caught:
        dispatch.settings()
    assert variable in str(caught.value) and caught.value.exit_code == 1


def test_an_unknown_kernel_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(KernelUnavailableError, match="there is no kernel 'gahter_tl'; did you mean 'gather_tl'"):
        _ = ops.gahter_tl
    assert not hasattr(ops, "something_tl")
    with pytest.raises(AttributeError, match="has no attribute 'something'") as caught:
        _ = ops.something
    assert not isinstance(caught.value, KernelUnavailableError)


def test_a_backend_that_cannot_be_imported_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepinfer.ops.triton.gather", None)
    dispatch._module.cache_clear()
    with dispatch.using("triton"), pytest.raises(KernelUnavailableError, match="cannot be imported") as caught:
        _ = ops.gather_tl
    assert "Triton is missing or broken" in str(caught.value) and "DEEPINFER_OPS_BACKEND=reference" in str(caught.value)
    dispatch._module.cache_clear()


def test_the_trace_holds_a_line_for_each_variant_that_ran(tmp_path: Path) -> None:
    trace = tmp_path / "kernels.jsonl"
    with dispatch.using(dispatch.Settings("reference", trace=str(trace))):
        factory = ops.gather_tl
        assert factory.__module__ == "deepinfer.ops.reference.gather"
        factory(2, torch.int8, torch.int32, 2)
        assert not trace.exists()  # made, and not run
        assert _gathered(factory).tolist() == [[4, 5], [0, 0]]
        _gathered(ops.gather_tl)
    rows = [json.loads(line) for line in trace.read_text().splitlines()]
    parameters = ["2", "torch.int8", "torch.int32", "2"]
    assert rows == [{"kernel": "gather_tl", "backend": "reference", "parameters": parameters}]


def test_a_trace_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    where = tmp_path / "missing" / "trace"
    with (
        dispatch.using(dispatch.Settings("reference", trace=str(where))),
        pytest.raises(VariableError, match="DEEPINFER_TRACE_KERNELS"),
    ):
        _gathered(ops.gather_tl)


def _modules_after(statement: str) -> set[str]:
    code = f"import json, sys\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_importing_deepinfer_costs_neither_torch_nor_triton() -> None:
    assert not {"torch", "triton", "numpy"} & _modules_after("import deepinfer, deepinfer.ops")


def test_triton_is_imported_when_one_of_its_factories_is_asked_for() -> None:
    first = "from deepinfer import ops\nimport deepinfer.ops.gather, deepinfer.ops.launch, deepinfer.ops.execution\n"
    reference = _modules_after(first + "with ops.using('reference'): ops.gather_tl")
    assert "torch" in reference and "triton" not in reference
    assert "triton" in _modules_after(first + "with ops.using('triton'): ops.gather_tl")


def test_no_source_imports_another_kernel_library() -> None:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            found += [f"{path.relative_to(PACKAGE)}: {name}" for name in names if name.partition(".")[0] in STRANGERS]
    assert found == []


def test_no_module_of_the_kernels_brings_another_kernel_library_in() -> None:
    statement = (
        "import importlib, pkgutil, deepinfer.ops as ops\n"
        "for one in pkgutil.walk_packages(ops.__path__, 'deepinfer.ops.'):\n"
        "    if not one.name.endswith('__main__'): importlib.import_module(one.name)"
    )
    modules = _modules_after(statement)
    assert "deepinfer.ops.triton.gather" in modules
    assert not {name.partition(".")[0] for name in modules} & STRANGERS
