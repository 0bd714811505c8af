"""`deepinfer ask`: continue one prompt, and print the text as it comes."""

from __future__ import annotations

import argparse
import json
import time
from typing import TYPE_CHECKING

from deepinfer.cli.model_options import add_model_arguments, open_llm, tell, write_utf8
from deepinfer.cli.prompt_text import prompt_of
from deepinfer.cli.records import failures, record
from deepinfer.cli.sampling_options import add_sampling_arguments, params_of_options, told
from deepinfer.command_line import flag
from deepinfer.engine.sequence import Request
from deepinfer.errors import CheckpointError, DeepInferError, InputError, RequestFailed, spelled
from deepinfer.folders import is_there
from deepinfer.streams import need_stdout

if TYPE_CHECKING:
    from deepinfer.engine.llm import LLM
    from deepinfer.engine.outputs import Completion, RequestOutput
    from deepinfer.sampling import SamplingParams

HELP = "continue a prompt, and print the text as it comes"

EXAMPLES = """\
examples:
  deepinfer tiny tiny-model
  deepinfer ask --model tiny-model --max-tokens 12 --temperature 0 "The quick brown fox"
  deepinfer ask --model DIR --file prompt.txt
  deepinfer ask --model DIR < prompt.txt

The text alone goes to stdout, everything else to stderr. Prompts are UTF-8. Exit codes: 0 done; 1 usage; 2 the prompt
or the checkpoint cannot be taken; 4 this machine cannot; 5 the request failed.
"""
DEFAULT_TOKENS = 128


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    parser.add_argument("prompt", nargs="*", metavar="PROMPT", help='the text to continue; "-" or nothing: from stdin')
    parser.add_argument("--file", metavar="FILE", help='a UTF-8 file with the prompt; "-": stdin')
    parser.add_argument("--as-it-is", action="store_true", help="take a prompt that looks damaged, as ???? does")
    parser.add_argument("--json", action="store_true", help="print the result as JSON, alone on stdout, at its end")
    add_sampling_arguments(parser, max_tokens=DEFAULT_TOKENS, several=False)
    add_model_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Answer it. 0; RequestFailed where the request ended in an error of its own."""
    need_stdout()
    params = params_of_options(args)
    prompt = prompt_of(args.prompt, args.file, as_it_is=args.as_it_is)
    _need_tokenizer(args)
    write_utf8()
    llm = open_llm(args)
    started = time.perf_counter()
    try:
        output = _answer(llm, Request(prompt, params), shown=not args.json)
    except DeepInferError:  # some are ValueErrors too
        raise
    except (TypeError, ValueError) as problem:
        raise told(problem, "the prompt") from problem
    if args.json:
        print(json.dumps(record(output), ensure_ascii=False, indent=2))
    if failed := failures(output):
        raise RequestFailed(
            f"the request failed: {failed[0]}", next_step="ask again; if it fails again, compare the checkpoint's files"
        )
    done, seconds = output.outputs[0], time.perf_counter() - started
    tell(args, f"{len(output.prompt_token_ids)} + {len(done.token_ids)} tokens in {seconds:.2f} s "
         f"({len(done.token_ids) / seconds:.1f} tokens/s), ended by {_end(done, params, llm)}")  # fmt: skip
    return 0


def _need_tokenizer(args: argparse.Namespace) -> None:
    """CheckpointError: dummy weights would be made for a folder that has nothing to read a text with."""
    dummy = args.load_format == "dummy" and is_there(args.model / "config.json")
    if dummy and not is_there(args.model / "tokenizer.json"):
        raise CheckpointError(
            f"ask takes and gives text, and {args.model} has no tokenizer.json",
            cause="dummy weights are made from config.json alone, a text is read with the tokenizer's files",
            next_step="put tokenizer.json and tokenizer_config.json there too; `deepinfer bench` goes without them",
        )


def _answer(llm: LLM, request: Request, *, shown: bool) -> RequestOutput:
    """The request's last output. Its text goes to stdout as it comes if `shown`, and a line end after it."""
    written = 0
    try:
        for output in llm.stream([request]):
            if (problem := output.outputs[0].problem) is not None:  # of a grammar, found when it was compiled
                raise told(problem, "the prompt") if isinstance(problem, InputError) else problem
            text = output.outputs[0].text
            if shown and len(text) > written:
                print(text[written:], end="", flush=True)
                written = len(text)
    finally:
        if written:
            print(flush=True)
    if shown and not written:
        print(flush=True)
    return output


def _end(done: Completion, params: SamplingParams, llm: LLM) -> str:
    if done.finish_reason == "length":
        if len(done.token_ids) >= params.max_tokens:
            return "--max-tokens"
        cause, _ = llm.engine.limits.of_length()
        return f"the limit of {llm.max_model_len} tokens of prompt and output: {spelled(cause, flag)}"
    if done.finish_reason != "stop" or done.stop is None:
        return "the model" if done.finish_reason == "stop" else str(done.finish_reason)
    return f"the stop {'text' if isinstance(done.stop, str) else 'token'} {done.stop!r}"
