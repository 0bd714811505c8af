"""Structured output: text drawn at random under a grammar always matches it, and what cannot be kept is refused."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from deepinfer.cli.sampling_options import given_options
from deepinfer.errors import DeepInferError
from deepinfer.loading.tiny import VOCABULARY
from deepinfer.loading.tiny_tokenizer import write_tokenizer
from deepinfer.sampling import SamplingParams, Structure
from deepinfer.sampling.sampler import Sampler, SampleRow
from deepinfer.structured_output import Grammar, GrammarCompiler, Matcher
from deepinfer.tokenizer import Tokenizer

WIDTH = VOCABULARY + 5  # a model's vocabulary may be larger than its tokenizer's
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b c", 'd"e']}, "maxItems": 3},
        "home": {"$ref": "#/$defs/place", "description": "a note"},
    },
    "required": ["name", "age"],
    "$defs": {"place": {"type": ["string", "null"], "pattern": "^[A-Z][a-z]*$"}},
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    pytest.importorskip("tokenizers", reason="tokenizers is absent: no text can be tokenised")
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder, VOCABULARY)
    return Tokenizer(folder)


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    pytest.importorskip("xgrammar", reason="xgrammar is absent: structured output cannot be tried")
    return GrammarCompiler(tokenizer, WIDTH, [tokenizer.eos_id])


def allowed(matcher: Matcher) -> set[int]:
    words = matcher.fill().tolist()
    return {token for token in range(WIDTH) if words[token // 32] >> (token % 32) & 1}


def drawn(grammar: Grammar, tokenizer: Tokenizer, seed: int, longest: int = 400) -> str:
    """A text drawn by the sampler under a grammar, from logits that favour what ends things."""
    matcher, sampler = grammar.matcher(), Sampler(WIDTH, "cpu")
    generator = torch.Generator().manual_seed(seed)
    bonus = torch.zeros(WIDTH)
    for token in range(VOCABULARY):
        bonus[token] = 5.0 if token == tokenizer.eos_id or tokenizer.bytes_of(token) in (b'"', b"}", b"]") else 0.0
    tokens: list[int] = []
    for position in range(longest):
        logits = torch.randn(1, WIDTH, generator=generator) * 2 + bonus
        (one,) = sampler.sample(logits, [SampleRow(SamplingParams(), seed, position, matcher.fill())])
        assert not one.failed and matcher.accept(one.token_id), (one, matcher.problem, tokens)
        if matcher.finished:
            assert one.token_id == tokenizer.eos_id
            return tokenizer.decode(tokens)
        tokens.append(one.token_id)
    raise AssertionError(f"no end: {tokenizer.decode(tokens)!r}")


@pytest.mark.parametrize("seed", range(4))
def test_json_fits_its_schema(compiler: GrammarCompiler, tokenizer: Tokenizer, seed: int) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is absent: nothing to compare with")
    text = drawn(compiler.compile(Structure("json", PERSON)), tokenizer, seed)
    jsonschema.validate(json.loads(text), PERSON)


@pytest.mark.parametrize(
    "pattern",
    [r"[a-c]{2,4}(x|yz)*", r"^\d{3}-\d{2}$", r"^ab$|^cd+$", "\u20ac{2}[\u00e4\u00f6]?", r"\x41\u0042(?:\.|\\)", ""],
)
def test_text_matches_the_whole_expression(compiler: GrammarCompiler, tokenizer: Tokenizer, pattern: str) -> None:
    grammar = compiler.compile(Structure("regex", pattern))
    for seed in range(3):
        assert re.fullmatch(pattern, drawn(grammar, tokenizer, seed))


def test_a_grammar_from_its_root(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    grammar = compiler.compile(Structure("ebnf", 'root ::= pair "!"\npair ::= "a" pair "b" | "x"'))
    for seed in range(3):
        text = drawn(grammar, tokenizer, seed)
        depth = text.count("a")
        assert text == "a" * depth + "x" + "b" * depth + "!"


def test_one_of_several_texts_whatever_their_letters(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    texts = ("yes", 'n"o\\', "two\nlines", "\u20ac\U0001f642", "yes and", "\x07 |")
    grammar = compiler.compile(Structure("choice", texts))
    found = {drawn(grammar, tokenizer, seed) for seed in range(40)}
    assert found <= set(texts) and len(found) >= 4


def test_only_the_end_follows_a_text_that_is_complete(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    matcher = compiler.compile(Structure("regex", "ab?")).matcher()
    letter = {text: tokenizer.encode(text, begin=False)[0] for text in "abc"}
    assert allowed(matcher) == {letter["a"]}
    assert not matcher.accept(letter["b"]) and allowed(matcher) == {letter["a"]}, "a refused token changes nothing"
    assert matcher.accept(letter["a"]) and allowed(matcher) == {letter["b"], tokenizer.eos_id}
    assert matcher.accept(letter["b"]) and allowed(matcher) == {tokenizer.eos_id} and not matcher.finished
    assert matcher.accept(tokenizer.eos_id) and matcher.finished
    assert allowed(matcher) == set() and not matcher.accept(letter["a"]) and matcher.problem == ""


def test_special_tokens_and_those_beyond_the_tokenizer_are_never_allowed(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    matcher = compiler.compile(Structure("regex", "(.|\n)*")).matcher()
    assert allowed(matcher) & {*tokenizer.special_ids, *range(VOCABULARY, WIDTH)} == {tokenizer.eos_id}
    assert matcher.fill().shape == ((WIDTH + 31) // 32,)
    for token in (-1, 0, 5, VOCABULARY, WIDTH, 10**9):
        assert not matcher.accept(token)


def test_completions_of_a_grammar_go_their_own_ways(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    grammar = compiler.compile(Structure("regex", "a+"))
    first, second = grammar.matcher(), grammar.matcher()
    token = tokenizer.encode("a", begin=False)[0]
    assert first.accept(token) and tokenizer.eos_id in allowed(first) and tokenizer.eos_id not in allowed(second)


def test_min_tokens_gives_way_where_only_the_end_is_left(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    matcher = compiler.compile(Structure("regex", "a")).matcher()
    assert matcher.accept(tokenizer.encode("a", begin=False)[0])
    row = SampleRow(SamplingParams(min_tokens=9), 1, 2, matcher.fill(), banned=(tokenizer.eos_id,))
    assert Sampler(WIDTH, "cpu").sample(torch.zeros(1, WIDTH), [row])[0].token_id == tokenizer.eos_id


def test_a_grammar_without_a_way_on_ends_with_a_reason(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    matcher = compiler.compile(Structure("ebnf", 'root ::= "a" dead | "b"\ndead ::= "x" dead')).matcher()
    for token in tokenizer.encode("axx", begin=False):
        assert matcher.accept(token)
    assert not matcher.problem and allowed(matcher), "it could go on for ever"


def test_a_grammar_that_takes_too_long_for_a_token_ends_its_own_completion(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    matcher = compiler.compile(Structure("regex", "a+")).matcher()
    clock = iter((0.0, 2.5))
    monkeypatch.setattr("deepinfer.structured_output.compiler.time.thread_time", lambda: next(clock))
    assert allowed(matcher) == set() and "more than 2 s" in matcher.problem and not matcher.accept(5)


@pytest.mark.parametrize(
    ("kind", "grammar", "message"),
    [
        ("json", "{", "JSON schema cannot be taken: Expecting"),
        ("json", {"type": "nothing"}, 'Unsupported type "nothing"'),
        ("json", "[]", "Schema should be an object or bool"),
        ("json", "false", "cannot accept any value"),
        ("json", {"minimum": float("nan"), "type": "number"}, "not JSON compliant"),
        ("json", {"a": {1, 2}}, "not JSON serializable"),
        ("json", "[" * 100000, "JSON schema cannot be taken"),
        ("json", {"$ref": "#/$defs/a"}, "JSON schema cannot be taken: Cannot find field"),
        ("json", {"type": "string", "pattern": "(?=a)"}, "a group with (?=, as at position 0, is not known"),
        ("regex", "b(?<=a)b", "a group with (?<=, as at position 1, is"),
        ("regex", "[a", "regular expression cannot be taken: Regex parsing error at position 3: Unclosed"),
        ("regex", "a\ud800", "surrogates not allowed"),
        ("regex", "a^b", "^ at position 1 is within the text"),
        ("regex", "\\Ab", "\\A at position 0 is no escape"),
        ("ebnf", "no rules", "grammar cannot be taken: EBNF parser error"),
        ("ebnf", "root ::= nothere", 'Rule "nothere" is not defined'),
        ("ebnf", "root ::= root", "no text matches it"),
        ("ebnf", "root ::= " + "(" * 5000 + '"a"' + ")" * 5000, "Nest layer exceeded"),
        ("ebnf", "x" * (2**16 + 1), "may have 65536 characters, with what is repeated written out, and has 65537"),
        ("regex", "x" * (2**16 + 1), "may have 65536 characters"),
        ("regex", "([ab][c\\]]\\dd){1,9}" * 2000, "written out, and has 72000"),
        ("regex", "((a{10}){1,200}){100,}", "written out, and has 128000"),
        ("ebnf", 'root ::= ("abcd"){1,9}' + ' ("abcd"){9}' * 1500, "written out, and has 82"),
        ("ebnf", "[" * 2**16, "the grammar cannot be taken"),
        ("ebnf", '"' * (2**16 - 1), "the grammar cannot be taken"),
        ("ebnf", f'root ::= "{"x" * 1000}"{{128}}', "written out, and has 128265"),
        ("ebnf", f'root ::= ((a)){{ 1, 128 }}\na ::= (b)\nb ::= "{"x" * 1000}" # "', "written out, and has 128"),
        ("json", {"type": "string", "pattern": "(abcd){1,9}" * 2000}, "written out, and has 72000"),
        ("json", {"type": "object", "patternProperties": {"(abcd){1,9}" * 2000: {}}}, "written out, and has 72000"),
        ("regex", "a{4294967298}", "it repeats something 4294967298 times; 999999999 is the most"),
        ("json", {"items": {"type": "string", "pattern": "a{2,4294967298}"}}, "it repeats something 4294967298 times"),
        ("ebnf", 'root ::= "a"{ 1, 02147483648}', "it repeats something 2147483648 times"),
        ("json", " " * (2**16 + 1), "may have 65536 characters"),
        ("json", {"const": "x" * 2**16}, "may have 65536 characters"),
        ("choice", ("x" * 2**15, "y" * (2**15 + 1)), "may have 65536 characters"),
        ("choice", tuple(map(str, range(2001))), "may have 2000 entries, and one has 2001"),
        ("json", {"items": {"enum": [*range(2001)]}}, "may have 2000 entries"),
        ("json", {"properties": dict.fromkeys(map(str, range(2001)), True)}, "may have 2000 entries"),
        ("json", '{"type": "integer", "type": "string"}', '"type" twice in one object'),
        ("json", {"properties": {1: {}}}, "a name in it is int 1; names are texts"),
        ("choice", ("a", "b\udc80"), "surrogates not allowed"),
    ],
)
def test_a_bad_structure_is_refused_by_name(compiler: GrammarCompiler, kind: Any, grammar: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        compiler.compile(Structure(kind, grammar))
    assert str(caught.value).startswith("structure: ") and ".cc" not in str(caught.value)


def test_a_choice_on_the_command_line_that_is_a_list_is_refused_with_what_to_write() -> None:
    def given(text: str) -> Any:
        return given_options(argparse.Namespace(structure=["choice", text]))["structure"]["grammar"]

    with pytest.raises(ValueError, match=r"^structure: a choice is written 'A\|B' here: 'yes\|no'; it is a list in a"):
        given('["yes","no"]')
    with pytest.raises(ValueError, match=r"^structure: a choice is written 'A\|B' here; it is a list in a Structure"):
        given(' ["a|b", "c"] ')
    for text in ("yes|no", "[1, 2]|[3]", "[1, 2]", "[]", '"a"', '["a", 1]', "[" * 9999, "[0|1]"):
        assert given(text) == text.split("|")


def test_without_xgrammar_a_structure_is_refused_and_says_what_to_install(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "xgrammar", None)
    with pytest.raises(DeepInferError, match=r"needs the package xgrammar(?s:.*)pip install 'xgrammar>=0"):
        GrammarCompiler(tokenizer, WIDTH, [1]).compile(Structure("regex", "a"))


def test_without_its_distribution_it_is_not_installed(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", absent)
    with pytest.raises(DeepInferError, match="needs the package xgrammar") as caught:
        GrammarCompiler(tokenizer, WIDTH, [1]).compile(Structure("regex", "a"))
    assert caught.value.cause == "it is not installed"


@pytest.mark.parametrize(
    ("version", "why"),
    [("0.2.2", "older"), ("0.1.34", "older"), ("0.2.8.post1", "older"), ("0.3.0", "newer"), ("1.0.0rc2", "newer")],
)
def test_an_unfit_xgrammar_is_refused_and_not_imported(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, version: str, why: str
) -> None:
    """Vendors' images have others, of which nothing is known."""
    monkeypatch.setattr("importlib.metadata.version", lambda name: version)
    monkeypatch.setattr("importlib.import_module", lambda name: pytest.fail(f"{name} was imported"))
    with pytest.raises(DeepInferError, match=rf"needs xgrammar >=0\.2\.9,<0\.3, and {version} is here") as caught:
        GrammarCompiler(tokenizer, WIDTH, [1]).compile(Structure("regex", "a"))
    assert why in caught.value.cause
    assert "pip install 'xgrammar>=0.2.9,<0.3'" in caught.value.next_step and "PYTHONPATH" in caught.value.next_step


