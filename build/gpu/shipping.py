"""Programs as text: `python3 -c TEXT ARGS` runs a module of `programs` where nothing of ours can be copied to."""

from __future__ import annotations

import functools
from pathlib import Path

_PROGRAMS = Path(__file__).with_name("programs")
_PACKAGES = ("build", "build.gpu", "build.gpu.programs")

# Modules of ours are put together from their texts before the program runs; its own text then runs as __main__.
_BOOT = """\
import linecache, sys, types
def _module(name, text):
    made = sys.modules[name] = types.ModuleType(name)
    made.__path__ = []
    file = "<" + name + ">"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    exec(compile(text, file, "exec"), made.__dict__)
for _name, _text in {modules!r}:
    _module(_name, _text)
exec(compile({program!r}, "<{name}>", "exec"), globals())
"""


@functools.cache
def as_text(program: str) -> str:
    """The text of `programs/<program>.py` with the other modules of `programs` that it imports in front of it."""
    own = _text(program)
    modules = [(package, "") for package in _PACKAGES]
    helpers = [path.stem for path in sorted(_PROGRAMS.glob("*.py")) if path.stem not in ("__init__", program)]
    modules += [
        (f"build.gpu.programs.{helper}", _text(helper))
        for helper in helpers
        if f"from build.gpu.programs.{helper} import" in own
    ]
    return _BOOT.format(modules=modules, program=own, name=program)


def _text(module: str) -> str:
    return (_PROGRAMS / f"{module}.py").read_text(encoding="utf-8")
