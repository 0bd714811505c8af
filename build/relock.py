"""Make a lock from a short list of requirements: resolve once, pin and hash everything, say how in its header."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from build.arguments import Parser
from build.cache import REPOSITORY, atomic_write
from build.call import CallFailed, call
from build.command import TROUBLE, told_of
from build.errors import EnvironmentCannot, MatrixError
from build.locks import PLATFORMS

_DIRECTIVE = re.compile(r"# (index|alone|needs): (\S+)")


def relock(source: Path, pythons: Sequence[str]) -> Path:
    """Resolve `NAME.in` for each of these Pythons on Linux x86-64 and write `NAME.lock` beside it, with all their sums.

    Besides requirements, the .in may hold `# index: URL` (where else wheels are found; goes into the lock),
    `# alone: NAME==VERSION` (pinned as it is, without resolving what it needs) and `# needs: none` (that for all).

    Raises:
        MatrixError: nothing satisfies the requirements, or for one Python another version than for the next.
    """
    if source.suffix != ".in":
        raise MatrixError(f"{source} does not end in .in", next_step="give the list of requirements, not the lock")
    directives = _DIRECTIVE.findall(source.read_text())
    indexes = [value for key, value in directives if key == "index"]
    alone = [value for key, value in directives if key == "alone"]
    own = ["--no-deps"] if ("needs", "none") in directives else []
    pins: dict[str, tuple[str, set[str]]] = {}
    for python in pythons:
        wheels = _resolve([*own, "--requirement", str(source)], python, indexes)
        if alone:
            wheels += _resolve(["--no-deps", *alone], python, indexes)
        for name, version, digest in wheels:
            held, digests = pins.setdefault(name, (version, set()))
            if held != version:
                raise MatrixError(
                    f"{name} is {version} for Python {python}, and {held} for {pythons[0]}",
                    next_step=f"write a version into {source.name} that has wheels for all of them",
                )
            digests.add(digest)
    shown = source.resolve()
    shown = shown.relative_to(REPOSITORY) if shown.is_relative_to(REPOSITORY) else Path(source.name)
    lines = [
        "# Every wheel that is installed, pinned and hashed; installed with --no-deps. Do not edit: change the .in and",
        f"# run `python -m build.locks relock {shown} --python {','.join(pythons)}`",
        *(f"# index: {index}" for index in indexes),
    ]
    for name, (version, digests) in sorted(pins.items()):
        lines += [f"{name}=={version} \\", " \\\n".join(f"    --hash=sha256:{digest}" for digest in sorted(digests))]
    target = source.with_suffix(".lock")
    atomic_write(target, "\n".join(lines) + "\n")
    return target


def _resolve(words: Sequence[str], python: str, indexes: Sequence[str]) -> list[tuple[str, str, str]]:
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.json"
        argv = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--dry-run"]
        argv += ["--ignore-installed", "--only-binary=:all:", f"--report={report}", f"--target={scratch}/site"]
        argv += ["--python-version", python, *(word for name in PLATFORMS for word in ("--platform", name))]
        try:
            try:
                call(*argv, *words, quiet=True)
            except CallFailed as failed:
                if not indexes:
                    raise
                print(f"asking {', '.join(indexes)} too: {failed.tail[-200:]}", file=sys.stderr)
                call(*argv, *words, *(word for url in indexes for word in ("--extra-index-url", url)), quiet=True)
        except CallFailed as failed:
            raise MatrixError(
                f"pip finds no set of wheels for Python {python}:\n{failed.tail}",
                next_step="loosen the requirement that pip names, or check pip's index (`pip config list`)",
            ) from failed
        return [_wheel(entry) for entry in json.loads(report.read_text())["install"]]


def _wheel(entry: dict[str, Any]) -> tuple[str, str, str]:
    metadata, archive = entry["metadata"], entry["download_info"]["archive_info"]
    digest = archive.get("hashes", {}).get("sha256")
    if digest is None:
        raise EnvironmentCannot(
            f"pip reports no sha256 for {metadata['name']}", next_step="use pip 23.1 or newer and PyPI's own index"
        )
    return canonicalize_name(metadata["name"]), str(metadata["version"]), str(digest)


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m build.locks relock FILE.in --python 3.13[,3.12]`."""
    parser = Parser(prog="python -m build.locks", description="Work on locks of wheels.")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    verb = verbs.add_parser("relock", help="resolve FILE.in and write FILE.lock beside it")
    verb.add_argument("source", type=Path, metavar="FILE.in")
    verb.add_argument(
        "--python", required=True, metavar="3.N[,3.M]", help="the target's Python; several: one lock for all"
    )
    try:
        given = parser.parse_args(argv)
        print(relock(given.source, given.python.split(",")))
    except TROUBLE as problem:
        return told_of(problem).exit_code
    return 0
