"""Engram's vocabulary: token ids that look alike share one id (model_spec 3.10)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

import torch

_SPACES = re.compile(r"[ \t\r\n]+")


def compressed_lookup(size: int, decode: Callable[[int], str], raw: Callable[[int], str]) -> torch.Tensor:
    """Token id -> compressed id, numbered by first appearance: [size] int64.

    Args:
        size: of the tokenizer's vocabulary, added tokens included.
        decode: a token's text, decoded alone, special tokens kept. raw: its string in the vocabulary.
    """
    ids: dict[str, int] = {}
    return torch.tensor([ids.setdefault(_key(decode(token), raw, token), len(ids)) for token in range(size)])


def _key(text: str, raw: Callable[[int], str], token: int) -> str:
    if "\N{REPLACEMENT CHARACTER}" in text:
        return raw(token)
    decomposed = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
    bare = "".join(one for one in decomposed if unicodedata.category(one) != "Mn").lower()
    spaced = _SPACES.sub(" ", bare)
    return (spaced if spaced == " " else spaced.strip()) or text
