"""Text of tokens as they come: whole characters only, and nothing of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol


class Vocabulary(Protocol):
    """What is asked of a tokenizer (deepinfer.tokenizer.Tokenizer)."""

    @property
    def special_ids(self) -> frozenset[int]:
        """Tokens that are no text."""

    def bytes_of(self, token: int) -> bytes:
        """What a token stands for; b'' for an id that is none."""


class StopString:
    """Looks for one stop string in text that comes letter by letter (Knuth, Morris and Pratt).

    matched: how many of its first letters the text ends with now.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        self._shorter = _borders(text)

    def advance(self, letter: str) -> bool:
        """Take the text's next letter; whether the string is complete with it. Afterwards it is looked for anew."""
        while self.matched and self.text[self.matched] != letter:
            self.matched = self._shorter[self.matched - 1]
        self.matched += self.text[self.matched] == letter
        if self.matched < len(self.text):
            return False
        self.matched = self._shorter[-1]
        return True


class Detokenizer:
    """The text of one completion, token by token.

    The whole text is what `Tokenizer.decode` makes of the tokens: special tokens are left out, and bytes that are no
    UTF-8 become U+FFFD. A character is shown when its last byte is there, so none is ever taken back. The text ends
    before a stop string, and what may be the beginning of one is not shown before it is known. Of several strings the
    one that is complete first counts, however the text is cut into tokens.

    text: what may be shown so far. stopped_by: the stop string that ended it.
    """

    def __init__(self, vocabulary: Vocabulary, *, stop: Sequence[str] = (), min_tokens: int = 0) -> None:
        """min_tokens: a stop string that is complete before as many tokens is text like any other."""
        self.text = ""
        self.stopped_by: str | None = None
        self._vocabulary = vocabulary
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = [StopString(one) for one in stop]
        self._free = min_tokens
        self._held = ""
        self._tokens = 0

    def push(self, token: int) -> str:
        """Take a token; the text that may be shown more. Tokens after a stop string add nothing."""
        self._tokens += 1
        if token in self._vocabulary.special_ids:
            return self._show("")
        return self._show(self._utf8.decode(self._vocabulary.bytes_of(token)))

    def finish(self) -> str:
        """No token follows: the text that was held back. Half a character becomes U+FFFD."""
        shown = self._show(self._utf8.decode(b"", final=True))
        rest, self._held = self._held, ""
        self.text += rest
        return shown + rest

    def _show(self, new: str) -> str:
        """Take text; show what is no beginning of a stop string, and nothing from a complete one on."""
        if self.stopped_by is not None:
            return ""
        text = self._held + new
        for place, letter in enumerate(new, len(self._held) + 1):
            complete = [one.text for one in self._stops if one.advance(letter)]
            if complete and self._tokens >= self._free:
                self.stopped_by = max(complete, key=len)
                return self._split(text, place - len(self.stopped_by), "")
        shown = len(text) - max((one.matched for one in self._stops), default=0)
        return self._split(text, shown, text[shown:])

    def _split(self, text: str, shown: int, held: str) -> str:
        self.text += text[:shown]
        self._held = held
        return text[:shown]


def _borders(text: str) -> list[int]:
    """For each beginning of the text, the length of the longest shorter one that it also ends with."""
    found = [0] * len(text)
    for end in range(1, len(text)):
        length = found[end - 1]
        while length and text[length] != text[end]:
            length = found[length - 1]
        found[end] = length + (text[length] == text[end])
    return found
