"""`deepinfer generate`: answer a file of requests, one line of JSON each."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from deepinfer import interrupts
from deepinfer.cli.fingerprint import of_options
from deepinfer.cli.jsonl_requests import LineRequest, parse_requests
from deepinfer.cli.jsonl_results import Results, StdoutResults, open_results
from deepinfer.cli.model_options import add_model_arguments, open_llm, tell, write_utf8
from deepinfer.cli.progress import Progress
from deepinfer.cli.prompt_text import STDIN, read_bytes
from deepinfer.cli.records import failures, record
from deepinfer.cli.sampling_options import add_sampling_arguments, given_options, params_of_options
from deepinfer.engine.sequence import Request
from deepinfer.engine.timing import Stopwatch, Summary
from deepinfer.errors import RequestFailed, UsageError
from deepinfer.streams import need_stdout

HELP = "answer requests of a JSON Lines file; goes on where it was stopped"

EXAMPLES = """\
a line of the input:
  {"id": "a", "prompt": "The quick brown fox", "max_tokens": 8, "temperature": 0}
"prompt" is a text or a list of token ids; "id" is by default "line-N"; every other field is one of the sampling
options (with _ for -) and goes before the command line's. A line may also be the prompt alone: "The quick brown fox".

a line of the output, written as soon as its request is done:
  {"id": "a", "key": "...", "model": "...", "prompt_tokens": 5, "cached_tokens": 0,
   "outputs": [{"text": "...", "token_ids": [...], "finish_reason": "length"}]}

examples:
  deepinfer generate --model tiny-model --input in.jsonl --output out.jsonl
  deepinfer generate --model tiny-model < in.jsonl > out.jsonl

The same command again does what is missing in the output: a line half written is made again, results of other
requests or of another model are refused. A request that fails has "finish_reason": "error" and does not stop the
others; --retry-failed has it tried again. Exit codes: 0 done; 1 usage; 2 the input, the output's results or the
checkpoint cannot be taken; 4 this machine cannot; 5 some requests failed.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    parser.add_argument("--input", default=STDIN, metavar="FILE", help="requests (default: stdin)")
    parser.add_argument("--output", default=STDIN, metavar="FILE",
                        help="results; those that are there already are kept (default: stdout)")  # fmt: skip
    parser.add_argument("--as-it-is", action="store_true", help="take prompts that look damaged, as ???? does")
    parser.add_argument("--json", action="store_true", help="with --output FILE: print the summary as JSON on stdout")
    parser.add_argument("--retry-failed", action="store_true",
                        help="with --output FILE: make results anew that are errors there")  # fmt: skip
    add_sampling_arguments(parser, max_tokens=16, several=True)
    add_model_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Answer them. 0; RequestFailed where some ended in an error of their own."""
    if args.json and args.output == STDIN:
        raise UsageError("--json needs --output FILE: results go to stdout", next_step="name a file for the results")
    if args.retry_failed and args.output == STDIN:
        raise UsageError(
            "--retry-failed needs --output FILE: without one there are no results to go on from",
            next_step="name the file with the results that failed, or leave --retry-failed out",
        )
    if args.output != STDIN and args.input != STDIN and _same(args.input, args.output):
        raise UsageError(f"{args.input} is both input and output", next_step="name another --output")
    if args.input == STDIN and sys.stdin is not None and sys.stdin.isatty():
        raise UsageError("no requests were given", next_step="give --input FILE, or the requests on stdin")
    if args.output == STDIN or args.json:
        need_stdout()
    params_of_options(args)  # a bad option is an error of the command line, not of every line
    where = "stdin" if args.input == STDIN else args.input
    requests = parse_requests(read_bytes(args.input), where, given_options(args), as_it_is=args.as_it_is)
    write_utf8()
    model = of_options(args)
    with _results(args, requests, model) as results:
        left = [one for one in requests if one.id not in results.done]
        if results.done:
            failed = f", {len(results.failed)} of them with an error" if results.failed else ""
            tell(args, f"{args.output}: {len(results.done)} of {len(requests)} requests are answered already{failed}")
        try:
            with interrupts.termination_too():
                summary = _answer(args, left, model, results)
        except KeyboardInterrupt:
            if args.output == STDIN:
                raise
            raise KeyboardInterrupt("stopped: the same command goes on where it was") from None
    if args.json:
        print(json.dumps(summary.to_json(), indent=2))
    if left:
        tell(args, summary.as_text())
    if count := summary.failed + len(results.failed):
        raise RequestFailed(
            f"{count} of {len(requests)} requests failed",
            cause="their lines in the output have the reason",
            next_step="correct what they name, and "
            + ("ask for these again" if args.output == STDIN else "run the same command again with --retry-failed"),
        )
    return 0


def _same(one: str, other: str) -> bool:
    try:
        return Path(one).samefile(other)
    except (OSError, ValueError):  # told when it is opened
        return False


@contextlib.contextmanager
def _results(args: argparse.Namespace, requests: list[LineRequest], model: str) -> Iterator[Results]:
    if args.output == STDIN:
        yield StdoutResults()
        return
    with open_results(Path(args.output), requests, model=model, retry_failed=args.retry_failed) as results:
        yield results


def _answer(args: argparse.Namespace, left: list[LineRequest], model: str, results: Results) -> Summary:
    """Run requests and write each as it is done. model: its fingerprint."""
    watch = Stopwatch()
    if not left:
        return watch.summary()
    llm = open_llm(args)
    by_id = {one.id: one for one in left}
    asked = (Request(one.prompt, one.params, one.id) for one in left)
    with Progress("requests", len(left), shown=not args.quiet) as bar:
        for output in llm.stream(asked, refuse=False, watch=watch):
            if not output.finished:
                continue
            key = by_id[output.request_id].key
            results.write({"id": output.request_id, "key": key, "model": model, **record(output)})
            if failed := failures(output):
                bar.say(f"{output.request_id} (line {by_id[output.request_id].line}) failed: {failed[0]}")
            bar.advance()
    return watch.summary()
