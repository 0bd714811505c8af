"""Command line of the step's benchmark."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.arguments import count, counts
from benchmarks.ops.facts import ROOT
from benchmarks.step import layers, run, table
from deepinfer.command_line import Parser, exit_code
from deepinfer.config import ModelConfig, parse_config, read_config
from deepinfer.errors import DeepInferError, UsageError
from deepinfer.loading.tiny import tiny_config

MOST_DRY = 2**30
"""Bytes of weights, without n-gram tables."""
EXAMPLES = """examples:
  python -m benchmarks.step --dry-run                          the tiny model on a CPU: whether all of it works
  python -m benchmarks.step --rows 1,8,64 --chunk 4096         the real widths, as many layers as fit the GPU
  python -m benchmarks.step --layers 8 --context 32768         with so much context that candidate blocks limit
  python -m benchmarks.step --layers 8 --gemm deep_gemm        with DeepGEMM's FP8 products
  python -m benchmarks.step --model DIR                        the widths of DIR/config.json; its weights are not read
Run it from the project's root. Figures are in OUT/results.json and OUT/table.md after each forward."""


def main(argv: Sequence[str]) -> int:
    """Measure, print the table, and return the exit code."""
    parser = _parser()
    try:
        given = parser.parse_args(argv)
    except SystemExit as done:  # --help
        return int(done.code or 0)
    if not Path("benchmarks/step").resolve().is_relative_to(ROOT):
        raise UsageError("this is not the project's root", next_step=f"cd {ROOT}")
    if not given.dry_run and not torch.cuda.is_available():
        raise DeepInferError(
            "PyTorch sees no GPU", next_step="python -m benchmarks.step --dry-run, or a machine with a GPU"
        )
    config = _config(given)
    order = _order(given, config)

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    found = run.run(config, order, _out(given), say, list(argv))
    print(json.dumps(found) if given.json else table.markdown(found))
    if given.dry_run:
        say("dry run, of a tiny model on a CPU: all of it works, and the times mean nothing")
    return 0


def _config(given: argparse.Namespace) -> ModelConfig:
    if given.model is None:
        return parse_config(tiny_config()) if given.dry_run else layers.real_model()
    config = read_config(given.model)
    if given.dry_run and layers.weight_bytes(config, 1) > MOST_DRY:
        raise UsageError(
            f"the model of {given.model} is too large for a dry run, which computes all of it on the CPU",
            next_step="leave --model out, or name a folder that `deepinfer tiny` wrote",
        )
    return config


def _order(given: argparse.Namespace, config: ModelConfig) -> run.Order:
    """What is asked for; dry, of everything not given a little."""
    dry = given.dry_run
    least = layers.least_layers(config)
    order = run.Order(
        device="cpu" if dry else "cuda",
        rows=given.rows or ((1, 3) if dry else (1, 8, 64)),
        chunk=given.chunk or (128 if dry else 4096),
        context=given.context or (520 if dry else 4096),
        engram_rows=given.engram_rows or (1000 if dry else 1_000_000),
        layers=given.layers or (least if dry else None),
        samples=1 if dry else given.samples,
        gemm=given.gemm,
    )
    if order.context + order.chunk > config.max_positions:
        raise UsageError(
            f"--context {order.context} and --chunk {order.chunk} are more than the {config.max_positions} tokens that "
            "the model takes",
            next_step="ask for less of one of them",
        )
    return order


def _out(given: argparse.Namespace) -> Path | None:
    """A dry run has no figures that anybody would look for."""
    return given.out or (None if given.dry_run else ROOT / "benchmarks" / "results" / "step")


def _parser() -> Parser:
    parser = Parser(
        prog="python -m benchmarks.step",
        description="Measure each kernel of a decode step and of a chunk of prefill, beside its floor.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model", type=Path, metavar="DIR", help="a folder with config.json (default: DeepSeek-V4.1-Flash)")
    add("--layers", type=count, metavar="N", help="so many layers, of every kind one at least (default: what fits)")
    add("--rows", type=counts, metavar="N,N", help="sequences of the decode steps (default: 1,8,64)")
    add("--chunk", type=count, metavar="N", help="rows of the chunk of prefill (default: 4096)")
    add("--context", type=count, metavar="N", help="tokens that are in the caches before (default: 4096)")
    add("--engram-rows", type=count, metavar="N", help="rows of each n-gram table (default: 1000000)")
    add("--gemm", choices=("exact", "deep_gemm"), default="exact", help="products with quantised weights (exact)")
    add("--samples", type=count, default=20, metavar="N", help="how often each time is taken (default: 20)")
    add(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder for results (default: benchmarks/results/step; of a dry run: none)",
    )
    add("--dry-run", action="store_true", help="few rows of the tiny model on a CPU; times mean nothing")
    add("--json", action="store_true", help="print JSON alone on stdout")
    return parser


if __name__ == "__main__":
    sys.exit(exit_code(lambda: main(sys.argv[1:])))
