"""The options that say which model is opened, where and how."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from deepinfer import native
from deepinfer.cli.progress import Progress
from deepinfer.errors import DeepInferError, OptionError, UsageError

if TYPE_CHECKING:
    from deepinfer.engine.llm import LLM


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add them."""
    group = parser.add_argument_group("model")
    add = group.add_argument
    add("--model", type=Path, required=True, metavar="DIR", help="folder of the checkpoint")
    add("--device", metavar="DEVICE", help="cuda, cuda:N or cpu (default: a GPU where the driver sees one)")
    add("--backend", choices=("triton", "reference"),
        help="where kernels come from (default: triton on a GPU, else reference)")  # fmt: skip
    add("--load-format", choices=("auto", "dummy"), default="auto",
        help="auto reads the weights; dummy makes seeded ones of the right formats from config.json")  # fmt: skip
    add("--engram-rows", type=int, metavar="N", help="keep so many rows of each n-gram table, for trials")
    add("--engram-device", choices=("cpu", "cuda"),
        help="where the n-gram tables are: cpu leaves them on the host (default: with the other weights)")  # fmt: skip
    add(
        "--max-model-len",
        type=int,
        metavar="N",
        help="tokens of prompt and output together (default: what model and memory allow)",
    )
    add("--max-num-seqs", type=int, default=256, metavar="N", help="completions that run at once (default: 256)")
    add(
        "--chunk-tokens",
        type=int,
        metavar="N",
        help="tokens of prompts that one step computes (default: 2048; on a CPU 512)",
    )
    add(
        "--blocks",
        type=int,
        metavar="N",
        help="cache blocks of 128 tokens, one of them for padding (default: what fits)",
    )
    add("--memory-fraction", type=float, default=0.9, metavar="F",
        help="of the GPU's memory, for weights and caches together (default: 0.9)")  # fmt: skip
    add("--truncation", choices=("off", "mask", "compact"), default="off",
        help="how prompts are shortened for the later layers (default: off, exact)")  # fmt: skip
    add("--gemm", choices=("exact", "deep_gemm"), default="exact",
        help="products with quantised weights: exact (default), or DeepGEMM's in FP8, on a Hopper GPU: faster, not "
        "exact")  # fmt: skip
    add("--quiet", action="store_true", help="no progress and no summary on stderr")


def open_llm(args: argparse.Namespace) -> LLM:
    """Open the model that the options name, with progress on stderr.

    Raises:
        UsageError: an option's value is not allowed.
        DeepInferError: the model cannot be opened.
    """
    from deepinfer.engine.llm import LLM

    if notice := native.notice():  # before there is a progress bar that it would tear
        tell(args, f"note: {notice}")
    with Progress("weights", None, shown=not args.quiet, bytes_=True) as bar, refused_as_usage():
        llm = LLM(
            args.model,
            device=args.device,
            backend=args.backend,
            load_format=args.load_format,
            engram_rows=args.engram_rows,
            engram_device=args.engram_device,
            max_model_len=args.max_model_len,
            max_num_seqs=args.max_num_seqs,
            chunk_tokens=args.chunk_tokens,
            blocks=args.blocks,
            memory_fraction=args.memory_fraction,
            truncation=args.truncation,
            gemm=args.gemm,
            progress=bar.reach,
        )
    if llm.gemm_notice:  # with --quiet too: it changes what is computed
        print(f"--gemm {llm.gemm}: {llm.gemm_notice}", file=sys.stderr, flush=True)
    return llm


@contextlib.contextmanager
def refused_as_usage() -> Iterator[None]:
    """Whatever value the engine refuses within is an option's: raise UsageError."""
    try:
        yield
    except DeepInferError:  # some are ValueErrors too
        raise
    except ValueError as problem:
        pieces = problem.pieces if isinstance(problem, OptionError) else (str(problem),)
        what = ("the options cannot be taken: ", *pieces)
        raise UsageError(what, next_step="correct this option") from problem


def tell(args: argparse.Namespace, text: str) -> None:
    """A line on stderr, unless --quiet."""
    if not args.quiet:
        print(text, file=sys.stderr, flush=True)


def write_utf8() -> None:
    """Let stdout take any text, whatever the locale says."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
