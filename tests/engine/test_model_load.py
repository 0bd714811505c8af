"""From a folder to a model (model_spec 2)."""

from __future__ import annotations

import json
import os
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch

from deepinfer import LLM
from deepinfer.cli.fingerprint import fingerprint
from deepinfer.errors import CheckpointError, ConfigError, DeepInferError
from deepinfer.host_memory import host_memory
from deepinfer.loading.checkpoint import INDEX
from deepinfer.loading.tiny import VOCABULARY, tiny_config, write_tiny
from deepinfer.model import load
from deepinfer.model.load import LoadedModel, is_out_of_memory, load_model
from deepinfer.model.model import Model
from deepinfer.model.weights import gather_weights
from tests.engine.model_runs import Story, caches, config, forward, prompt, single_thread, tensors

pytest.importorskip("safetensors", reason="safetensors is absent: no checkpoint can be read")
pytest.importorskip("tokenizers", reason="tokenizers is absent: a checkpoint's tokenizer cannot be read")

one_thread = pytest.fixture(autouse=True, scope="module")(single_thread)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("model") / "tiny"
    write_tiny(found)
    return found


@pytest.fixture
def config_alone(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(tiny_config()), encoding="utf-8")
    return tmp_path


def logits(loaded: LoadedModel) -> torch.Tensor:
    return forward(loaded.model, caches(), [Story(prompt(40)).rows(40)])


def test_a_checkpoint_gives_the_model_of_its_tensors(folder: Path) -> None:
    told: list[tuple[int, int]] = []
    loaded = load_model(folder, device="cpu", progress=lambda done, of: told.append((done, of)))
    assert loaded.tokenizer is not None and loaded.stop_ids == (loaded.tokenizer.eos_id,)
    assert loaded.config == config() and loaded.model.max_positions == 4096
    assert told[-1][0] == told[-1][1] == max(told)[0] and told[0][0] > 0
    assert not any(name.startswith("mtp.") for name in vars(loaded.model.weights))
    weights = gather_weights(config(), tensors().__getitem__, "cpu")
    assert logits(loaded).equal(
        logits(LoadedModel(config(), Model(config(), weights, lookup=loaded.tokenizer.lookup()), None, ()))
    )


def test_dummy_weights_need_the_configuration_alone(config_alone: Path, folder: Path) -> None:
    loaded = load_model(config_alone, device="cpu", load_format="dummy")
    assert loaded.tokenizer is None and loaded.stop_ids == ()
    vocabulary = loaded.model.vocabulary
    assert vocabulary is not None and len(vocabulary.table) == VOCABULARY
    assert logits(loaded).isfinite().all()
    assert load_model(folder, device="cpu", load_format="dummy").tokenizer is not None
    other = load_model(config_alone, device="cpu", load_format="dummy", seed=1)
    assert not logits(other).equal(logits(loaded))


def test_ngram_tables_can_be_cut(folder: Path, config_alone: Path) -> None:
    whole = load_model(folder, device="cpu")
    for path, load_format in ((folder, "auto"), (config_alone, "dummy")):
        cut = load_model(path, device="cpu", load_format=load_format, engram_rows=100)  # type: ignore[arg-type]
        for layer in (1, 4):
            own = cut.model.weights.layers[layer].engram
            assert own is not None and own.table.shape == (100, 32) and own.table_scales.shape == (100, 1)
        assert logits(cut).isfinite().all() and not logits(cut).equal(logits(whole))
    assert logits(load_model(folder, device="cpu", engram_rows=10**9)).equal(logits(whole))


def test_what_is_no_model_is_told(folder: Path, tmp_path: Path, config_alone: Path) -> None:
    with pytest.raises(CheckpointError, match="tokenizer"):
        load_model(config_alone, device="cpu")
    with pytest.raises(ConfigError):
        load_model(tmp_path / "nowhere", device="cpu")
    with pytest.raises(ValueError, match="load_format"):
        load_model(folder, device="cpu", load_format="some")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="engram_rows"):
        load_model(folder, device="cpu", engram_rows=0)


