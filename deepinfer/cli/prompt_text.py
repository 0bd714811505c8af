"""Prompts from arguments, files and stdin: UTF-8, and refused where a text was damaged on its way here.

A machine whose locale is not UTF-8 damages text in two ways that reach this program: bytes that could not be decoded
come as lone surrogates, and characters that could not be encoded come as question marks. The model would answer
either without a word, so both are told instead.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from deepinfer.errors import InputError, UsageError

STDIN = "-"
_SURROGATE = re.compile("[\ud800-\udfff]")
_REPLACED = re.compile(r"(?<![\w?!])\?{4,}")
"""Four question marks or more that follow no letter or digit: "what????" is somebody's style, "????" is not."""
UTF16 = (b"\xff\xfe", b"\xfe\xff")
_LOCALE = "set a UTF-8 locale (export LC_ALL=C.UTF-8)"
_ADVICE = f"{_LOCALE}, or put the prompt into a UTF-8 file and give --file"
_AS_IT_IS = "; if it is meant so, --as-it-is"


def check_text(text: str, where: str, *, as_it_is: bool = False) -> str:
    """The text, if it was not damaged. where: how errors name it, as in "the prompt" or "in.jsonl, line 3".

    as_it_is: take runs of question marks and replacement characters for what was meant. Lone surrogates are refused
    all the same: there are no bytes for them.

    Raises:
        InputError: the text is damaged.
    """
    if found := _SURROGATE.search(text):
        raise InputError(
            f"{where} is no text: it has the lone surrogate U+{ord(found[0]):04X} at character {found.start() + 1}",
            cause="it was read as another encoding than its own, for example where the locale is not UTF-8",
            next_step=_ADVICE,
        )
    if as_it_is:
        return text
    if found := _REPLACED.search(text):
        raise InputError(
            f"{where} seems to be damaged: it has {found.group()[:12]!r} at character {found.start() + 1}",
            cause="characters that the locale cannot write were replaced by question marks",
            next_step=_ADVICE + _AS_IT_IS,
        )
    if "\N{REPLACEMENT CHARACTER}" in text:
        raise InputError(
            f"{where} seems to be damaged: it has U+FFFD at character {text.index(chr(0xFFFD)) + 1}",
            cause="bytes that are no UTF-8 were replaced when it was read or stored",
            next_step=_ADVICE + _AS_IT_IS,
        )
    return text


def decode(data: bytes, where: str) -> str:
    """Bytes as UTF-8 text, without a byte order mark.

    Raises:
        InputError: they are no UTF-8; the message names the byte and its line.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        encoding = "UTF-16" if data.startswith(UTF16) else "ISO-8859-1"
        line = data.count(b"\n", 0, problem.start) + 1
        raise InputError(
            f"{where} is not UTF-8: byte {problem.start + 1} (line {line}) is 0x{data[problem.start]:02x}",
            cause=f"it has another encoding, such as {encoding}",
            next_step=f"convert it: iconv -f {encoding} -t UTF-8 OLD > NEW",
        ) from problem


def read_bytes(name: str) -> bytes:
    """The bytes of a file, or of stdin where its name is "-".

    Raises:
        InputError: it cannot be read.
    """
    if name == STDIN:
        if sys.stdin is None:
            raise InputError("stdin is closed", next_step="give the prompt as an argument, or --file FILE")
        return sys.stdin.buffer.read()
    try:
        return Path(name).read_bytes()
    except OSError as problem:
        raise InputError(
            f"{name} cannot be read: {problem.strerror or problem}", next_step="name a file that is there and readable"
        ) from problem


def prompt_of(arguments: list[str], file: str | None, *, as_it_is: bool = False) -> str:
    """The one prompt of a command line: its argument, or --file, or stdin ("-", or nothing where stdin is no terminal).

    One line end at the end of a file or of stdin is left out, as editors and `echo` add it.

    Raises:
        UsageError: there is no prompt, or more than one.
        InputError: it is empty, damaged, or cannot be read.
    """
    if len(arguments) > 1:
        raise UsageError(
            f"{len(arguments)} prompts were given",
            cause="a prompt with spaces needs quotes around it",
            next_step='deepinfer ask --model DIR "the prompt"; for many prompts, deepinfer generate',
        )
    if arguments and file is not None:
        raise UsageError("a prompt and --file were given", next_step="give one of the two")
    if arguments and arguments[0] != STDIN:
        where, text = "the prompt", check_argument(arguments[0])
    else:
        name = STDIN if file is None else file
        where = "stdin" if name == STDIN else name
        if file is None and not arguments and sys.stdin is not None and sys.stdin.isatty():
            raise UsageError("no prompt was given", next_step="give it as an argument, with --file FILE, or on stdin")
        text = decode(read_bytes(name), where).removesuffix("\n").removesuffix("\r")
    if not text:
        hint = "; docker run needs -i to pass stdin on" if where == "stdin" else ""
        raise InputError(f"{where} is empty", next_step=f"give a prompt of at least one character{hint}")
    return check_text(text, where, as_it_is=as_it_is)


def check_argument(text: str, where: str = "") -> str:
    """A text of the command line, which Python has decoded by the locale: only UTF-8 gives what was typed.

    where: the option that it belongs to; '': it is the prompt.

    Raises:
        InputError: it is not what was typed.
    """
    encoding = sys.getfilesystemencoding()
    if not text.isascii() and encoding.lower().replace("_", "-") not in ("utf-8", "utf8"):
        raise InputError(
            f"{where or 'the prompt'} cannot be taken from the command line: the locale's encoding is {encoding}, "
            "not UTF-8",
            cause="an argument is read by the locale, and this one has characters beyond ASCII",
            next_step=_LOCALE if where else _ADVICE,
        )
    return text
