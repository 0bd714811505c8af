"""`python -m deepinfer.exactness --model DIR`: the engine's errors against the oracle, layer by layer."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deepinfer.command_line import Parser, exit_code
from deepinfer.errors import OptionError, UsageError

TOKENS = 700
_EXAMPLE = """examples:
  deepinfer tiny tiny-model && python -m deepinfer.exactness --model tiny-model
  python -m deepinfer.exactness --model tiny-model --device cuda --chunk 64 --decoded 32 --json
  python -m deepinfer.exactness --model tiny-model --file prompt.txt
  python -m deepinfer.exactness --model tiny-model --device cuda --gemm deep_gemm

exit code 5: the engine is further off than noise explains (with --gemm deep_gemm that is told, and no fault).
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print, and return the exit code."""
    return exit_code(lambda: _run(_options(arguments)))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="python -m deepinfer.exactness",
        description="Run a prompt through the engine and through the oracle (plain PyTorch on the CPU, float64), and "
        "print how far apart they are, layer by layer: with the oracle's choices of experts and entries, and with the "
        "engine's own.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="folder of a small checkpoint")
    parser.add_argument("--load-format", choices=("auto", "dummy"), default="auto", help="dummy: seeded weights")
    parser.add_argument("--device", help="where the engine runs (default: a GPU where the driver sees one)")
    parser.add_argument("--gemm", choices=("exact", "deep_gemm"), default="exact",
                        help="deep_gemm: how far DeepGEMM's FP8 products are off, on a Hopper GPU")  # fmt: skip
    given = parser.add_mutually_exclusive_group()
    given.add_argument("--prompt", metavar="TEXT", help="default: random tokens, the same each time")
    given.add_argument("--file", metavar="FILE", help="a UTF-8 file with the prompt; - is stdin")
    parser.add_argument("--as-it-is", action="store_true", help="take a prompt that looks damaged, as ???? does")
    parser.add_argument("--tokens", type=int, metavar="N", help=f"use the first N tokens (default: {TOKENS})")
    parser.add_argument("--chunk", type=int, default=0, metavar="N",
                        help="prefill in pieces of N tokens (default: 0, the whole at once)")  # fmt: skip
    parser.add_argument("--decoded", type=int, default=0, metavar="N",
                        help="decode the last N tokens one by one (default: 0)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    if options.tokens is not None and options.tokens < 1:
        raise UsageError(f"--tokens must be at least 1, not {options.tokens}", next_step="give a larger number")
    if options.chunk < 0 or options.decoded < 0:
        raise UsageError("--chunk and --decoded must not be negative", next_step="give 0 or more")
    return options


def _run(options: argparse.Namespace) -> int:
    from deepinfer.config import read_config
    from deepinfer.engine.placement import device_of
    from deepinfer.exactness import compare, open_subject, report

    try:
        device = str(device_of(options.device))
    except OptionError as problem:
        raise UsageError(problem.pieces, next_step="name a device that is there, or leave it out") from problem
    config = read_config(options.model)
    tokens = _prompt(options, config.vocab_size, config.max_positions)
    if options.decoded >= len(tokens):
        raise UsageError(
            f"--decoded {options.decoded} leaves none of the {len(tokens)} tokens to prefill",
            next_step=f"give at most {len(tokens) - 1}",
        )
    subject = open_subject(options.model, device=device, load_format=options.load_format, gemm=options.gemm)
    found = compare(subject, tokens, chunk=options.chunk, decoded=options.decoded)
    facts: dict[str, Any] = report.facts(found, subject, device)
    print(report.as_json(facts) if options.json else report.table(facts))
    return 5 if facts["faults"] else 0


def _prompt(options: argparse.Namespace, vocab_size: int, most: int) -> list[int]:
    """At most `most` tokens.

    Raises:
        UsageError: they are more.
    """
    from deepinfer.exactness import standard_prompt

    if options.prompt is None and options.file is None:
        return standard_prompt(vocab_size, _few(options.tokens or TOKENS, most))
    from deepinfer.cli.prompt_text import prompt_of
    from deepinfer.tokenizer import Tokenizer

    if not (options.model / "tokenizer.json").exists():
        raise UsageError(
            f"{options.model} has no tokenizer, which a text needs",
            next_step="leave --prompt and --file out: random tokens are taken then",
        )
    text = prompt_of([] if options.prompt is None else [options.prompt], options.file, as_it_is=options.as_it_is)
    tokens: list[int] = list(Tokenizer(options.model).encode(text))[: options.tokens]
    _few(len(tokens), most)
    return tokens


def _few(count: int, most: int) -> int:
    if count > most:
        raise UsageError(
            f"the prompt has {count} tokens, and the model takes {most}", next_step=f"--tokens {most}, or fewer"
        )
    return count


if __name__ == "__main__":
    sys.exit(main())
