"""Text to token ids and back, by a checkpoint's tokenizer.json (model_spec 1.5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from deepinfer.errors import CheckpointError
from deepinfer.folders import read
from deepinfer.json_text import strict_json
from deepinfer.loading.compressed_vocabulary import compressed_lookup
from deepinfer.packages import need
from deepinfer.token_bytes import converter

BOS = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"
PAD = "<｜▁pad▁｜>"


class Tokenizer:
    """A checkpoint's tokenizer. Plain text gets the token that begins a sentence; see `encode`.

    bos_id, eos_id: ids of the tokens that begin and end a text. size: ids in the vocabulary, added tokens included.
    special_ids: tokens that are no text, which `decode` leaves out.
    """

    def __init__(self, folder: Path) -> None:
        self._tokenizer = _load(folder)
        self.bos_id = self._special(folder, BOS)
        self.eos_id = self._special(folder, EOS)
        self.size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)
        added = self._tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(token for token, one in added.items() if one.special)
        self._bytes_of = _converter(folder, self._tokenizer)

    def encode(self, text: str, *, begin: bool = True) -> list[int]:
        """Token ids. begin: put the token that begins a sentence first, unless the text has it, as rendered chats."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return [self.bos_id, *ids] if begin and ids[:1] != [self.bos_id] else ids

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of token ids."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=skip_special)
        return text

    def bytes_of(self, token: int) -> bytes:
        """What a token stands for; a part of a character where it is cut. b'' for an id that is none."""
        text: str | None = self._tokenizer.id_to_token(token)
        return b"" if text is None else self._bytes_of(text)

    def lookup(self) -> torch.Tensor:
        """Token id -> id in engram's compressed vocabulary: [size] int64."""
        return compressed_lookup(
            self.size,
            lambda token: self.decode([token], skip_special=False),
            lambda token: self._tokenizer.id_to_token(token) or "",
        )

    def _special(self, folder: Path, text: str) -> int:
        found: int | None = self._tokenizer.token_to_id(text)
        if found is None:
            raise CheckpointError(
                f"the tokenizer in {folder} has no token {text}",
                cause="it is another model's",
                next_step="fetch tokenizer.json of the checkpoint again",
            )
        return found


def _converter(folder: Path, tokenizer: Any) -> Callable[[str], bytes]:
    decoder = "null" if tokenizer.decoder is None else tokenizer.decoder.__getstate__()
    found = converter(decoder)
    if found is None:
        raise CheckpointError(
            f"the tokenizer in {folder} turns tokens into text in a way that is not known here",
            cause="its decoder is neither byte-level nor one with byte fallback: it is another model's",
            next_step="fetch tokenizer.json of the checkpoint again",
        )
    return found


def _load(folder: Path) -> Any:
    library = need("tokenizers", "text", otherwise="give token ids instead of text to a folder without tokenizer.json")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        path = folder / name
        try:
            strict_json(read(path))
        except (OSError, ValueError) as problem:
            reason = problem.strerror if isinstance(problem, OSError) else f"it is not JSON that can be used: {problem}"
            raise CheckpointError(
                f"{path} cannot be read: {reason}", next_step="fetch the checkpoint's tokenizer files again"
            ) from problem
    try:
        return library.Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as problem:  # the library raises plain Exception
        raise CheckpointError(
            f"{folder / 'tokenizer.json'} is no tokenizer: {problem}", next_step="fetch it again"
        ) from problem
