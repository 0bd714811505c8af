"""Grammars compiled beside the engine, which computes on meanwhile: a few threads, and what they made, kept.

xgrammar compiles without Python's lock, in C++, and cannot be stopped: a compilation that takes too long fails for
those who wait for it, and its thread is left to itself.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deepinfer.structured_output.compiler import THREADS, check_text, name_of, text_to_compile
from deepinfer.structured_output.exit_threads import hold_returning_threads

if TYPE_CHECKING:
    from deepinfer.sampling.params import Structure
    from deepinfer.structured_output.compiler import Grammar, GrammarCompiler, Kind

LONGEST_COMPILE = 20.0
"""Seconds that one grammar may take, counted from when a thread has it (kernel_spec, DEEPINFER_XGRAMMAR_TIMEOUT)."""
LOST = THREADS
"""Threads that may be busy past their time while others do their work."""
MOST_GRAMMARS = 1024
MOST_BYTES = 2**28
"""What is kept of grammars, the last used."""


@dataclass(eq=False)
class Compilation:
    """A grammar on its way. Once it is `done`, one of `grammar` and `problem` is there, and stays.

    users: how many wait for it. started: when a thread took it, seconds of the pool's clock.
    """

    kind: Kind
    text: str
    users: int = 0
    started: float = 0.0
    thread: threading.Thread | None = None
    grammar: Grammar | None = None
    problem: Exception | None = None

    @property
    def done(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self.grammar is not None or self.problem is not None


class CompilePool:
    """Compiles structures in threads, each once, in the order in which they are asked for.

    There are threads only while something is compiled, THREADS and LOST of them at most.
    """

    def __init__(
        self,
        compiler: GrammarCompiler,
        *,
        longest: float = LONGEST_COMPILE,
        most_grammars: int = MOST_GRAMMARS,
        most_bytes: int = MOST_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._compiler = compiler
        self._longest, self._clock = longest, clock
        self._most = most_grammars, most_bytes
        self._lock = threading.Lock()
        self._woken = threading.Event()
        self._queued: OrderedDict[tuple[Kind, str], Compilation] = OrderedDict()
        self._running: list[Compilation] = []
        self._kept: OrderedDict[tuple[Kind, str], Grammar] = OrderedDict()
        weakref.finalize(self, _leave, self._running)

    def compile(self, structure: Structure) -> Compilation:
        """Ask for the grammar of a structure, which is read now. `release` what is not waited for to its end.

        Raises:
            ValueError: the structure is wrong or cannot be enforced, as far as that is seen without compiling.
            DeepInferError: xgrammar is not there.
        """
        kind, text = structure.kind, text_to_compile(structure)
        key = kind, text
        with self._lock:
            found = self._found(key)
        if found is None:
            check_text(kind, text)
        with self._lock:
            found = found or self._found(key) or Compilation(kind, text)
            found.users += 1
            if not found.done and found.thread is None:
                self._queued[key] = found
                self._start()
        return found

    def release(self, compilation: Compilation) -> None:
        """It is not waited for any more. Where nobody does, and no thread has it yet, it is left out."""
        with self._lock:
            compilation.users -= 1
            key = compilation.kind, compilation.text
            if not compilation.users and self._queued.get(key) is compilation:
                del self._queued[key]

    def expire(self) -> None:
        """Fail what takes too long, and what no thread is left for."""
        with self._lock:
            now = self._clock()
            for one in self._running:
                if not one.done and now - one.started >= self._longest:
                    why = f"compiling it takes more than {self._longest:g} s; ask for less in one request"
                    one.problem = self._refusal(one, why)
            self._start()
            if not all(one.done for one in self._running):
                return
            for one in self._queued.values():
                why = "every thread that compiles is busy with another one, past its time; ask again later"
                one.problem = self._refusal(one, why)
            self._queued.clear()

    def wait(self) -> None:
        """Until a compilation is done, takes too long, or `wake` is called; perhaps not as long."""
        with self._lock:
            ends = [one.started + self._longest for one in self._running if not one.done]
            left = min(ends) - self._clock() if ends else None
        self._woken.wait(None if left is None else max(left, 0.0))
        self._woken.clear()

    def wake(self) -> None:
        """End a `wait`, the next one if there is none now. Any thread may call it."""
        self._woken.set()

    def close(self) -> None:
        """Compile nothing more, and wait for the threads, each for as long as a grammar may take at most.

        After an exception, as of Ctrl-C, call it again to wait for what is left.
        """
        with self._lock:
            self._queued.clear()
            left = list(self._running)
        for one in left:
            if one.thread is not None:
                one.thread.join(max(one.started + self._longest - self._clock(), 0.0))

    def _found(self, key: tuple[Kind, str]) -> Compilation | None:
        """One that is done, queued or running."""
        if (grammar := self._kept.get(key)) is not None:
            self._kept.move_to_end(key)
            return Compilation(*key, grammar=grammar)
        running = (one for one in self._running if (one.kind, one.text) == key)
        return self._queued.get(key) or next(running, None)

    def _start(self) -> None:
        """Give what is queued to threads, as far as there may be any."""
        while self._queued and len(self._running) < THREADS + LOST:
            if sum(not one.done for one in self._running) >= THREADS:
                return
            _, one = self._queued.popitem(last=False)
            one.started = self._clock()
            one.thread = threading.Thread(target=self._run, args=(one,), name="deepinfer-grammar", daemon=True)
            self._running.append(one)
            try:
                one.thread.start()
            except RuntimeError as problem:  # the system has no thread for it
                self._running.remove(one)
                one.problem = problem

    def _run(self, one: Compilation) -> None:
        grammar, problem = None, None
        try:
            grammar = self._compiler.compile_text(one.kind, one.text)
            size = grammar.size
        except BaseException as raised:  # nothing that a thread raises may be lost, or its request would wait for ever
            problem = raised if isinstance(raised, Exception) else RuntimeError(repr(raised))
        with self._lock:
            self._running.remove(one)
            if problem is None and grammar is not None:
                self._keep(one, grammar, size)
            if not one.done:
                one.grammar, one.problem = grammar if problem is None else None, problem
            self._start()
        self._woken.set()

    def _keep(self, one: Compilation, grammar: Grammar, size: int) -> None:
        """Also of one that took too long: whoever asks again gets it. One that fits nowhere drives out no others."""
        most_grammars, most_bytes = self._most
        if size > most_bytes:
            return
        self._kept[one.kind, one.text] = grammar
        while len(self._kept) > most_grammars or sum(kept.size for kept in self._kept.values()) > most_bytes:
            self._kept.popitem(last=False)

    @staticmethod
    def _refusal(one: Compilation, why: str) -> ValueError:
        return ValueError(f"structure: the {name_of(one.kind)} cannot be taken: {why}")


def _leave(running: list[Compilation]) -> None:
    """The process ends, and waits for nobody: the pool lives as long as its threads, so that none is left otherwise."""
    if running:
        hold_returning_threads()
