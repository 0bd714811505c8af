"""What a step is, and the limits that it keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from deepinfer.cache.layout import BLOCK_TOKENS
from deepinfer.cache.prefix import Truncation
from deepinfer.engine.sequence import Sequence
from deepinfer.errors import Option


@dataclass(frozen=True)
class Limits:
    """sequences: that run at once. chunk_tokens: rows of prompts a step. length: tokens of a sequence at most.
    why: what allows no more, "model", "max_model_len" or "blocks".

    truncation, keep_tokens: what a prefill keeps of the windows (model_spec 3.8). prefix_caching: whether states are
    kept and found.
    """

    sequences: int
    chunk_tokens: int
    length: int
    truncation: Truncation = "off"
    keep_tokens: int = 0
    prefix_caching: bool = True
    why: Literal["model", "max_model_len", "blocks"] = "model"

    def of_length(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Why a sequence may be no longer, and what would let it; () where nothing but a shorter one would.

        Both in pieces of an error's text.
        """
        if self.why == "max_model_len":
            name = Option("max_model_len")
            return (name, f" is {self.length}"), ("open the model with a larger ", name)
        if self.why == "blocks":
            # Counted as the option counts them, which may have given their number.
            blocks = 1 + self.length // BLOCK_TOKENS
            held = f"the cache has {blocks} blocks of {BLOCK_TOKENS} tokens, one of them kept for padding"
            more = ("open the model with more cache blocks (", Option("blocks"), "), or with more memory for them")
            return (held,), more
        return (f"the model was made for {self.length} tokens",), ()


@dataclass(frozen=True)
class Chunk:
    """Rows start .. start + count - 1 of a sequence."""

    sequence: Sequence
    start: int
    count: int

    @property
    def end(self) -> int:
        """The first position that is not in it."""
        return self.start + self.count

    @property
    def last(self) -> bool:
        """Whether it reaches the newest token, so that the next one can be drawn."""
        return self.end == len(self.sequence.tokens)


@dataclass(frozen=True)
class Step:
    """What is computed next. restore: (from, to) slots, copied before, in order. prefill, decode: the two forwards."""

    restore: tuple[tuple[int, int], ...]
    prefill: tuple[Chunk, ...]
    decode: tuple[Chunk, ...]

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """All of them."""
        return self.prefill + self.decode
