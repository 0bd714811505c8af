"""The parts that the engine may use. Each function looks at one of them, in a process that may crash or hang."""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import importlib.util
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from deepinfer import envs, native, platform
from deepinfer.environment import toolchain
from deepinfer.environment.requirements import RANGES
from deepinfer.errors import NativeError


class Absent(Exception):
    """The part is not on this machine; the text says why."""


@dataclass(frozen=True)
class Found:
    """A part that works. `details` holds what only this part has."""

    version: str
    path: str
    details: dict[str, Any] = field(default_factory=dict)


def _gpu() -> Found:
    machine = platform.detect()
    if machine.kind != "cuda":
        raise Absent(machine.reason + (f" (driver {machine.driver})" if machine.driver else ""))
    devices = [asdict(gpu) for gpu in machine.gpus]
    return Found(machine.driver, "", {"driver_cuda": machine.driver_cuda, "devices": devices})


def _torch() -> Found:
    torch = _import("torch")
    details = {
        "git_version": torch.version.git_version,
        "cuda": torch.version.cuda,
        "cuda_available": bool(torch.cuda.is_available()),
        "nccl": _loaded_nccl(),
        "cudart": _mapped("libcudart"),
    }
    return Found(torch.__version__, str(Path(torch.__file__).parent), details)


def _mapped(stem: str) -> list[str]:
    """Files mapped into this process whose name starts with `stem`.so."""
    fields = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    paths = {entry[5] for entry in fields if len(entry) == 6}
    return sorted(path for path in paths if Path(path).name.startswith(f"{stem}.so"))


def _loaded_nccl() -> dict[str, Any] | None:
    """The version that the mapped library itself reports: torch.cuda.nccl.version() is what torch was compiled with."""
    files = _mapped("libnccl")
    if not files:
        return None
    number = ctypes.c_int()
    ctypes.CDLL(files[0]).ncclGetVersion(ctypes.byref(number))
    major, rest = divmod(number.value, 10000)
    return {"version": f"{major}.{rest // 100}.{rest % 100}", "files": files}


def _native() -> Found:
    if native.locate() is None:
        raise Absent(native.why_absent())
    module = importlib.import_module(native.NAME)
    timing = bool(importlib.import_module(f"{native.NAME}.graph_timer").supported())
    abi = dict(module.abi)
    return Found(f"for torch {abi['torch']}", str(module.__file__), {"abi": abi, "graph_timer": timing})


def _toolchain() -> Found:
    found = toolchain.find()
    if found.problem:
        raise Absent(found.problem)
    return Found(found.nvcc_version, found.nvcc, asdict(found))


def _module(name: str, *distributions: str) -> Found:
    """Any importable module; the version is its own, or that of a distribution which says more (3.8.10.post1)."""
    module = _import(name)
    version = str(getattr(module, "__version__", ""))
    for distribution in distributions:
        try:
            installed = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
        if installed.startswith(version):
            version = installed
    details = {"needed": str(RANGES[name]), "unfit": RANGES[name].problem(version)} if name in RANGES else {}
    return Found(version, str(Path(module.__file__ or "").parent), details)


def _xgrammar() -> Found:
    # This process does not ask for masks: with an older torch the import would first compile an extension for them.
    envs.set_unless_settled(envs.TVM_FFI_DISABLE_TORCH_C_DLPACK, "1")
    return _module("xgrammar", "xgrammar")


def _import(name: str) -> Any:
    if importlib.util.find_spec(name) is None:
        raise Absent("not installed")
    return importlib.import_module(name)


PARTS: dict[str, Callable[[], Found]] = {
    "gpu": _gpu,
    "torch": _torch,
    "triton": partial(_module, "triton", "triton"),
    "tokenspeed_triton": partial(_module, "tokenspeed_triton", "tokenspeed-triton"),
    "numpy": partial(_module, "numpy", "numpy"),
    "safetensors": partial(_module, "safetensors", "safetensors"),
    "tokenizers": partial(_module, "tokenizers", "tokenizers"),
    "deepinfer._C": _native,
    "deep_gemm": partial(_module, "deep_gemm", "deepinfer-gemm"),
    "deep_ep": partial(_module, "deep_ep", "deepinfer-ep"),
    "deep_cluster": partial(_module, "deep_cluster", "deep-cluster"),
    "xgrammar": _xgrammar,
    "toolchain": _toolchain,
}


def answer(name: str) -> dict[str, Any]:
    """Examine one part in this process: its row of the report, without what only the caller can know."""
    try:
        return {"status": "present", "reason": "", **asdict(PARTS[name]())}
    except Absent as absence:
        return {"status": "absent", "reason": str(absence)}
    except NativeError as problem:
        return {"status": "failed", "reason": problem.what}
    except (Exception, SystemExit) as problem:
        text = str(problem).strip().splitlines()
        return {"status": "failed", "reason": f"{type(problem).__name__}: {text[0] if text else 'no message'}"}


def main(name: str, descriptor: int) -> None:
    """The child's whole life: examine, write the row to the descriptor, and end without running anybody's atexit."""
    row = answer(name)
    with os.fdopen(descriptor, "w") as pipe:
        json.dump(row, pipe)
    os._exit(0)