OLDER_TORCH = """
import os, torch
if hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
    del torch.Tensor.__dlpack_c_exchange_api__
from deepinfer.sampling import Structure
from deepinfer.structured_output import GrammarCompiler
class Letters:
    special_ids = frozenset({0})
    def bytes_of(self, token):
        return bytes([token]) if token < 128 else b""
matcher = GrammarCompiler(Letters(), 128, [0]).compile(Structure("regex", "a")).matcher()
print(matcher.fill().tolist(), os.environ["TVM_FFI_DISABLE_TORCH_C_DLPACK"], os.path.exists("cache"))
"""


def test_an_older_torch_gets_its_masks_without_an_extension(run_python: Any) -> None:
    pytest.importorskip("xgrammar", reason="xgrammar is absent: structured output cannot be tried")
    done = run_python("-c", OLDER_TORCH, TVM_FFI_CACHE_DIR="cache")
    assert done.stdout == "[0, 0, 0, 2] 1 False\n", done.stderr


def test_xgrammar_is_imported_at_the_first_structure_and_not_before(run_python: Any) -> None:
    done = run_python("-c", "import sys, deepinfer.structured_output; print('xgrammar' in sys.modules)")
    assert done.stdout == "False\n", done.stderr


def test_a_grammar_whose_tokens_take_too_long_is_told_as_such(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = compiler.compile(Structure("regex", "[ab]{3}")).matcher()
    monkeypatch.setattr("deepinfer.structured_output.compiler.SLOWEST_STEP", -1.0)
    with pytest.raises(ValueError, match="regular expression cannot be taken: a single token of this grammar takes"):
        compiler.compile(Structure("regex", "[ab]{3}"))
    assert not allowed(slow) and slow.problem.startswith("structure: a single token of this grammar takes more than")
    assert not slow.accept(100)
