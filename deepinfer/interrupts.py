"""What Ctrl-C does to the command lines of this project: 130 always, never a traceback, never passed over.

Python's own handler raises KeyboardInterrupt wherever it is. While modules are imported that goes wrong: torch takes
it for a numpy that does not work and goes on, or a module stays half imported and its next use is an error that means
nothing. So while anything is imported, and before and after a command's work, the process dies at once; nothing that
has to be finished is under way then. During the work KeyboardInterrupt is raised as usual.

This module imports next to nothing, because it has to be in place before anything else is imported.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

_MESSAGE = b"stopped\n"
_state = {"working": 0, "signal": int(signal.SIGINT)}


def install_for(package: str) -> None:
    """Handle Ctrl-C from now on if this process is a program of `package`: its command, or `python -m` with a module
    of it. A program that only imports the package keeps its own handlers.
    """
    words = sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1]  # the interpreter's own, not the program's
    module = words[words.index("-m", 0, -1) + 1] if "-m" in words[:-1] else ""
    command = os.path.basename(sys.argv[0]) if sys.argv else ""  # noqa: PTH119  # pathlib is not imported for it
    if package in (module.partition(".")[0], command):
        _install()
        if os.getpid() == 1:  # of a container: the kernel would pass SIGTERM over, and `docker stop` wait
            signal.signal(signal.SIGTERM, _handle)


def code() -> int:
    """The exit code of a command whose work ended in KeyboardInterrupt."""
    return 128 + _state["signal"]


@contextlib.contextmanager
def work() -> Iterator[None]:
    """In this block Ctrl-C raises KeyboardInterrupt, but for imports."""
    installed = _install()
    _state["signal"] = int(signal.SIGINT)
    _state["working"] += 1
    try:
        yield
    finally:
        _state["working"] -= 1
        if installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def termination_too() -> Iterator[None]:
    """In this block SIGTERM, as `docker stop` sends it, does what Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _install() -> bool:
    """Whether this call put the handler there: not beside one of somebody else's, nor outside of the main thread."""
    if threading.current_thread() is not threading.main_thread():
        return False
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return False
    signal.signal(signal.SIGINT, _handle)
    return True


def _handle(number: int, frame: FrameType | None) -> None:
    _state["signal"] = number
    if _state["working"] and not _importing(frame):
        raise KeyboardInterrupt
    with contextlib.suppress(OSError):
        os.write(2, _MESSAGE)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # the first process of a container is not killed by its own signal


def _importing(frame: FrameType | None) -> bool:
    """Whether a module is being imported, by Python code or by C code that Python code has called."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
