"""Text of tokens as they come: whole characters, stop strings across tokens, nothing shown that is taken back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.engine.detokenize import Detokenizer
from deepinfer.loading.tiny import VOCABULARY
from deepinfer.loading.tiny_tokenizer import write_tokenizer
from deepinfer.tokenizer import Tokenizer


@dataclass(frozen=True)
class Pieces:
    """A vocabulary of these pieces, by their number."""

    pieces: tuple[bytes, ...]
    special_ids: frozenset[int] = frozenset()

    def bytes_of(self, token: int) -> bytes:
        return self.pieces[token]


def run(pieces: Sequence[bytes | str], stop: Sequence[str] = (), min_tokens: int = 0) -> tuple[list[str], Detokenizer]:
    """The text shown at each token and at the end."""
    texts = tuple(one.encode() if isinstance(one, str) else one for one in pieces)
    detokenizer = Detokenizer(Pieces(texts), stop=stop, min_tokens=min_tokens)
    shown = [detokenizer.push(token) for token in range(len(texts))]
    return [*shown, detokenizer.finish()], detokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    pytest.importorskip("tokenizers", reason="tokenizers is absent: no text can be tokenised")
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder, VOCABULARY)
    return Tokenizer(folder)


def test_a_character_is_shown_when_it_is_whole() -> None:
    euro, smile = "\u20ac".encode(), "\U0001f642".encode()
    assert run(["a", euro[:1], euro[1:2], euro[2:] + smile[:2], smile[2:]])[0] == [
        "a", "", "", "\u20ac", "\U0001f642", "",
    ]  # fmt: skip


def test_bytes_that_are_no_text_become_replacements_as_soon_as_it_is_sure() -> None:
    assert run([b"\xe2", b"a", b"\x80", b"\xf0\x9f", b"\xff"])[0] == ["", "\ufffda", "\ufffd", "", "\ufffd\ufffd", ""]
    assert run(["x", b"\xe2\x82"])[0] == ["x", "", "\ufffd"], "half a character at the end"


def test_a_stop_string_across_tokens_and_what_may_be_its_beginning() -> None:
    shown, detokenizer = run(["say ST", "O", "P", " more"], ["STOP"])
    assert shown == ["say ", "", "", "", ""] and detokenizer.stopped_by == "STOP" and detokenizer.text == "say "
    shown, detokenizer = run(["say ST", "A", "Y"], ["STOP"])
    assert shown == ["say ", "STA", "Y", ""] and detokenizer.stopped_by is None
    assert run(["say ST"], ["STOP"])[0] == ["say ", "ST"], "held back until nothing follows"
    assert run(["aab"], ["ab"])[1].text == "a" and run(["a", "a", "b"], ["ab"])[0] == ["", "a", "", ""]


def test_the_string_that_is_complete_first_counts_and_of_two_the_longer() -> None:
    for pieces in (["abcd"], list("abcd")):
        _, detokenizer = run(pieces, ["abcd", "bc"])
        assert (detokenizer.text, detokenizer.stopped_by) == ("a", "bc")
    _, detokenizer = run(["xabc"], ["bc", "abc", "c"])
    assert (detokenizer.text, detokenizer.stopped_by) == ("x", "abc")


def test_stop_strings_in_the_first_tokens_are_text() -> None:
    shown, detokenizer = run(["a.", "b.", "c.", "d"], ["."], min_tokens=3)
    assert detokenizer.text == "a.b.c" and detokenizer.stopped_by == "." and shown == ["a.", "b.", "c", "", ""]
    _, detokenizer = run(["x", "a", "b"], ["ab"], min_tokens=3)
    assert detokenizer.text == "x", "it began among the first tokens, and is complete with the third"
    _, detokenizer = run(["abab", "ab"], ["ab"], min_tokens=2)
    assert detokenizer.text == "abab"


def test_special_tokens_show_nothing_and_do_not_cut_a_character() -> None:
    euro = "\u20ac".encode()
    detokenizer = Detokenizer(Pieces((b"<s>", euro[:1], euro[1:]), frozenset({0})), stop=["s"])
    assert [detokenizer.push(token) for token in (0, 1, 0, 2, 0)] == ["", "", "", "\u20ac", ""]


def test_a_stop_string_of_characters_of_several_bytes() -> None:
    text = "ja\u20ac\u20acnein".encode()
    _, detokenizer = run([bytes([one]) for one in text], ["\u20ac\u20ac"])
    assert detokenizer.text == "ja" and detokenizer.stopped_by == "\u20ac\u20ac"


@settings(max_examples=200)
@given(
    letters=st.text("ab", max_size=30),
    stop=st.lists(st.text("ab", min_size=1, max_size=5), max_size=3),
    cuts=st.sets(st.integers(1, 29)),
)
def test_as_if_every_letter_were_looked_at_alone(letters: str, stop: list[str], cuts: set[int]) -> None:
    ends = [*sorted(cut for cut in cuts if cut < len(letters)), len(letters)]
    pieces = [letters[first:last] for first, last in zip([0, *ends], ends, strict=False)]
    shown, detokenizer = run(pieces, stop)
    found = next(
        ((end, max(done, key=len)) for end in range(1, len(letters) + 1)
         if (done := [one for one in stop if letters[:end].endswith(one)])),
        None,
    )  # fmt: skip
    expected = letters if found is None else letters[: found[0] - len(found[1])]
    assert "".join(shown) == detokenizer.text == expected
    assert detokenizer.stopped_by == (None if found is None else found[1])


@settings(max_examples=200)
@given(ids=st.lists(st.integers(0, VOCABULARY - 1), max_size=40))
def test_the_whole_text_is_what_the_tokenizer_makes_of_the_tokens(tokenizer: Tokenizer, ids: list[int]) -> None:
    detokenizer = Detokenizer(tokenizer)
    shown = [detokenizer.push(token) for token in ids] + [detokenizer.finish()]
    assert "".join(shown) == detokenizer.text == tokenizer.decode(ids)


@settings(max_examples=50)
@given(text=st.text(max_size=30))
def test_text_comes_back_and_no_half_character_is_shown(tokenizer: Tokenizer, text: str) -> None:
    detokenizer = Detokenizer(tokenizer)
    so_far = ""
    for token in tokenizer.encode(text):
        so_far += detokenizer.push(token)
        assert text.startswith(so_far) and so_far == detokenizer.text
    assert so_far + detokenizer.finish() == text
