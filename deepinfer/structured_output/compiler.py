"""Grammars of xgrammar, behind an interface of our own."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import logging
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from deepinfer import envs
from deepinfer.engine.detokenize import Vocabulary
from deepinfer.environment.requirements import XGRAMMAR
from deepinfer.errors import DeepInferError
from deepinfer.sampling.masks import words_of
from deepinfer.sampling.params import Structure
from deepinfer.structured_output.source import text_of

WHITESPACE = 32
"""Whitespace characters between two elements of JSON: enough to indent, and an end to a model that writes no other."""
CACHE_BYTES = 2**28
THREADS = 2
"""Grammars that are compiled side by side."""
SLOWEST_STEP = 2.0
"""Seconds of computing that one token of a grammar may take: some ambiguous grammars take ever longer."""
_NOTHING_FOLLOWS = "structure: no token of the vocabulary can follow in this grammar"
_INSTALL = (
    f"{XGRAMMAR.install}, or leave `structure` out; in an image that has another one for its vendor's programs: into a "
    "folder of its own on PYTHONPATH (docs/structured-output.md)"
)
_CONTROLS = frozenset(range(32)) - {ord("\n")}
"""Bytes that are in no JSON text, but for tabs and carriage returns between elements, which are not needed there."""
_PLACE = re.compile(r"^\[\d\d:\d\d:\d\d\] \S+:\d+: ")
Kind = Literal["json", "regex", "ebnf", "choice"]
_log = logging.getLogger("deepinfer.structured_output")


class Matcher:
    """How far the text of one completion has got in its grammar.

    finished: the text is complete and its end token was taken. problem: why no token can follow; '' while one can.
    """

    def __init__(self, matcher: Any, vocab_size: int) -> None:
        self.finished = False
        self.problem = ""
        self._matcher = matcher
        self._words = words_of(vocab_size)

    def fill(self) -> torch.Tensor:
        """Which tokens may follow: an int32 bitmask [ceil(V / 32)] on the host, as `SampleRow.mask` takes it.

        The end token is among them where the text may end. Nothing is where `finished` or `problem` says so; a row
        sampled with such a mask fails.
        """
        mask = torch.zeros(self._words, dtype=torch.int32)
        if self.finished or self.problem:
            return mask
        started = time.thread_time()
        self._matcher.fill_next_token_bitmask(mask.view(1, -1), 0)
        self._watch(started)
        if not mask.any():
            self.problem = _NOTHING_FOLLOWS
        return mask.zero_() if self.problem else mask

    def accept(self, token: int) -> bool:
        """Take the token that follows; False, and nothing changes, where the grammar does not allow it."""
        if self.finished or self.problem or token < 0:
            return False
        started = time.thread_time()
        taken = bool(self._matcher.accept_token(token))
        self._watch(started)
        self.finished = taken and bool(self._matcher.is_terminated())
        return taken

    def _watch(self, started: float) -> None:
        if time.thread_time() - started > SLOWEST_STEP:
            self.problem = f"structure: a single token of this grammar takes more than {SLOWEST_STEP:g} s to match"


@dataclass(frozen=True)
class Grammar:
    """A structure compiled for a vocabulary. It may be shared by any number of completions."""

    compiled: Any
    vocab_size: int

    @functools.cached_property
    def size(self) -> int:
        """Bytes that it takes, about."""
        return int(self.compiled.memory_size_bytes)

    def matcher(self) -> Matcher:
        """The grammar at its beginning, for one completion."""
        return Matcher(_library().GrammarMatcher(self.compiled), self.vocab_size)


class GrammarCompiler:
    """Compiles structures for one tokenizer, keeping what it compiled. Any thread may use it."""

    def __init__(self, tokenizer: Vocabulary, vocab_size: int, stop_ids: Sequence[int]) -> None:
        """vocab_size: the model's, columns of its logits. stop_ids: tokens of which one ends a complete text."""
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._stop_ids = list(stop_ids)
        self._lock = threading.Lock()
        self._compilers: dict[bool, Any] = {}

    def compile(self, structure: Structure) -> Grammar:
        """The grammar of a structure.

        "json" is JSON with up to 32 blanks and line ends between elements; properties come in the schema's order,
        and there are none that it does not name, unless it says additionalProperties. oneOf counts as anyOf. What else
        cannot be enforced is refused, as are schemas that leave no value. A regular expression matches the whole text.
        "ebnf" starts at the rule `root`.

        Raises:
            ValueError: the structure is wrong or cannot be enforced; the message begins with its field's name.
            DeepInferError: xgrammar is not there.
        """
        return self.compile_text(structure.kind, text_to_compile(structure))

    def compile_text(self, kind: Kind, text: str) -> Grammar:
        """The same of a structure's kind and of what `text_to_compile` made of it."""
        compiler = self._started(kind)
        with _refusing(kind):
            compiled = _compiled(compiler, kind, text)
        grammar = Grammar(compiled, self._vocab_size)
        first = grammar.matcher()
        first.fill()
        if first.problem:
            why = (
                "no text matches it" if first.problem == _NOTHING_FOLLOWS else first.problem.removeprefix("structure: ")
            )
            raise ValueError(f"structure: the {name_of(kind)} cannot be taken: {why}")
        return grammar

    def _started(self, kind: Kind) -> Any:
        with self._lock:
            found = self._compilers.get(kind == "json")
            if found is None:
                library = _library()
                pieces = [self._piece(token, json=kind == "json") for token in range(self._vocab_size)]
                vocabulary = library.TokenizerInfo(
                    pieces, library.VocabType.RAW, vocab_size=self._vocab_size, stop_token_ids=self._stop_ids
                )
                # All that compile take half of the processors at most: the engine computes meanwhile.
                threads = min(8, max(1, (os.cpu_count() or 1) // (2 * THREADS)))
                found = library.GrammarCompiler(vocabulary, max_threads=threads, cache_limit_bytes=CACHE_BYTES)
                self._compilers[kind == "json"] = found
            return found

    def _piece(self, token: int, *, json: bool) -> bytes:
        """A token's bytes, b'' for one that is never allowed: special ones and, in JSON, those with control characters.

        xgrammar lets these into strings whose length is limited, where JSON has to escape them.
        """
        piece = b"" if token in self._tokenizer.special_ids else self._tokenizer.bytes_of(token)
        return b"" if json and not _CONTROLS.isdisjoint(piece) else piece


def check_structure(structure: Structure) -> None:
    """Refuse what is wrong with a structure whatever the model, before one is opened.

    Raises:
        ValueError: the structure is wrong or cannot be enforced; the message begins with its field's name.
        DeepInferError: xgrammar is not there.
    """
    check_text(structure.kind, text_to_compile(structure))


def text_to_compile(structure: Structure) -> str:
    """A structure as text. ValueError: what can be told without the library is wrong with it."""
    with _refusing(structure.kind):
        return text_of(structure)


def check_text(kind: Kind, text: str) -> None:
    """Refuse what the library does not read, as `check_structure` does."""
    grammar = _library().Grammar
    with _refusing(kind):
        if kind == "json":
            grammar.from_json_schema(text, max_whitespace_cnt=WHITESPACE)
        elif kind == "regex":
            grammar.from_regex(text)
        else:
            grammar.from_ebnf(text)


def name_of(kind: Kind) -> str:
    """What messages call a structure of a kind."""
    return {"json": "JSON schema", "regex": "regular expression", "ebnf": "grammar", "choice": "choice"}[kind]


def _library() -> Any:
    """The package. What does not fit is not imported: a vendor's other version may load more than it should."""
    try:
        version = importlib.metadata.version("xgrammar")
    except importlib.metadata.PackageNotFoundError as problem:
        raise _cannot_be_imported("it is not installed", problem) from problem
    if unfit := XGRAMMAR.problem(version):
        raise DeepInferError(
            f"structured output needs xgrammar {XGRAMMAR}, and {version} is here", cause=unfit, next_step=_INSTALL
        )
    prepare_import()
    try:
        return importlib.import_module("xgrammar")
    except Exception as problem:  # a library that cannot be loaded raises OSError, RuntimeError and others
        raise _cannot_be_imported("it does not fit what it lies beside", problem) from problem


def prepare_import() -> None:
    """With an older torch, xgrammar's import would compile an extension, a minute without a word, for speed alone."""
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        envs.set_unless_settled(envs.TVM_FFI_DISABLE_TORCH_C_DLPACK, "1")


def _cannot_be_imported(cause: str, problem: Exception) -> DeepInferError:
    return DeepInferError(
        f"structured output needs the package xgrammar, which cannot be imported: {problem}",
        cause=cause,
        next_step=_INSTALL,
    )


@contextlib.contextmanager
def _refusing(kind: Kind) -> Iterator[None]:
    """Whatever is raised in the block says what is wrong with a structure."""
    try:
        yield
    except ValueError as problem:
        raise ValueError(f"structure: the {name_of(kind)} cannot be taken: {problem}") from problem
    except Exception as problem:  # the library raises RuntimeError and types of its own
        raise ValueError(f"structure: the {name_of(kind)} cannot be taken: {_told(problem)}") from problem


def _compiled(compiler: Any, kind: Kind, text: str) -> Any:
    if kind == "json":
        return compiler.compile_json_schema(text, max_whitespace_cnt=WHITESPACE)
    return compiler.compile_regex(text) if kind == "regex" else compiler.compile_grammar(text)


def _told(problem: Exception) -> str:
    """What xgrammar says, without its clock and the line of its source."""
    _log.debug("xgrammar: %s", problem)
    return _PLACE.sub("", str(problem).strip()).splitlines()[0][:300] if str(problem).strip() else repr(problem)
