"""How long steps of another request take while a grammar is compiled: `python -m benchmarks.grammars [--device cuda]`.

The text of one request is generated; after its first tokens another request comes, with a JSON schema that takes long
to compile for a made-up vocabulary of a real one's size. That is done in a thread beside the engine, as always, and for
comparison in the engine's own. The longest step has the prefill of the structured request in it too.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from benchmarks.arguments import count
from deepinfer import LLM, SamplingParams, Structure
from deepinfer.command_line import Parser, exit_code
from deepinfer.engine.sequence import Request
from deepinfer.errors import DeepInferError
from deepinfer.loading.tiny import write_tiny
from deepinfer.structured_output import Compilation, CompilePool, Grammar, GrammarCompiler
from deepinfer.structured_output.compiler import Kind

BEFORE = 20
"""Steps of the other request alone."""
Times = dict[str, float]


def main(argv: Sequence[str]) -> int:
    """Measure both ways, and print the figures; returns the exit code."""
    parser = Parser(prog="python -m benchmarks.grammars", description=__doc__)
    add = parser.add_argument
    add("--model", type=Path, metavar="DIR", help="a checkpoint (default: a tiny one is written)")
    add("--device", metavar="DEVICE", help="cpu, cuda or cuda:N (default: a GPU where there is one)")
    add("--properties", type=count, default=300, metavar="N", help="of the schema (default: 300)")
    add("--vocabulary", type=count, default=129_280, metavar="N", help="tokens, at least 256 (default: 129280)")
    add("--json", action="store_true", help="print JSON")
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        if given.model is None:
            given.model = Path(folder) / "tiny"
            write_tiny(given.model)
        found = {name: _measure(given, name) for name in ("nothing", "in the engine's thread", "in a thread beside it")}
    print(json.dumps(found, indent=1) if given.json else _table(found))
    return 0


def _measure(given: argparse.Namespace, way: str) -> Times:
    schema = {"type": "object", "properties": {f"p{one}": _text_of_at_most(one) for one in range(given.properties)}}
    structure = None if way == "nothing" else Structure("json", schema)
    with LLM(given.model, device=given.device, max_num_seqs=8) as llm:
        _generate(llm, None)  # kernels are compiled
        with _compiling(given.vocabulary, wait=way == "in the engine's thread"):
            return _generate(llm, structure)


def _text_of_at_most(number: int) -> dict[str, object]:
    """A schema like no other one's, so that nothing of it was compiled before."""
    return {"type": "string", "maxLength": 20 + number}


class Words:
    """A made-up tokenizer of a real one's size: bytes, and words with a blank, a quote or a bracket beside."""

    special_ids = frozenset({0})

    def __init__(self, size: int) -> None:
        chance = random.Random(0)
        found = dict.fromkeys(bytes([one]) for one in range(256))
        while len(found) < size:
            letters = chance.choices("etaoinshrdlucmfwypvbgkjqxz", weights=range(26, 0, -1), k=chance.randint(2, 10))
            before = chance.choice((" ", " ", "", "", '"', "["))
            behind = chance.choice(("", "", "", '"', '",', '":', "}"))
            found[f"{before}{''.join(letters)}{behind}".encode()] = None
        self._pieces = list(found)

    def bytes_of(self, token: int) -> bytes:
        """Of one token."""
        return self._pieces[token]


@contextmanager
def _compiling(vocabulary: int, *, wait: bool) -> Iterator[None]:
    """Grammars are compiled for a vocabulary of so many tokens too. wait: who asks for one waits until it is there."""
    compile_text, ask = GrammarCompiler.compile_text, CompilePool.compile
    large = GrammarCompiler(Words(vocabulary), vocabulary, [0])
    compile_text(large, "json", '{"type": "null"}')  # which reads the vocabulary

    def compile_both(compiler: GrammarCompiler, kind: Kind, text: str) -> Grammar:
        compile_text(large, kind, text)
        return compile_text(compiler, kind, text)

    def ask_and_wait(pool: CompilePool, structure: Structure) -> Compilation:
        found = ask(pool, structure)
        while wait and not found.done:
            pool.wait()
        return found

    with patch.multiple(GrammarCompiler, compile_text=compile_both), patch.multiple(CompilePool, compile=ask_and_wait):
        yield


def _generate(llm: LLM, structure: Structure | None) -> Times:
    """Seconds until the structured request had its token, and of the other one's steps meanwhile."""
    engine, gaps = llm.engine, list[float]()
    engine.add(Request(list(range(20, 40)), SamplingParams(temperature=0, max_tokens=10_000, ignore_eos=True)))
    for _ in range(BEFORE):
        engine.step()
    began = last = time.perf_counter()
    first, name = 0.0, ""
    if structure is not None:
        name = engine.add(Request([20, 21], SamplingParams(seed=1, max_tokens=1, structure=structure)))
    while len(gaps) < BEFORE or (name and not first):
        told = {one.request_id: one for one in engine.step()}
        now = time.perf_counter()
        gaps.append(now - last)
        last = now
        if name in told:
            if error := told[name].outputs[0].error:
                raise DeepInferError(f"the structured request failed: {error}", next_step="fewer --properties")
            first = now - began
    for one in list(engine._live):
        engine.drop(one)
    return {"first_token_s": first, "median_step_s": statistics.median(gaps), "longest_step_s": max(gaps)}


def _table(found: dict[str, Times]) -> str:
    lines = [
        "| compiled | first token of the structured request, s | another's median step, ms | its longest step, ms |",
        "|---|---|---|---|",
    ]
    for way, times in found.items():
        first, median, longest = times.values()
        lines.append(f"| {way} | {first:.2f} | {median * 1e3:.1f} | {longest * 1e3:.1f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(exit_code(lambda: main(sys.argv[1:])))
