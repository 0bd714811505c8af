"""Bytes of tokens, by the kind of decoder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deepinfer.errors import CheckpointError
from deepinfer.loading.tiny import VOCABULARY
from deepinfer.loading.tiny_tokenizer import write_tokenizer
from deepinfer.token_bytes import converter, of_byte_fallback, of_byte_level
from deepinfer.tokenizer import EOS, Tokenizer

FALLBACK = {"type": "Sequence", "decoders": [{"type": "Replace"}, {"type": "ByteFallback"}, {"type": "Fuse"}]}


def test_the_kind_of_decoder_decides() -> None:
    assert converter(json.dumps({"type": "ByteLevel", "use_regex": True})) is of_byte_level
    assert converter(json.dumps({"type": "Sequence", "decoders": [{"type": "ByteLevel"}]})) is of_byte_level
    assert converter(json.dumps(FALLBACK)) is of_byte_fallback
    assert converter(json.dumps({"type": "WordPiece"})) is None and converter("null") is None


def test_byte_level_letters_are_bytes_and_added_tokens_are_themselves() -> None:
    assert of_byte_level("\u0120fox") == b" fox" and of_byte_level("\u010a") == b"\n"
    assert of_byte_level("\u00e2\u0124\u00ac") == "\u20ac".encode()
    assert of_byte_level("｜DSML｜") == "｜DSML｜".encode()


def test_byte_fallback() -> None:
    assert of_byte_fallback("<0xE2>") == b"\xe2" and of_byte_fallback("\u2581fox\u20ac") == " fox\u20ac".encode()
    assert of_byte_fallback("<0xE>") == b"<0xE>"


def test_every_byte_is_a_token_and_ids_beyond_are_nothing(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="tokenizers is absent: no text can be tokenised")
    write_tokenizer(tmp_path, VOCABULARY)
    tokenizer = Tokenizer(tmp_path)
    pieces = [tokenizer.bytes_of(token) for token in range(tokenizer.size)]
    assert {bytes([byte]) for byte in range(256)} <= set(pieces) and b"" not in pieces
    assert pieces[1] == EOS.encode() and 1 in tokenizer.special_ids and len(tokenizer.special_ids) == 13
    assert tokenizer.bytes_of(VOCABULARY) == b""


def test_an_unknown_decoder_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="tokenizers is absent: no text can be tokenised")
    write_tokenizer(tmp_path, VOCABULARY)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"decoder": None}))
    with pytest.raises(CheckpointError, match="not known here"):
        Tokenizer(tmp_path)
