"""Tokenizer and engram's compressed vocabulary (model_spec 1.5, 3.10)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.config import parse_config
from deepinfer.errors import CheckpointError
from deepinfer.loading.compressed_vocabulary import compressed_lookup
from deepinfer.loading.tiny import VOCABULARY, tiny_config
from deepinfer.loading.tiny_tokenizer import write_tokenizer
from deepinfer.tokenizer import BOS, EOS, Tokenizer

pytest.importorskip("tokenizers", reason="tokenizers is absent: no text can be tokenised")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(found, VOCABULARY)
    return found


def test_the_same_bytes_each_time(folder: Path, tmp_path: Path) -> None:
    write_tokenizer(tmp_path, VOCABULARY)
    assert (tmp_path / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    with pytest.raises(ValueError, match="were asked for"):
        write_tokenizer(tmp_path, 4000)


def test_ids_of_the_specification_and_the_beginning(folder: Path) -> None:
    tokenizer = Tokenizer(folder)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.size) == (0, 1, VOCABULARY)
    assert tokenizer.encode("fox")[0] == 0 and tokenizer.encode("fox", begin=False) == tokenizer.encode("fox")[1:]
    assert tokenizer.encode(f"{BOS}fox", begin=False) == tokenizer.encode("fox") == tokenizer.encode(f"{BOS}fox")
    assert tokenizer.decode([0, *tokenizer.encode("fox", begin=False), 1]) == "fox"
    assert tokenizer.decode([1], skip_special=False) == EOS


@settings(max_examples=100)
@given(text=st.text(max_size=40))
def test_any_text_comes_back(folder: Path, text: str) -> None:
    tokenizer = Tokenizer(folder)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_tiny_configuration_states_the_size_of_its_vocabulary(folder: Path) -> None:
    engram = parse_config(tiny_config()).engram
    assert engram is not None and int(Tokenizer(folder).lookup().max()) + 1 == engram.compressed_vocab


def test_what_looks_alike_shares_an_id() -> None:
    texts = ["Fox", " fox", "FOX\n", "f\u00f3x", "ox", " ", "  ", "\t", "", "\u0301", "\ufffd", "\ufffd", "\uff26ox"]
    raw = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "<0x80>", "<0x81>", "k"]
    found = compressed_lookup(len(texts), texts.__getitem__, raw.__getitem__).tolist()
    # One space stays one; more of them are one as well. A lone accent has nothing left and keeps its own text.
    assert found == [0, 0, 0, 0, 1, 2, 2, 2, 3, 4, 5, 6, 0]


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("damage", [None, "{", "[1]"])
def test_files_that_are_damaged(tmp_path: Path, name: str, damage: str | None) -> None:
    write_tokenizer(tmp_path, VOCABULARY)
    if damage is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_text(damage)
    if name == "tokenizer_config.json" and damage == "[1]":
        Tokenizer(tmp_path)  # it is required, and nothing of it decides
        return
    with pytest.raises(CheckpointError, match=name):
        Tokenizer(tmp_path)


def test_another_models_tokenizer(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, VOCABULARY)
    path = tmp_path / "tokenizer.json"
    path.write_text(path.read_text().replace(EOS, "<end>"))
    with pytest.raises(CheckpointError, match="has no token"):
        Tokenizer(tmp_path)
