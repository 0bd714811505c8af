"""The start of `./run`: sets up what the request needs, then becomes invoke or the user's command.

Started by the script `run` as a file, with a Python that may have nothing but its standard library.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

REPOSITORY = Path(__file__).resolve().parent.parent.parent
if str(REPOSITORY) not in sys.path:
    sys.path.insert(0, str(REPOSITORY))

from build.errors import BuildError, EnvironmentCannot, UsageError, of_system  # noqa: E402
from build.setup.request import USAGE, Request, asks_json, parse  # noqa: E402

COMMAND_NOT_FOUND = 127


def main(argv: Sequence[str]) -> int:
    """Do what the command line says. Returns only when nothing was started: help, or an error that was told."""
    _open_streams()
    try:
        _check_current_folder()
        request = parse(argv)
        if not request.verb:
            print(f"{USAGE}\nverbs:\n{verbs()}", flush=True)
            return 0
        if os.environ.get("DEEPINFER_PYTHON"):
            _go(request, *_given_interpreter(request))
        if request.offline_first:
            raise UsageError(
                "--offline before the verb goes with DEEPINFER_PYTHON, which is not set",
                next_step="set DEEPINFER_PYTHON to the Python that shall take the packs; for what the host target "
                "takes from a folder of packs: ./run build --image host --offline DIR",
            )
        _go(request, *_own_environment(request))
    except BuildError as problem:
        return _told(problem, argv)
    except BrokenPipeError:  # of `| head`, which has seen enough; Python would complain when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 128 + signal.SIGPIPE
    except OSError as problem:
        with contextlib.suppress(OSError):  # stdout itself may be what cannot be written
            _told(of_system(problem), argv)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return EnvironmentCannot.exit_code
    except KeyboardInterrupt:
        print("interrupted; the next start puts right what was left half done", file=sys.stderr)
        if asks_json(argv):
            print(json.dumps({"error": "interrupted", "exit_code": 130}))
        return 130


def _check_current_folder() -> None:
    """Names of files may be relative to it, and every program that is started looks for it."""
    try:
        Path.cwd()
    except OSError as problem:
        raise EnvironmentCannot(
            f"the current folder is not there any more, or may not be looked into: {problem.strerror}",
            cause="it was removed or replaced while the shell stayed in it",
            next_step='cd somewhere else (`cd "$PWD"` where it was made anew), and run the command again',
        ) from problem


def _told(problem: BuildError, argv: Sequence[str]) -> int:
    """Tell an error, on stdout too where the command line asks for JSON; returns the exit code."""
    print(problem, file=sys.stderr)
    if asks_json(argv):
        print(json.dumps(problem.to_json(), indent=2), flush=True)
    return problem.exit_code


def _open_streams() -> None:
    """Give what was closed (`>&-`) to the null device, lest the next file that is opened gets the output."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w"))


def verbs() -> str:
    """The verbs of tasks.py with their first lines, read from its text: nothing has to be installed for it."""
    rows: list[tuple[str, str]] = []
    for node in ast.parse((REPOSITORY / "tasks.py").read_text()).body:
        if isinstance(node, ast.FunctionDef) and any(_is_task(decorator) for decorator in node.decorator_list):
            rows.append((node.name.replace("_", "-"), (ast.get_docstring(node) or "").partition("\n")[0]))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"  {name:<{width}}  {text}" for name, text in sorted(rows))


def _is_task(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(called, ast.Name) and called.id == "task"


def _own_environment(request: Request) -> tuple[Path, dict[str, str]]:
    """Set up `.venv` and Docker as far as the request needs them; its Python, and the variables it runs with."""
    from build.setup import install
    from build.setup.environment import Environment

    environment = Environment(REPOSITORY)
    refused = None
    if request.needs_docker or request.runs_image_tests:
        from build.setup import docker_engine

        refused = docker_engine.refused(may_install=request.may_install)
        if refused is not None and request.may_install:  # now, and not after a long install
            if lacking := install.lacking(environment, request.sets):
                print(lacking, file=sys.stderr)
            raise refused
    missing = environment.missing(request.sets)
    if refused is not None:
        if not missing:
            raise refused
        print(refused, file=sys.stderr)  # and go on to what else is missing: all is told at once
    install.ensure(environment, request.sets, may_install=request.may_install)
    while not environment.use():  # another start has just begun to make it anew
        install.ensure(environment, request.sets, may_install=request.may_install)
    if request.builds_host and request.may_install:
        install.provide_compiler()
    path = f"{environment.python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return environment.python, {"VIRTUAL_ENV": str(environment.folder), "PATH": path}


def _given_interpreter(request: Request) -> tuple[Path, dict[str, str]]:
    """The interpreter of DEEPINFER_PYTHON as it is, with the packs of `--offline` on PYTHONPATH."""
    from build.setup import packs

    folder = packs.provide(request.offline, strict=request.verb != "--")
    path = os.pathsep.join(filter(None, [str(folder or ""), os.environ.get("PYTHONPATH", "")]))
    # What the interpreter was called may be relative, and the verb may run elsewhere.
    variables = {"DEEPINFER_PYTHON": sys.executable, "PYTHONPATH": path}
    if folder is not None:
        variables["DEEPINFER_PACKS"] = str(folder)
    return Path(sys.executable), variables


def _go(request: Request, python: Path, variables: dict[str, str]) -> NoReturn:
    allowed = "1" if request.may_install and not os.environ.get("DEEPINFER_PYTHON") else "0"
    environment = {**os.environ, **variables, "DEEPINFER_SETUP": allowed}
    sys.stdout.flush()
    sys.stderr.flush()
    if request.verb == "--":
        command = request.arguments[0]
        try:
            os.execvpe(command, list(request.arguments), environment)
        except OSError as problem:
            print(f"error: {command} cannot be run: {problem.strerror}", file=sys.stderr)
            raise SystemExit(COMMAND_NOT_FOUND) from None
    # -P: a file of the current folder must not stand in for a module.
    program = str(REPOSITORY / "build" / "setup" / "program.py")
    # The engine is started once the verb's options are known to be right; an interpreter of the user's own means that
    # nothing is set up here. The tests of the images start it when their turn comes, and stop it again.
    starts = request.needs_docker and not os.environ.get("DEEPINFER_PYTHON")
    own = ["--search-root", str(REPOSITORY), *request.invoke_arguments()]
    argv = [str(python), "-P", program, "with-engine" if starts else "alone", *own]
    os.execve(python, argv, environment)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
