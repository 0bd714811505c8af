"""What results were made with: equal for a copy, another for whatever changes the answers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from deepinfer.cli.fingerprint import fingerprint
from deepinfer.errors import ConfigError
from deepinfer.loading.tiny import tiny_config, write_tiny

pytest.importorskip("safetensors", reason="safetensors is absent: no checkpoint can be written")
pytest.importorskip("tokenizers", reason="tokenizers is absent: no checkpoint can be written")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small file in the place of each of a checkpoint."""
    found = tmp_path / "model"
    found.mkdir()
    (found / "config.json").write_text(json.dumps(tiny_config()))
    for name, data in (("tokenizer.json", b"{}"), ("a.safetensors", bytes(90_000)), ("b.safetensors", b"b")):
        (found / name).write_bytes(data)
    return found


def test_models_that_differ_in_nothing_but_their_weights(tmp_path: Path) -> None:
    """The same shape, the same names and sizes of files."""
    for seed in (0, 1):
        write_tiny(tmp_path / str(seed), seed)
    shutil.copytree(tmp_path / "0", tmp_path / "copy")
    first, second, copy = (fingerprint(tmp_path / name) for name in ("0", "1", "copy"))
    assert first == copy != second and len(first) == 16


@pytest.mark.parametrize("place", [0, 89_999])
def test_a_byte_at_a_shards_ends(folder: Path, place: int) -> None:
    before = fingerprint(folder)
    data = bytearray((folder / "a.safetensors").read_bytes())
    data[place] = 1
    (folder / "a.safetensors").write_bytes(data)
    assert fingerprint(folder) != before


def test_every_file_and_option_that_changes_answers_counts(folder: Path) -> None:
    seen = {
        fingerprint(folder), fingerprint(folder, load_format="dummy"), fingerprint(folder, engram_rows=9),
        fingerprint(folder, truncation="mask"), fingerprint(folder, gemm="deep_gemm"),
    }  # fmt: skip
    config = json.dumps(tiny_config(), indent=1)
    for name, text in (("config.json", config), ("tokenizer.json", "{ }"), ("model.safetensors.index.json", "{}")):
        (folder / name).write_text(text)
        seen.add(fingerprint(folder))
    (folder / "b.safetensors").rename(folder / "c.safetensors")
    seen.add(fingerprint(folder))
    (folder / "c.safetensors").unlink()
    seen.add(fingerprint(folder))
    (folder / "c.safetensors").mkdir()  # not to be read: whoever opens the model tells it
    seen.add(fingerprint(folder))
    assert len(seen) == 11


def test_made_weights_depend_on_no_shard(folder: Path) -> None:
    before = fingerprint(folder, load_format="dummy")
    (folder / "a.safetensors").unlink()
    assert fingerprint(folder, load_format="dummy") == before


def test_no_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such folder"):
        fingerprint(tmp_path / "absent")
