"""The host's memory while a checkpoint is loaded: what is read is mapped, and what is copied is what stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.load import SMALLEST, in_child, size, sized, write
from deepinfer.loading.tiny import tiny_config

pytest.importorskip("safetensors", reason="safetensors is absent: no checkpoint can be read")
pytest.importorskip("tokenizers", reason="tokenizers is absent: a checkpoint's tokenizer cannot be read")
MIB = 2**20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with n-gram tables of 120 MB, more than all the rest."""
    values = tiny_config()
    values["text_config"]["engram_vocab_size"] = 150_000
    found = tmp_path_factory.mktemp("large") / "model"
    write(found, values)
    return found


def test_on_a_processor_the_files_own_pages_are_the_weights(folder: Path) -> None:
    """Beside what is copied, which `copied` counts, a tensor and the tokenizer: not the tables, nor twice anything."""
    found = in_child(folder, "cpu")
    assert found["checkpoint"] > 120 * MIB and found["tables"] > 110 * MIB > 16 * found["copied"]
    assert found["largest_tensor"] > 50 * MIB
    assert found["copied"] <= found["peak_over_before"] < found["copied"] + 24 * MIB


@pytest.mark.gpu
@pytest.mark.parametrize("tables", ["cuda", "cpu"])
def test_on_a_gpu_nothing_stays_on_the_host(folder: Path, tables: str) -> None:
    found = in_child(folder, "cuda", tables)
    assert found["copied"] == 0 and found["peak_over_before"] < found["tables"]


@pytest.mark.parametrize("gib", [SMALLEST, 4.0, 40.0])
def test_the_benchmarks_model_is_about_as_large_as_asked(gib: float) -> None:
    assert 0.9 < size(sized(int(gib * 2**30))) / (gib * 2**30) < 1.1