def test_another_models_tokenizer_is_refused(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    values = json.loads((other / "config.json").read_text(encoding="utf-8"))
    values["text_config"]["engram_compressed_vocab_size"] += 1
    (other / "config.json").write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(CheckpointError, match="431 ids, and config"):
        load_model(other, device="cpu")


@pytest.mark.parametrize(("key", "said", "has"), [("eos_token_id", 5, 1), ("bos_token_id", 1, 0)])
def test_tokens_that_the_tokenizer_has_elsewhere(folder: Path, tmp_path: Path, key: str, said: int, has: int) -> None:
    values = {**tiny_config(), key: said}
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / name, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(CheckpointError, match=f"says {key} {said}, and the tokenizer has {has}"):
        load_model(tmp_path, device="cpu", load_format="dummy")


def test_dummy_weights_that_no_machine_has_room_for_are_not_begun(tmp_path: Path) -> None:
    values = tiny_config()
    values["text_config"] |= {"engram_vocab_size": 2**28, "engram_head_dim": 8192, "hidden_size": 2**17}
    (tmp_path / "config.json").write_text(json.dumps(values), encoding="utf-8")
    told: list[tuple[int, int]] = []
    with pytest.raises(DeepInferError, match=r"do not fit cpu: they take \d+\.\d GiB, \d+\.\d of them") as refused:
        load_model(tmp_path, device="cpu", load_format="dummy", progress=lambda done, of: told.append((done, of)))
    assert "--engram-rows" in str(refused.value) and not told
    with pytest.raises(DeepInferError, match="the n-gram tables do not fit the host: they take"):
        load_model(tmp_path, device="meta", engram_device="cpu", load_format="dummy")


def test_a_container_with_less_memory_than_its_machine(
    folder: Path, config_alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (
        ("proc/self/cgroup", "0::/\n"),
        ("proc/self/mountinfo", "30 23 0:26 / /cgroup rw - cgroup2 cgroup2 rw\n"),
        ("cgroup/memory.max", "4096\n"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(load, "host_memory", partial(host_memory, tmp_path))
    with pytest.raises(DeepInferError, match="do not fit cpu: they take") as refused:
        load_model(config_alone, device="cpu", load_format="dummy")
    assert "this process may have 0.0 GiB" in refused.value.cause and "container" in refused.value.cause
    with pytest.raises(DeepInferError, match="the n-gram tables do not fit the host") as refused:
        load_model(config_alone, device="meta", engram_device="cpu", load_format="dummy")
    assert "this process may have 0.0 GiB" in refused.value.cause
    load_model(folder, device="cpu")  # those of files are mapped


def test_what_torch_says_where_there_is_no_room() -> None:
    for size in ((2**45,), (2**40, 2**40)):
        with pytest.raises(RuntimeError) as told:
            torch.empty(size)
        assert is_out_of_memory(told.value)
    assert is_out_of_memory(torch.OutOfMemoryError("no")) and not is_out_of_memory(RuntimeError("shape"))


@pytest.mark.parametrize("name", ["x" * 5000, "x/" * 3000])
def test_a_name_that_can_be_none(name: str) -> None:
    with pytest.raises(ConfigError, match="there is no such folder"):
        load_model(Path(name), device="cpu")
    with pytest.raises(CheckpointError, match="is no folder"):
        LLM(name, device="cpu")
    with pytest.raises(CheckpointError, match="is no folder"):
        LLM(f"{name}\0", device="cpu")


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize(("text", "why"), [("[" * 200_000, "nested too deeply"), ('{"a": 1, "a": 2}', '"a" twice')])
def test_tokenizer_files_that_python_would_read_otherwise(
    folder: Path, tmp_path: Path, file: str, text: str, why: str
) -> None:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / name, tmp_path)
    (tmp_path / file).write_text(text, encoding="utf-8")
    with pytest.raises(CheckpointError, match=f"{file} cannot be read: it is not JSON that can be used: it .*{why}"):
        load_model(tmp_path, device="cpu")


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "tokenizer_config.json", INDEX])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(folder: Path, tmp_path: Path, file: str) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / file).unlink()
    os.mkfifo(tmp_path / file)
    with pytest.raises((ConfigError, CheckpointError), match=f"{file} cannot be read: it is no file"):
        load_model(tmp_path, device="cpu")
    (tmp_path / "x.safetensors").symlink_to(tmp_path / file)
    if file == "config.json":
        (tmp_path / file).unlink()
        (tmp_path / file).symlink_to(folder / file)
        os.mkfifo(tmp_path / "y.safetensors")
    assert len(fingerprint(tmp_path)) == 16
