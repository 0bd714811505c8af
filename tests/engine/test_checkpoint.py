"""Checkpoints: the real layout, every way in which one can be damaged, and the tiny one."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from deepinfer.cli import main
from deepinfer.config import read_config
from deepinfer.errors import CheckpointError
from deepinfer.loading.checkpoint import INDEX, Checkpoint, tensors
from deepinfer.loading.dummy import dummy_tensors
from deepinfer.loading.inventory import inventory
from deepinfer.loading.tiny import write_tiny

pytest.importorskip("safetensors", reason="safetensors is absent: no checkpoint can be read")
pytest.importorskip("tokenizers", reason="tokenizers is absent: no tiny checkpoint can be written")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint; tests leave it as it is."""
    folder = tmp_path_factory.mktemp("checkpoint") / "tiny"
    write_tiny(folder)
    return folder


@pytest.fixture
def copy(tiny: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny, tmp_path / "copy"))


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], None], *, index: bool = True) -> None:
    """Change the tensors of both shards and, unless told otherwise, the index with them."""
    from safetensors.torch import load_file, save_file

    weight_map = {}
    for file in sorted(folder.glob("*.safetensors")):
        held = load_file(file)
        change(held)
        save_file(held, file)
        weight_map |= dict.fromkeys(held, file.name)
    if index:
        (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))


def refused(folder: Path) -> str:
    with pytest.raises(CheckpointError) as told:
        Checkpoint.open(folder, read_config(folder))
    return str(told.value)


def test_what_was_written_is_read_back(tiny: Path) -> None:
    config = read_config(tiny)
    expected = dict(dummy_tensors(config))
    seen = 0
    for name, tensor in tensors(tiny, config):
        assert tensor.dtype == expected[name].dtype and tensor.shape == expected[name].shape
        assert tensor.view(torch.uint8).equal(expected[name].view(torch.uint8))
        seen += 1
    assert seen == len(expected) == len(inventory(config))


def test_every_tensor_exactly_once(tiny: Path) -> None:
    with Checkpoint.open(tiny, read_config(tiny)) as checkpoint:
        assert checkpoint.take("norm.weight").shape == (128,)
        with pytest.raises(KeyError):
            checkpoint.take("norm.weight")
        with pytest.raises(CheckpointError, match="tensors of the checkpoint were not used: embed"):
            checkpoint.finish()


def test_the_prefix_may_be_in_the_index_the_shards_or_neither(copy: Path) -> None:
    def prefix(held: dict[str, torch.Tensor]) -> None:
        for name in list(held)[::2]:
            held[f"model.{name}"] = held.pop(name)

    rewrite(copy, prefix, index=False)
    config = read_config(copy)
    assert {name for name, _ in tensors(copy, config)} == set(inventory(config))
    rewrite(copy, lambda held: None)
    assert {name for name, _ in tensors(copy, config)} == set(inventory(config))


def test_one_file_needs_no_index(copy: Path) -> None:
    from safetensors.torch import load_file, save_file

    held: dict[str, torch.Tensor] = {}
    for file in copy.glob("*.safetensors"):
        held |= load_file(file)
        file.unlink()
    (copy / INDEX).unlink()
    save_file(held, copy / "model.safetensors")
    assert sum(1 for _ in tensors(copy, read_config(copy))) == len(held)


def test_copies_that_the_draft_does_not_need_are_ignored(copy: Path) -> None:
    def add(held: dict[str, torch.Tensor]) -> None:
        if "embed.weight" in held:
            held["mtp.0.embed.weight"] = held["embed.weight"].clone()
            held["mtp.1.head.weight"] = held["head.weight"].clone()

    rewrite(copy, add)
    assert "mtp.0.embed.weight" not in dict(tensors(copy, read_config(copy)))


def test_everything_wrong_is_told_at_once_by_name(copy: Path) -> None:
    def damage(held: dict[str, torch.Tensor]) -> None:
        held.pop("layers.0.attn.attn_sink", None)
        if "embed.weight" in held:
            held["layers.0.hc_attn_norm.weight"] = torch.ones(4)
            held["layers.99.thing"] = torch.ones(4)
            held["embed.weight"] = held["embed.weight"][:-1].clone()
            held["norm.weight"] = held["norm.weight"].float()
            held["head.weight"] = held["head.weight"].half()

    rewrite(copy, damage)
    told = refused(copy)
    for text in (
        "1 tensor missing: layers.0.attn.attn_sink",
        "1 tensor unknown: layers.99.thing",
        "not folded into hc_*_fn, as this model has it: layers.0.hc_attn_norm.weight",
        "embed.weight is bfloat16 [511, 128], expected bfloat16 [512, 128]",
        "norm.weight is float32 [128], expected bfloat16 [128]",
        "head.weight is a F16, expected bfloat16 [512, 128]",
        "next step",
    ):
        assert text in told


def test_a_file_that_is_cut_off_or_missing_is_named_alone(copy: Path) -> None:
    first, second = sorted(copy.glob("*.safetensors"))
    os.truncate(first, first.stat().st_size - 100)
    second.unlink()
    told = refused(copy)
    assert f"{first.name} is damaged or cut off" in told and f"{second.name} is missing" in told
    assert "tensors missing" not in told


