"""Where prompts come from, and what damage is told instead of answered."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from deepinfer.cli.prompt_text import check_text, decode, prompt_of
from deepinfer.errors import InputError, UsageError


def stdin(monkeypatch: pytest.MonkeyPatch, data: bytes, *, terminal: bool = False) -> None:
    stream = io.TextIOWrapper(io.BytesIO(data), encoding="ascii")  # its encoding must not matter
    monkeypatch.setattr(stream, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr(sys, "stdin", stream)


@pytest.mark.parametrize(
    "text", ["fox", "naïve 你好 🙂", "what????", "Really?? yes???", "a ??? b", "no!????", "line\n\n  two", "x_????"]
)
def test_a_text_is_taken_as_it_is(text: str) -> None:
    assert check_text(text, "the prompt") == text


@pytest.mark.parametrize("text", ["????", "??????, ???!", "Translate: ????????", '"????"', "hello ????"])
def test_question_marks_in_the_place_of_text_are_told(text: str) -> None:
    with pytest.raises(InputError, match="seems to be damaged") as told:
        check_text(text, "the prompt")
    assert "UTF-8 locale" in told.value.next_step and "--as-it-is" in told.value.next_step
    assert told.value.exit_code == 2
    assert check_text(text, "the prompt", as_it_is=True) == text


def test_replacement_characters_and_surrogates() -> None:
    with pytest.raises(InputError, match=r"U\+FFFD at character 4"):
        check_text("caf\N{REPLACEMENT CHARACTER}", "it")
    assert check_text("\N{REPLACEMENT CHARACTER}", "it", as_it_is=True)
    for as_it_is in (False, True):
        with pytest.raises(InputError, match=r"lone surrogate U\+DCE9 at character 4") as told:
            check_text("caf\udce9", "it", as_it_is=as_it_is)
        assert "LC_ALL=C.UTF-8" in str(told.value)


def test_bytes_that_are_no_utf8_are_named_with_their_place() -> None:
    assert decode("\ufeffé".encode(), "f") == "é"
    with pytest.raises(InputError, match=r"f is not UTF-8: byte 9 \(line 2\) is 0xe9") as told:
        decode(b"first\nca\xe9\n", "f")
    assert "iconv -f ISO-8859-1 -t UTF-8" in told.value.next_step
    with pytest.raises(InputError) as told:
        decode("fox".encode("utf-16"), "f")
    assert "iconv -f UTF-16 -t UTF-8" in told.value.next_step


def test_a_prompt_comes_from_an_argument_a_file_or_stdin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert prompt_of(["two words"], None) == "two words"
    path = tmp_path / "prompt.txt"
    for data, expected in ((b"one\n\ntwo\r\n", "one\n\ntwo"), ("é".encode(), "é"), (b"a\n\n", "a\n")):
        path.write_bytes(data)
        assert prompt_of([], str(path)) == expected
        for arguments, file in ((["-"], None), ([], "-"), ([], None)):
            stdin(monkeypatch, data)
            assert prompt_of(arguments, file) == expected


def test_no_prompt_or_too_many(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="2 prompts were given") as told:
        prompt_of(["two", "words"], None)
    assert "quotes" in told.value.cause
    with pytest.raises(UsageError, match="a prompt and --file"):
        prompt_of(["words"], "file")
    with pytest.raises(InputError, match="the prompt is empty"):
        prompt_of([""], None)
    stdin(monkeypatch, b"", terminal=True)
    with pytest.raises(UsageError, match="no prompt was given"):
        prompt_of([], None)
    stdin(monkeypatch, b"\n")
    with pytest.raises(InputError, match="stdin is empty") as empty:
        prompt_of([], None)
    assert "docker run needs -i" in empty.value.next_step
    with pytest.raises(InputError, match="absent cannot be read: No such file"):
        prompt_of([], str(tmp_path / "absent"))
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InputError, match="stdin is closed"):
        prompt_of(["-"], None)


def test_an_argument_that_another_locale_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: "iso8859-1")
    assert prompt_of(["plain"], None) == "plain"
    with pytest.raises(InputError, match="the locale's encoding is iso8859-1") as told:
        prompt_of(["cafÃ©"], None)
    assert "--file" in told.value.next_step
