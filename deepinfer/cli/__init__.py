"""The `deepinfer` command: a table of verbs, each a module that is imported only when it is called.

A verb's module has HELP (one line), `add_arguments(parser)` and `run(args) -> int`, the exit code.
Exit codes: 0 done; 1 usage, a name under which nothing can be written among it; 2 a file that is read is not what it
should be; 4 this machine cannot; 5 some of what was asked failed; 130 interrupted, 143 told to end.
DEEPINFER_DEBUG=1 shows tracebacks.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import deepinfer
from deepinfer import envs, packages
from deepinfer.command_line import Parser, exit_code
from deepinfer.errors import UsageError


class VerbModule(Protocol):
    """What a verb's module offers."""

    HELP: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


@dataclass(frozen=True)
class Verb:
    """A row of the table: `summary` is what `deepinfer --help` says without importing the module.

    `reports_variables`: the verb itself reports bad values of variables; before any other, they are an error.
    `needs`: packages without which it cannot be imported, told before torch complains of what it lacks itself.
    """

    name: str
    module: str
    summary: str
    reports_variables: bool = False
    needs: tuple[str, ...] = ()

    def load(self) -> VerbModule:
        return cast(VerbModule, importlib.import_module(self.module))


_ENGINE = ("torch", "numpy")
VERBS = (
    Verb("env", "deepinfer.cli.env", "show versions, GPUs, optional parts and variables", reports_variables=True),
    Verb("tiny", "deepinfer.cli.tiny", "write a small model in the real checkpoint format", needs=_ENGINE),
    Verb("ask", "deepinfer.cli.ask", "continue a prompt, and print the text as it comes", needs=_ENGINE),
    Verb("generate", "deepinfer.cli.generate", "answer requests of a JSON Lines file", needs=_ENGINE),
    Verb("bench", "deepinfer.cli.bench", "time the engine", needs=_ENGINE),
    Verb("probe", "deepinfer.cli.probe", "check that Triton compiles right code for Hopper"),
    Verb("warm", "deepinfer.cli.warm", "compile the kernels of a run now, without a GPU"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    return exit_code(lambda: _dispatch(words))


def _dispatch(arguments: list[str]) -> int:
    parser = _parser()
    if not arguments:
        raise UsageError("no verb was given", next_step="deepinfer --help")
    name = arguments[0]
    verb = next((verb for verb in VERBS if verb.name == name), None)
    if verb is None and not name.startswith("-"):
        near = difflib.get_close_matches(name, [verb.name for verb in VERBS], n=1)
        hint = f"did you mean `deepinfer {near[0]}`?" if near else "deepinfer --help lists the verbs"
        raise UsageError(f"there is no verb {name!r}", next_step=hint)
    if verb is None:
        try:
            parser.parse_args(arguments)
        except SystemExit as done:  # --help and --version
            return int(done.code or 0)
        raise UsageError("no verb was given", next_step="deepinfer --help")
    return _run(verb, arguments[1:])


def _parser() -> argparse.ArgumentParser:
    verbs = "\n".join(f"  {verb.name:<10}{verb.summary}" for verb in VERBS)
    parser = Parser(
        prog="deepinfer",
        usage="deepinfer VERB [OPTIONS]",
        description="DeepInfer for Hopper GPUs.",
        epilog=f"verbs:\n{verbs}\n\n`deepinfer VERB --help` tells more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"deepinfer {deepinfer.__version__}")
    return parser


def _run(verb: Verb, arguments: list[str]) -> int:
    packages.check(*verb.needs, what=f"`deepinfer {verb.name}`")
    module = verb.load()
    parser = Parser(prog=f"deepinfer {verb.name}", description=module.HELP)
    module.add_arguments(parser)
    try:
        parsed = parser.parse_args(arguments)
    except SystemExit as done:  # --help
        return int(done.code or 0)
    for problem in [] if verb.reports_variables else envs.problems():
        raise problem
    return module.run(parsed)