def test_an_index_that_disagrees_with_its_files(copy: Path) -> None:
    index = json.loads((copy / INDEX).read_text())
    first, second = sorted(file.name for file in copy.glob("*.safetensors"))
    moved = next(name for name, file in index["weight_map"].items() if file == first)
    index["weight_map"][moved] = second
    dropped = next(name for name, file in reversed(index["weight_map"].items()) if file == second)
    del index["weight_map"][dropped]
    (copy / INDEX).write_text(json.dumps(index))
    told = refused(copy)
    assert f"in the index and not in the file that it names: {moved}" in told
    assert f"in a file and not in the index: {dropped}" in told


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "is no index of safetensors files"),
        ("[]", "is no index of safetensors files"),
        ('{"weight_map": {"a": 3}}', "is no index of safetensors files"),
        ('{"weight_map": {"a": "../../etc/passwd"}}', "names what is no file in its folder: '../../etc/passwd'"),
        ('{"weight_map": {"a": ".."}}', "names what is no file in its folder: '..'"),
        ('{"weight_map": {"a": "."}}', "names what is no file in its folder: '.'"),
        ('{"weight_map": {"a": ""}}', "names what is no file in its folder: ''"),
        ('{"weight_map": {"a": "\\ud800"}}', "names what is no file in its folder: '\\ud800'"),
        ('{"weight_map": {"a": "\\u0000"}}', "names what is no file in its folder: '\\x00'"),
        ('{"weight_map": {"a": "x"}, "weight_map": {}}', '"weight_map" twice'),
        ('{"weight_map": {"a": "x", "a": "y"}}', '"a" twice'),
        ('{"weight_map": {"a": "x", "model.a": "x"}}', "names tensors both with 'model.' before them and without: a"),
        ("[" * 200_000, "nested too deeply"),
        ('{"weight_map": {"a": "folder"}}', "folder is no file"),
        ('{"weight_map": {"a": "pipe"}}', "pipe is no file"),
    ],
)
def test_an_index_that_is_none(copy: Path, text: str, expected: str) -> None:
    (copy / INDEX).write_text(text)
    (copy / "folder").mkdir()
    os.mkfifo(copy / "pipe")
    assert expected in refused(copy)


def removed(file: Path) -> None:
    file.unlink()


def cut(file: Path) -> None:
    os.truncate(file, 100)


def swapped(file: Path) -> None:
    from safetensors.torch import load_file, save_file

    held = load_file(file)
    save_file({name: torch.zeros(3) for name in held}, file)


@pytest.mark.parametrize("change", [removed, cut, swapped])
def test_a_file_that_changes_after_it_was_examined(copy: Path, change: Callable[[Path], None]) -> None:
    with Checkpoint.open(copy, read_config(copy)) as checkpoint:
        file = copy / checkpoint.places["norm.weight"].file
        change(file)
        with pytest.raises(CheckpointError, match=f"{file.name} has changed since it was examined") as told:
            checkpoint.take("norm.weight")
        assert "next step" in str(told.value)


def test_no_weights_at_all(copy: Path) -> None:
    for file in (*copy.glob("*.safetensors"), copy / INDEX):
        file.unlink()
    told = refused(copy)
    assert "the folder holds no weights" in told and "--load-format dummy" in told


def test_dummy_weights_depend_on_name_and_seed_alone() -> None:
    from deepinfer.config import parse_config
    from deepinfer.loading.tiny import tiny_config

    config = parse_config(tiny_config())
    first, again, other = dict(dummy_tensors(config)), dict(dummy_tensors(config)), dict(dummy_tensors(config, 1))
    shorter = tiny_config()
    shorter["text_config"]["num_nextn_predict_layers"] = 0
    shorter["text_config"]["compress_ratios"] = shorter["text_config"]["compress_ratios"][:12]
    part = dict(dummy_tensors(parse_config(shorter)))
    for name in ("embed.weight", "layers.3.ffn.experts.2.w1.weight", "layers.6.attn.wq_b.scale"):
        bits = [held[name].view(torch.uint8) for held in (first, again, other, part)]
        assert bits[0].equal(bits[1]) and bits[0].equal(bits[3]) and not bits[0].equal(bits[2])
    assert not any(one.float().isnan().any() for one in first.values())


def test_the_tiny_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "deep" / "tiny"
    assert main(["tiny", str(folder)]) == 0 and "MB of random weights" in capsys.readouterr().out
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 20e6
    umask = os.umask(0)
    os.umask(umask)
    assert all(file.stat().st_mode & 0o777 == 0o666 & ~umask for file in folder.iterdir())
    assert main(["tiny", str(folder)]) == 1 and "is not empty" in capsys.readouterr().err
    assert main(["tiny", str(folder / "config.json")]) == 1 and "is no folder" in capsys.readouterr().err
    assert main(["tiny", str(folder / "config.json" / "x")]) == 1 and "config.json)" in capsys.readouterr().err
    assert main(["tiny", "/proc/here"]) == 4 and "cannot be written" in capsys.readouterr().err
    assert [entry.name for entry in folder.parent.iterdir()] == ["tiny"]
