"""benchmarks/build.py without a build: its matrix for every image, and its tables."""

from __future__ import annotations

import importlib.util
import shutil
from types import ModuleType

import pytest

from build.cache import REPOSITORY
from build.matrix.load import load_matrix


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_build", REPOSITORY / "benchmarks" / "build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("image", ["cpu", "flagtree", "vllm", "flagos"])
def test_the_copy_has_one_image_on_the_replica_of_the_real_one(
    bench: ModuleType, image: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp(image)
    for name in ("images", "deepinfer/csrc"):
        shutil.copytree(REPOSITORY / name, folder / name)
    shutil.copy(REPOSITORY / "setup.py", folder)
    real = load_matrix().targets[image]
    bench._write_matrix(real, f"bench-{image}", folder / "matrix.yaml")
    (target,) = load_matrix(folder / "matrix.yaml").targets.values()
    assert (target.name, target.vendor, target.replica) == (f"bench-{image}", f"deepinfer-base:{image}-replica", None)
    assert real.replica is not None and target.expect == {**real.expect, **real.replica.expect}
    assert target.components == real.components


def test_the_tables_say_what_was_missed_and_what_could_not_be_done(bench: ModuleType) -> None:
    samples = {
        "compile of a alone": [60.0], "compile of b alone": [40.0], "empty wheelhouse": [120.0],
        "nothing changed": [0.5, 0.7, 0.6], "only Python changed": [30.0], "empty wheelhouse, ccache warm": [20.0],
    }  # fmt: skip
    rows = bench.summarise(samples)
    table = bench.as_table(rows)
    assert "| nothing changed | 0.6 | 3 | 0.60 s | 3 |" in table and "20 (missed)" in table
    results = [{"image": "cpu", "rows": rows}, {"image": "vllm", "error": "no space"}]
    header, _, cpu, vllm = bench.summary(results).splitlines()
    assert header.count("|") == cpu.count("|") == vllm.count("|") == 7
    assert cpu == "| cpu | 100.0 s | 0.6 s | 30.0 s missed | 120.0 s (1.20 x) | 20.0 s (0.20 x) |"
    assert vllm.startswith("| vllm | no space |")


def test_an_image_of_which_nothing_is_compiled_has_times_and_no_ratios(bench: ModuleType) -> None:
    rows = {row["name"]: row for row in bench.summarise({"empty wheelhouse": [12.0], "nothing changed": [4.0]})}
    empty = rows["empty wheelhouse"]
    assert (empty["seconds"], empty["figure"], empty["unit"], empty["limit"]) == (12.0, 12.0, "s", None)
    assert rows["nothing changed"]["kept"] is False and rows["the compiles alone, together"]["seconds"] == 0


def test_a_name_that_no_image_has(bench: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--image", "flagtre"]) == 3
    assert "did you mean" in capsys.readouterr().err


def test_an_option_that_is_mistyped(bench: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--imgae", "cpu"]) == 1
    assert "benchmarks/build.py has no option '--imgae'; did you mean '--image'?" in capsys.readouterr().err


@pytest.mark.parametrize("count", ["0", "-3"])
def test_no_samples_are_none(bench: ModuleType, capsys: pytest.CaptureFixture[str], count: str) -> None:
    assert bench.main(["--image", "flagtre", "--repeat", count]) == 1
    assert f"--repeat must be at least 1, not {count}" in capsys.readouterr().err
