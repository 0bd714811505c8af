"""Compilations that are held back until a test lets them go on; then the real compiler does its work."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from deepinfer.structured_output import Grammar, GrammarCompiler

PATIENCE = 60.0
"""Seconds after which a test that waits has failed."""


class Held:
    """begun: texts that threads have taken up, in their order. `let` lets those go on that contain a word."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[str] = []
        self._free: set[str] = set()
        self._changed = threading.Condition()
        real = GrammarCompiler.compile_text

        def compile_text(compiler: GrammarCompiler, kind: str, text: str) -> Grammar:
            with self._changed:
                self.begun.append(text)
                self._changed.notify_all()
                self._changed.wait_for(lambda: any(word in text for word in self._free), PATIENCE)
            return real(compiler, kind, text)

        monkeypatch.setattr(GrammarCompiler, "compile_text", compile_text)

    def let(self, word: str = "") -> None:
        """Let those go on in whose text the word is, now and later."""
        with self._changed:
            self._free.add(word)
            self._changed.notify_all()

    @contextmanager
    def let_soon(self) -> Iterator[None]:
        """Let all go on a little after the block has begun."""
        timer = threading.Timer(0.2, self.let)
        timer.start()
        yield
        timer.join()

    def hold(self) -> None:
        """Let none go on that comes from now on."""
        with self._changed:
            self._free.clear()

    def wait_begun(self, count: int) -> None:
        """Until so many have been taken up."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.begun) >= count, PATIENCE), self.begun


def threads() -> list[threading.Thread]:
    """Those that compile."""
    return [one for one in threading.enumerate() if one.name == "deepinfer-grammar"]


def settle() -> None:
    """Until none is left, and none that one of them started."""
    while left := threads():
        left[0].join(PATIENCE)
        assert not left[0].is_alive()


def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    """For a fixture: what is held, all of it let go in the end."""
    pytest.importorskip("xgrammar", reason="xgrammar is absent: no grammar can be compiled")
    found = Held(monkeypatch)
    yield found
    found.let()
    settle()
