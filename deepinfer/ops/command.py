"""What the kernels' own command lines share: usage errors exit 1, failures are told in words, never by a traceback."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from deepinfer import envs
from deepinfer.errors import DeepInferError, UsageError, VariableError


class Parser(argparse.ArgumentParser):
    """argparse exits 2 on a usage error; here that is 1, as everywhere in the project."""

    def error(self, message: str) -> NoReturn:
        """Raise UsageError."""
        raise UsageError(message, next_step=f"{self.prog} --help")


def exit_code(work: Callable[[], int]) -> int:
    """What `work` returns, or what its failure means, which is told on stderr."""
    try:
        return work()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has gone; the interpreter must not complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except DeepInferError as problem:
        _tell(str(problem))
        return problem.exit_code
    except Exception as problem:  # a fault of ours: still in words, and DEEPINFER_DEBUG=1 shows where
        _tell(f"stopped by {type(problem).__name__}: {problem}\n  next step: DEEPINFER_DEBUG=1 shows where")
        return 4


def _tell(message: str) -> None:
    try:
        debug = envs.DEBUG.get()
    except VariableError:
        debug = False
    if debug:
        traceback.print_exc()
    print(f"error: {message}", file=sys.stderr, flush=True)
