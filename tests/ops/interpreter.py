"""Families in Triton's interpreter, each in a process of its own: a crash or a hang is laid to the case that it hit."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO

AT_A_TIME = 2
QUIET_S = 300.0
"""After so many seconds in one case its process is ended. A case should take one or two."""
Results = dict[str, list[str]]


class Interpreter:
    """Runs the families in the order given, AT_A_TIME of them at once, from now on; `results` waits for one.

    command: the program, which gets a family's name and prints what `deepinfer.ops.ab --events` does.
    """

    def __init__(self, families: Sequence[str], *, quiet_s: float = QUIET_S, command: Sequence[str] = ()) -> None:
        self._pool = ThreadPoolExecutor(max_workers=AT_A_TIME)
        self._quiet_s = quiet_s
        self._command = list(command) or [sys.executable, "-m", "deepinfer.ops.ab", "--device", "cpu", "--events"]
        self._children: set[subprocess.Popen[str]] = set()
        self._closed = False
        self._runs: dict[str, Future[Results]] = {}
        for family in families:
            self._runs[family] = self._pool.submit(self._run, family)

    def results(self, family: str) -> Results:
        """FACTORY/CASE -> what differs from the reference, for every case of a family that is not large."""
        if family not in self._runs:
            self._runs[family] = self._pool.submit(self._run, family)
        return self._runs[family].result()

    def close(self) -> None:
        """End what still runs."""
        self._closed = True
        for child in list(self._children):
            _end(child)
        self._pool.shutdown(cancel_futures=True)

    def _run(self, family: str) -> Results:
        if self._closed:
            return {}
        # Alone on its core: PyTorch's and NumPy's own threads would fight over the few that there are.
        alone = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        child = subprocess.Popen(
            [*self._command, family],
            env={**os.environ, **alone, "TRITON_INTERPRET": "1"},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        self._children.add(child)
        try:
            return self._follow(child, family)
        finally:
            self._children.discard(child)

    def _follow(self, child: subprocess.Popen[str], family: str) -> Results:
        results: Results = {}
        said, begun, how = _Said(child.stderr), "", ""
        try:
            for line in _lines(child.stdout, self._quiet_s):
                event = json.loads(line)
                if "begun" in event:
                    begun = event["begun"]
                else:
                    results[f"{event['factory']}/{event['case']}"] = event["problems"]
        except queue.Empty:
            how = f"was ended: it said nothing for {self._quiet_s:g} s"
        if how:
            _end(child)
        status = child.wait()
        if not how and status not in (0, 1):
            how = f"ended by {signal.Signals(-status).name}" if status < 0 else f"ended with exit code {status}"
        unended = bool(begun) and begun not in results
        if how or unended or not results:
            what = f"{family}: the interpreter's process {how or 'stopped'}, in {begun or 'no case'}"
            text = f"{what}\n{said.text()[-3000:]}"
            if not unended:
                raise RuntimeError(text)
            return _Incomplete(results, begun, text)
        return results


class _Incomplete(Results):
    """What there is of a family whose process ended in a case; the cases behind that one were not run."""

    def __init__(self, results: Results, hit: str, text: str) -> None:
        super().__init__({**results, hit: [text]})
        self._hit = hit

    def __missing__(self, name: str) -> list[str]:
        return [f"not run: the process of its family ended in {self._hit}"]


class _Said:
    """Gathers a stream as it comes, lest the writer waits for a reader."""

    def __init__(self, stream: IO[str] | None) -> None:
        self._stream = stream
        self._parts: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._stream or ():
            self._parts.append(line)

    def text(self) -> str:
        self._reader.join(5.0)
        return "".join(self._parts)


def _lines(stream: IO[str] | None, quiet_s: float) -> Iterator[str]:
    """The lines of a stream; queue.Empty when none comes for so long."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        for line in stream or ():
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    while (line := lines.get(timeout=quiet_s)) is not None:
        yield line


def _end(child: subprocess.Popen[str]) -> None:
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
