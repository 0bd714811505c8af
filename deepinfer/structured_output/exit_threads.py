"""The end of a process in which threads still run C++."""

from __future__ import annotations

import ctypes


def hold_returning_threads() -> None:
    """Let threads that come back to Python while it ends stop where they are. Call it when nothing else is to be done.

    Python before 3.14 ends such a thread by unwinding its stack. Where C++ has to be left that may not be left so, it
    calls its terminate handler, which by default ends the process with SIGABRT; the one set here waits for ever.
    """
    set_terminate = ctypes.CDLL("libstdc++.so.6")._ZSt13set_terminatePFvvE
    set_terminate(ctypes.cast(ctypes.CDLL(None).pause, ctypes.c_void_p))
