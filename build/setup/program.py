"""What reads the verbs' options: invoke's own program, made to say what is wrong in plain words.

One verb a command line: invoke would run `plan build` as two, the second with its defaults. Options of invoke itself
(`--dry`, `--echo` …) are unknown here: they change nothing in what the verbs do, and would seem to.
"""

from __future__ import annotations

import difflib
import inspect
import io
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from invoke.config import Config
from invoke.exceptions import Exit, ParseError
from invoke.parser.argument import Argument
from invoke.parser.context import ParserContext
from invoke.program import Program

REPOSITORY = Path(__file__).resolve().parent.parent.parent
if str(REPOSITORY) not in sys.path:
    sys.path.insert(0, str(REPOSITORY))

from build.errors import BuildError, UsageError, of_system  # noqa: E402
from build.setup import docker_engine  # noqa: E402
from build.setup.request import asks_json  # noqa: E402

ENGINE_VERBS = ("env", "tiny", "ask", "generate", "bench", "probe", "warm")
"""Those of `deepinfer`, known here too because an environment that only builds does not have it."""


class Verbs(Program):
    """The program behind `./run VERB`."""

    needs_engine = False
    """Whether Docker's engine has to answer before the verb runs."""
    as_json = False
    """Whether errors are printed on stdout as well, as JSON."""

    def create_config(self) -> None:
        """invoke's settings without those of the user and of the machine: no verb depends on them."""
        self.config = Config(lazy=True)

    def core_args(self) -> list[Argument]:
        """Invoke's own options, without letters but `-h`: a letter that a verb lacks is unknown, not invoke's."""
        return _without_letters(super().core_args())

    def task_args(self) -> list[Argument]:
        """As `core_args`, for the options that say where the verbs are."""
        return _without_letters(super().task_args())

    def parse_tasks(self) -> None:
        """Read the verb and its options, then start what it needs. A mistake is told on stderr, exit code 1."""
        try:
            super().parse_tasks()
            self._check()
            if self.needs_engine:
                docker_engine.ensure(may_install=os.environ.get("DEEPINFER_SETUP") == "1", stays=True)
        except ParseError as problem:
            raise self._told(self._explain(problem)) from None
        except BuildError as problem:
            raise self._told(problem) from None
        except OSError as problem:
            raise self._told(of_system(problem)) from None

    def print_task_help(self, name: str) -> None:
        """What a verb does, with its example and its options."""
        rows = self.parser.contexts[name].help_tuples()
        print(f"usage: ./run {name} [OPTIONS]\n")
        print(inspect.getdoc(self.collection[name]) or "")
        if rows:
            print("\noptions:")
            self.print_columns(rows)

    def _check(self) -> None:
        names = [context.name for context in self.tasks]
        if isinstance(asked := self.args.help.value, str) and asked not in self.parser.contexts:
            raise UsageError(
                self._unknown(asked, None, self.initial_context),
                next_step=_command(asked) or "./run --help lists what there is",
            )
        if len(names) > 1:
            raise UsageError(
                f"one verb at a time: {' and '.join(map(repr, names))} are two",
                next_step="run one after the other; nothing was done",
            )
        for name, argument in self.core_via_tasks.args.items():
            if argument.got_value and name != "help":
                raise UsageError(f"{names[0]} has no option --{name}", next_step=f"./run {names[0]} --help")

    def _explain(self, problem: ParseError) -> UsageError:
        context: ParserContext | None = problem.context
        verb = context.name if context is not None and context.name else None
        after = f"./run {verb} --help" if verb else "./run --help"
        if unknown := re.fullmatch(r"No idea what '(.*)' is!", str(problem), re.DOTALL):
            command = "" if verb else _command(unknown[1])
            step = command or f"{after} lists what there is"
            return UsageError(self._unknown(unknown[1], verb, context), next_step=step)
        if lacking := re.match(r"Flag <Argument: ([\w-]+)", str(problem)):
            if context is None or lacking[1] not in context.args:
                return UsageError(f"{verb} has no option --{lacking[1]}", next_step=after)
            return UsageError(f"--{lacking[1]} needs a value", next_step=f"{after} shows an example")
        return UsageError(str(problem), next_step=after)

    def _unknown(self, word: str, verb: str | None, context: ParserContext | None) -> str:
        shown = repr(word if len(word) <= 60 else f"{word[:57]}…")
        if verb is None or context is None:
            what, known = f"there is no verb {shown}", list(self.parser.contexts)
        elif word.startswith("-"):
            what, known = f"{verb} has no option {shown}", list(context.flags)
        else:
            return f"{verb} takes nothing but options, and {shown} is none"
        near = difflib.get_close_matches(word, known, n=1)
        return f"{what}; did you mean {near[0]!r}?" if near else what

    def _told(self, problem: BuildError) -> Exit:
        print(problem, file=sys.stderr)
        if self.as_json:
            print(json.dumps(problem.to_json(), indent=2))
        return Exit(code=problem.exit_code)


def _command(word: str) -> str:
    """What to type where a command, or a verb of the engine's, stands in the place of one of `./run`'s; else ''."""
    if word in ENGINE_VERBS:
        return f"commands of the engine go after --: ./run -- deepinfer {word} …"
    return f"commands go after --: ./run -- {word} …" if word in ("deepinfer", "python", "python3", "pytest") else ""


def _without_letters(arguments: list[Argument]) -> list[Argument]:
    for argument in arguments:
        if argument.name != "help":
            argument.names = tuple(name for name in argument.names if len(name) > 1)
    return arguments


def main(needs: str, words: Sequence[str]) -> int:
    """Run the verb of the command line; returns only when the system refused something outside of it.

    Args:
        needs: "with-engine" where the verb needs Docker's engine, else "alone".
        words: invoke's command line.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a table has characters that a terminal may not know
            stream.reconfigure(errors="replace")
    try:
        program = Verbs(name="./run", binary="./run", version="")
        program.needs_engine = needs == "with-engine"
        program.as_json = asks_json(words)
        program.run(["./run", *words])
        sys.stdout.flush()
    except OSError as problem:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # lest Python complain of the same once more when it ends
        told = of_system(problem)
        print(told, file=sys.stderr)
        return told.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
