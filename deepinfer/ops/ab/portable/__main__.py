"""The other side's process: a module that is not ours runs the calls of a dump, and what becomes of them goes into
another.

    python -P …/portable MODULE INPUTS OUTPUTS DEVICE OURS

It is started by its path, with PYTHONPATH at the module's folder: a package called `deepinfer` that is found there is
the other one. OURS is the folder of our package, from which MODULE must not come. Standard output is the module's own;
`case NAME` lines go to standard error as the calls begin. Exit code 0: every call was tried; 3: the module cannot be
used, and the last line says why.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

_HERE = Path(__file__).resolve().parent
_UNUSABLE = 3


def _own_package() -> None:
    """This folder as a package, under a name that is nobody else's."""
    name = "deepinfer_ab_portable"
    spec = importlib.util.spec_from_file_location(name, _HERE / "__init__.py", submodule_search_locations=[str(_HERE)])
    assert spec is not None and spec.loader is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])


def _module(name: str, ours: Path) -> ModuleType:
    try:
        module = importlib.import_module(name)
    except Exception as problem:  # whatever a stranger's module raises when it is imported
        text = " ".join(str(problem).split())[:400]
        raise SystemExit(_unusable(f"{name} cannot be imported: {type(problem).__name__}: {text}")) from problem
    for one in (sys.modules[name.partition(".")[0]], module):
        if ours in Path(getattr(one, "__file__", None) or "/").resolve().parents:
            raise SystemExit(_unusable(f"{name} comes from this project's own package, not from --path"))
    return module


def _unusable(text: str) -> int:
    print(text, file=sys.stderr, flush=True)
    return _UNUSABLE


def _versions(name: str, module: ModuleType, device: str) -> dict[str, str]:
    versions = {"backend": f"module {name}", "torch": torch.__version__, "python": sys.version.split()[0]}
    root = sys.modules[name.partition(".")[0]]
    for key, holder in (("version", root), *((one, sys.modules.get(one)) for one in ("triton", "tilelang"))):
        if found := getattr(holder, "__version__", ""):
            versions[key] = str(found)
    return {**versions, "device": torch.cuda.get_device_name() if device.startswith("cuda") else device}


def main(name: str, inputs: str, outputs: str, device: str, ours: str) -> int:
    """Run every call of a dump; a call that raises is written down with its error."""
    _own_package()
    read = importlib.import_module("deepinfer_ab_portable.read")
    write = importlib.import_module("deepinfer_ab_portable.write")
    module = _module(name, Path(ours).resolve())
    dump = read.Reader(Path(inputs))
    with write.written(Path(outputs), _versions(name, module, device), dump.sources) as writer:
        for recorded in dump.calls.values():
            print(f"case {recorded.factory} {recorded.case}", file=sys.stderr, flush=True)
            before = dump.arguments(recorded, "before")
            here = dump.arguments(recorded, "before", device)
            parameters, named = dump.constants(recorded, lambda kind, fields: _made(module, kind, fields))
            error = _call(module, recorded.factory, parameters, named, here, device)
            # Without its outputs where it failed: a device that is lost cannot be read.
            after = [] if error else here
            writer.add(recorded.factory, recorded.case, recorded.parameters, recorded.named, before, after, error)
    return 0


def _made(module: ModuleType, kind: str, fields: dict[str, Any]) -> Any:
    return getattr(module, kind)(**fields)


def _call(
    module: ModuleType, factory: str, parameters: list[Any], named: dict[str, Any], here: list[Any], device: str
) -> str:
    try:
        getattr(module, factory)(*parameters, **named)(*(one.value for one in here))
        if device.startswith("cuda"):
            torch.cuda.synchronize()
    except Exception as problem:  # a finding: the harness tells it beside the other cases
        return f"{type(problem).__name__}: {' '.join(str(problem).split())[:600]}"
    return ""


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
