"""One way to run programs: argument lists, the quoted command shown, output kept in a log or captured."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from build.errors import EnvironmentCannot
from build.heartbeat import heartbeat, shortened


class CallFailed(Exception):
    """A program ended with a non-zero status. The caller knows what that means and says it."""

    def __init__(self, argv: Sequence[str], returncode: int, output: str, log: Path | None) -> None:
        super().__init__(f"{shlex.join(argv)} ended with status {returncode}")
        self.argv = list(argv)
        self.returncode = returncode
        self.output = output
        self.log = log

    @property
    def tail(self) -> str:
        """The last lines of what the program printed, for an error message."""
        return "\n".join(self.output.strip().splitlines()[-12:])


def show(argv: Sequence[str], *, log: Path | None = None) -> None:
    """Print a command as one would type it, on stderr: stdout belongs to results.

    Args:
        log: the file that has the whole command; then a long one is cut, and the file is named.
    """
    text = shlex.join(argv)
    if log is not None and shortened(text) != text:
        text = f"{shortened(text)} (log: {log})"
    print(f"+ {text}", file=sys.stderr, flush=True)


def _name(words: Sequence[str]) -> str:
    """What a command is called in a sentence: `docker build`, `pip download`."""
    rest = list(words[2:]) if words[1:2] == ["-m"] else [Path(words[0]).name, *words[1:]]
    named = len(rest) > 1 and re.fullmatch(r"[a-z][a-z-]*", rest[1])
    return " ".join(rest[:2] if named else rest[:1])


def call(
    *argv: str | Path,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    log: Path | None = None,
    stdin: bytes | None = None,
    timeout: float | None = None,
    quiet: bool = False,
    check: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run a program and return its status with stdout and stderr; one that takes long says so every 15 s on stderr.

    Args:
        argv: the program and its arguments; never a shell string.
        env: variables laid over this process's own.
        log: a file that receives both streams instead; then the result's stdout holds the log's last 16 KiB.
        timeout: seconds after which the program is killed and CallFailed (status 124) is raised.
        quiet: do not print the command (inspections that run hundreds of times).
        check: raise CallFailed on a non-zero status.

    Raises:
        EnvironmentCannot: the program does not exist.
        CallFailed: it failed or ran too long.
    """
    words = [str(arg) for arg in argv]
    if shutil.which(words[0]) is None:
        raise EnvironmentCannot(
            f"the program {words[0]!r} is not installed", next_step="run `./run doctor`, which says how to install it"
        )
    if not quiet:
        show(words, log=log)
    merged = {**os.environ, **(env or {})}
    try:
        if log is not None:
            with heartbeat(_name(words), log=log):
                done = _call_logged(words, cwd, merged, log, stdin, timeout)
        else:
            with heartbeat(_name(words)):
                raw = subprocess.run(
                    words, cwd=cwd, env=merged, input=stdin, capture_output=True, timeout=timeout, check=False
                )
            done = subprocess.CompletedProcess(
                words, raw.returncode, raw.stdout.decode(errors="replace"), raw.stderr.decode(errors="replace")
            )
    except subprocess.TimeoutExpired as late:
        raise CallFailed(words, 124, f"still running after {timeout:.0f} s, killed", log) from late
    if check and done.returncode != 0:
        raise CallFailed(words, done.returncode, f"{done.stdout}\n{done.stderr}".strip(), log)
    return done


def _call_logged(
    words: list[str], cwd: Path | None, env: Mapping[str, str], log: Path, stdin: bytes | None, timeout: float | None
) -> subprocess.CompletedProcess[str]:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a+b") as out:
        out.write(f"+ {shlex.join(words)}\n".encode())
        out.flush()
        raw = subprocess.run(
            words, cwd=cwd, env=env, input=stdin, stdout=out, stderr=subprocess.STDOUT, timeout=timeout, check=False
        )
        out.seek(max(0, out.seek(0, os.SEEK_END) - 16384))  # by its handle: the name may be another log's by now
        tail = out.read().decode(errors="replace")
    return subprocess.CompletedProcess(words, raw.returncode, tail, "")
