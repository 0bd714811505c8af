"""`deepinfer bench`: how fast the engine answers, on prompts of random tokens."""

from __future__ import annotations

import argparse
import itertools
import json
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from deepinfer.cli.model_options import add_model_arguments, open_llm
from deepinfer.cli.progress import Progress
from deepinfer.engine.sequence import Request
from deepinfer.engine.timing import Stopwatch, Summary
from deepinfer.errors import RequestFailed, UsageError
from deepinfer.sampling import SamplingParams
from deepinfer.streams import need_stdout

if TYPE_CHECKING:
    from deepinfer.engine.llm import LLM

HELP = "time the engine: latency of one batch, or throughput of many requests (--json for either)"

EXAMPLES = """\
examples:
  deepinfer bench latency --model DIR --batch-size 1 --input-len 1024 --output-len 64
  deepinfer bench throughput --model DIR --num-prompts 128 --input-len 1024 --output-len 64
  deepinfer bench throughput --model DIR --load-format dummy --engram-rows 100000 --json

Prompts are random tokens, different each time, so that no cached prefix helps; every output has its full length.
TTFT: from a request's arrival to its first token. TPOT: time per token after the first, of each request. ITL: between
a token and the next. The summary goes to stdout.
"""
_SPECIAL = 3
"""Token ids below it begin, end and pad a text."""
_HIGHEST = 2**31 - 1
AT_ONCE, TOKENS_AT_ONCE = 10_000, 2**26
"""Requests that may be under way together, and tokens of their prompts: all of them are made before the first runs,
and so many take seconds.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's two kinds and their options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    kinds = parser.add_subparsers(dest="kind", metavar="latency|throughput", required=True)
    latency = kinds.add_parser("latency", help="the same batch again and again", description="Time one batch.")
    latency.add_argument("--batch-size", type=_count, default=1, metavar="N", help="requests at once (default: 1)")
    latency.add_argument("--iterations", type=_count, default=5, metavar="N", help="times it is measured (default: 5)")
    throughput = kinds.add_parser("throughput", help="many requests at once", description="Time many requests.")
    throughput.add_argument("--num-prompts", type=_count, default=64, metavar="N", help="requests (default: 64)")
    throughput.add_argument("--max-concurrency", type=_count, metavar="N",
                            help=f"requests under way at once, at most {AT_ONCE} (default: all)")  # fmt: skip
    for kind in (latency, throughput):
        kind.add_argument("--input-len", type=_count, default=128, metavar="N", help="tokens a prompt (default: 128)")
        kind.add_argument("--output-len", type=_count, default=32, metavar="N", help="tokens an output (default: 32)")
        kind.add_argument("--warmups", type=_warmups, default=1, metavar="N",
                          help="batches, or requests, before what is measured (default: 1)")  # fmt: skip
        kind.add_argument("--temperature", type=float, default=1.0, metavar="T", help="0 is greedy (default: 1)")
        kind.add_argument("--seed", type=int, default=0, metavar="S", help="of prompts and sampling (default: 0)")
        kind.add_argument("--json", action="store_true", help="print the summary as JSON, alone on stdout")
        add_model_arguments(kind)


def run(args: argparse.Namespace) -> int:
    """Measure, and print the summary. 0; RequestFailed where a request failed."""
    need_stdout()
    _check_sizes(args)
    try:
        SamplingParams(temperature=args.temperature, seed=args.seed, max_tokens=args.output_len)
    except (TypeError, ValueError) as problem:
        raise UsageError(f"the options cannot be taken: {problem}", next_step="correct this option") from problem
    llm = open_llm(args)
    _check_lengths(args, llm)
    requests = _requests(args, llm)
    batches: list[float] = []
    summary = _latency(args, llm, requests, batches) if args.kind == "latency" else _throughput(args, llm, requests)
    report = _report(args, llm, summary, batches)
    print(json.dumps(report, indent=2) if args.json else _as_text(report, summary))
    if summary.failed:
        raise RequestFailed(f"{summary.failed} requests failed", next_step="`deepinfer ask` with this model says why")
    return 0


def _latency(args: argparse.Namespace, llm: LLM, requests: Iterator[Request], batches: list[float]) -> Summary:
    """All batches together; of each the seconds are added to `batches`."""
    watches = []
    total = args.warmups + args.iterations
    with Progress("batches", total, shown=not args.quiet) as bar:
        for _ in range(total):
            watch = Stopwatch()
            for _ in llm.stream([next(requests) for _ in range(args.batch_size)], refuse=False, watch=watch):
                pass
            watches.append(watch)
            bar.advance()
    measured = watches[args.warmups :]
    batches += [watch.summary().seconds for watch in measured]
    return Summary.of(
        [one for watch in measured for one in watch.times()],
        failed=sum(watch.failed for watch in measured),
        seconds=sum(batches),
    )


def _throughput(args: argparse.Namespace, llm: LLM, requests: Iterator[Request]) -> Summary:
    with Progress("requests", args.num_prompts, shown=not args.quiet) as bar:
        for _ in llm.stream(itertools.islice(requests, args.warmups), refuse=False):
            pass
        watch = Stopwatch()
        # They are made beforehand, not while it is measured, but for more than there is room for.
        limit = args.max_concurrency or args.num_prompts
        ready = list(itertools.islice(requests, min(args.num_prompts, AT_ONCE, TOKENS_AT_ONCE // args.input_len)))
        rest = itertools.islice(requests, args.num_prompts - len(ready))
        for output in llm.stream(itertools.chain(ready, rest), in_flight=limit, refuse=False, watch=watch):
            if output.finished:
                bar.advance()
    return watch.summary()


def _requests(args: argparse.Namespace, llm: LLM) -> Iterator[Request]:
    """Requests without end, each with other tokens."""
    chance = random.Random(args.seed)
    ids = [one for one in range(_SPECIAL, llm.config.vocab_size) if one != llm.config.image_token_id]
    number = 0
    while True:
        prompt = chance.choices(ids, k=args.input_len)
        params = SamplingParams(
            temperature=args.temperature,
            seed=(args.seed + number + 2**63) % 2**64 - 2**63,
            max_tokens=args.output_len,
            ignore_eos=True,
        )
        yield Request(prompt, params)
        number += 1


def _check_sizes(args: argparse.Namespace) -> None:
    """UsageError: more would be under way at once than is reasonable."""
    if args.kind == "latency":
        flag, at_once, step = "--batch-size", args.batch_size, "give a lower one"
    else:
        flag, step = "--max-concurrency" if args.max_concurrency else "--num-prompts", "give a lower --max-concurrency"
        at_once = min(args.num_prompts, args.max_concurrency or args.num_prompts)
    if at_once > AT_ONCE:
        raise UsageError(f"{flag} has {at_once} requests under way at once, and {AT_ONCE} are the most", next_step=step)
    if at_once * args.input_len > TOKENS_AT_ONCE:
        raise UsageError(
            f"{flag} has {at_once} prompts of {args.input_len} tokens under way at once, and {TOKENS_AT_ONCE} tokens "
            "are the most",
            next_step=f"{step}, or a lower --input-len",
        )


def _check_lengths(args: argparse.Namespace, llm: LLM) -> None:
    if args.input_len + args.output_len > llm.max_model_len:
        cause, more = llm.engine.limits.of_length()
        raise UsageError(
            f"--input-len {args.input_len} and --output-len {args.output_len} together pass the "
            f"{llm.max_model_len} tokens of prompt and output",
            cause=cause,
            next_step=("shorten one of them", *((", or ", *more) if more else ())),
        )


def _report(args: argparse.Namespace, llm: LLM, summary: Summary, batches: list[float]) -> dict[str, Any]:
    names = ("input_len", "output_len", "batch_size", "iterations", "num_prompts", "max_concurrency", "temperature")
    return {
        "kind": args.kind,
        "model": str(args.model),
        "device": _name(llm),
        "backend": llm.backend,
        "gemm": llm.gemm,
        "options": {name: getattr(args, name) for name in names if getattr(args, name, None) is not None},
        "batch_seconds": batches,
        **summary.to_json(),
    }


def _name(llm: LLM) -> str:
    import torch

    return torch.cuda.get_device_name(llm.device) if llm.device.type == "cuda" else "CPU"


def _as_text(report: dict[str, Any], summary: Summary) -> str:
    options = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in report["options"].items())
    lines = [
        f"{report['kind']} of {report['model']} on {report['device']}, {report['backend']} kernels"
        + (f", {report['gemm']} products" if report["gemm"] != "exact" else ""),
        options,
        summary.as_text(),
    ]
    if report["batch_seconds"]:
        lines.append("seconds a batch: " + ", ".join(f"{seconds:.3f}" for seconds in report["batch_seconds"]))
    return "\n".join(lines)


def _count(text: str) -> int:
    return _whole(text, 1)


def _warmups(text: str) -> int:
    return _whole(text, 0)


def _whole(text: str, lowest: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = lowest - 1
    if value < lowest:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {lowest}")
    if value > _HIGHEST:
        raise argparse.ArgumentTypeError(f"{text!r} is more than {_HIGHEST}")
    return value
