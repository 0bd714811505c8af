"""The bytes that each token of a vocabulary stands for, by the kind of decoder that a tokenizer has."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_LETTERS = {
    **{chr(byte): byte for byte in _PRINTABLE},
    **{chr(0x100 + place): byte for place, byte in enumerate(sorted(set(range(256)) - set(_PRINTABLE)))},
}
"""Byte-level vocabularies write each byte as one letter: printable ones as Latin-1, the others from U+0100 on."""


def converter(decoder: str) -> Callable[[str], bytes] | None:
    """How a token's string in the vocabulary becomes bytes; None for a kind of decoder that is not known.

    Args:
        decoder: the `decoder` of tokenizer.json: byte-level, or with byte fallback (a byte is a token `<0xE4>`, and a
            space is written as U+2581).
    """
    kinds = _kinds(json.loads(decoder))
    if "ByteLevel" in kinds:
        return of_byte_level
    return of_byte_fallback if "ByteFallback" in kinds else None


def of_byte_level(token: str) -> bytes:
    """Bytes of a byte-level token; one with another letter in it (an added token) stands for itself."""
    try:
        return bytes(_LETTERS[letter] for letter in token)
    except KeyError:
        return token.encode("utf-8", "surrogatepass")


def of_byte_fallback(token: str) -> bytes:
    """Bytes of a token of a vocabulary with byte fallback."""
    if match := _BYTE.fullmatch(token):
        return bytes.fromhex(match[1])
    return token.replace("\u2581", " ").encode("utf-8", "surrogatepass")


def _kinds(decoder: Any) -> set[str]:
    """The types of a decoder and of those that it is made of."""
    if not isinstance(decoder, dict):
        return set()
    parts: list[Any] = decoder.get("decoders", [])
    return {str(decoder.get("type"))}.union(*map(_kinds, parts))
