"""What results were made with: equal for a copy, another for whatever changes the answers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from deepinfer import platform
from deepinfer.cli.fingerprint import fingerprint, of_options
from deepinfer.cli.model_options import add_model_arguments
from deepinfer.command_line import Parser
from deepinfer.errors import ConfigError, DeepInferError, UsageError
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
        fingerprint(folder, makers=("cpu", "cpu")),
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
    assert len(seen) == 12


def test_made_weights_depend_on_no_shard(folder: Path) -> None:
    before = fingerprint(folder, load_format="dummy")
    (folder / "a.safetensors").unlink()
    assert fingerprint(folder, load_format="dummy") == before


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two GPUs of a kind and a smaller one."""
    sizes = (132, 132, 78)
    found = platform.Platform("cuda", "580", "13.0", tuple(platform.Gpu("GPU", 90, size, 1) for size in sizes), "")
    monkeypatch.setattr(platform, "detect", lambda: found)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


def of_command_line(folder: Path, *options: str) -> str:
    parser = Parser()
    add_model_arguments(parser)
    return of_options(parser.parse_args(["--model", str(folder), *options]))


def test_what_makes_dummy_weights_counts(folder: Path, gpus: None) -> None:
    dummy = ("--load-format", "dummy", "--device")
    first, second, small, cpu = (
        of_command_line(folder, *dummy, device) for device in ("cuda:0", "cuda:1", "cuda:2", "cpu")
    )
    on_host = of_command_line(folder, *dummy, "cuda", "--engram-device", "cpu")
    assert first == second and len({first, small, cpu, on_host}) == 4


def test_what_reads_weights_does_not(folder: Path, gpus: None) -> None:
    places = [("--device", "cuda:2"), ("--device", "cpu"), ("--device", "cuda:9"), ("--engram-device", "cpu")]
    assert {of_command_line(folder, *place) for place in places} == {fingerprint(folder)}


def test_dummy_weights_for_a_device_that_is_none(folder: Path, gpus: None) -> None:
    for place in (("--device", "gpu"), ("--device", "cpu", "--engram-device", "cuda")):
        with pytest.raises(UsageError, match=r"the options cannot be taken: (engram_)?device "):
            of_command_line(folder, "--load-format", "dummy", *place)
    with pytest.raises(DeepInferError, match="there is no device cuda:9"):
        of_command_line(folder, "--load-format", "dummy", "--device", "cuda:9")


def test_no_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such folder"):
        fingerprint(tmp_path / "absent")
