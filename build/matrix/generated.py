"""Files that are generated and kept in the repository: written, or compared with what they should be."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from build.cache import REPOSITORY, atomic_write
from build.command import TROUBLE, told_of
from build.errors import MatrixError


def generate(file: Path, text: str, module: str, *, check: bool) -> None:
    """Write `text` to `file`, or with `check` only compare. Raises MatrixError with the command if they differ."""
    if not check:
        atomic_write(file, text)
        return
    if not file.is_file() or file.read_text(encoding="utf-8") != text:
        raise MatrixError(
            f"{file.relative_to(REPOSITORY)} does not follow from matrix.yaml and the program any more",
            next_step=f"run `./run -- python -m {module}` and commit the result",
        )


def run_generator(file: Path, make: Callable[[], str], module: str, arguments: list[str]) -> int:
    """`python -m MODULE [--check]`: 0 done or unchanged, 1 usage, 2 it differs or the matrix is wrong."""
    if arguments not in ([], ["--check"]):
        print(f"usage: python -m {module} [--check]", file=sys.stderr)
        return 1
    try:
        generate(file, make(), module, check=bool(arguments))
    except TROUBLE as problem:
        return told_of(problem).exit_code
    return 0
