"""Every environment variable that DeepInfer knows: the only module of the engine that reads or sets os.environ.

An empty value counts as unset. `python -m deepinfer.envs --markdown` prints the table as docs/environment.md has it.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from deepinfer.errors import VariableError

T = TypeVar("T")
PREFIX = "DEEPINFER_"


@dataclass(frozen=True)
class Kind(Generic[T]):
    """A type of value: its name, what is allowed (said in errors), and the reader, which raises ValueError."""

    name: str
    allowed: str
    read: Callable[[str], T]


@dataclass(frozen=True)
class Variable(Generic[T]):
    """One variable of DeepInfer's own.

    `default_text` says in the documentation what the default means where `default` itself does not.
    `reader` is "engine", or "build" for those that the build system and setup.py read.
    """

    name: str
    kind: Kind[T]
    default: T
    meaning: str
    default_text: str = ""
    reader: str = "engine"

    def get(self) -> T:
        """The value in effect. VariableError names the variable and what is allowed."""
        if not self.text:
            return self.default
        try:
            return self.kind.read(self.text)
        except ValueError as problem:
            raise VariableError(
                f"{self.name}={self.text!r} is not allowed",
                cause=f"it takes {self.kind.allowed}",
                next_step=f"set it so, or unset it (default: {self.shown_default})",
            ) from problem

    @property
    def is_set(self) -> bool:
        """Whether the environment gives it a value."""
        return bool(self.text)

    @property
    def text(self) -> str:
        """What the environment says, unread; '' where it is unset."""
        return os.environ.get(self.name, "")

    @property
    def shown_default(self) -> str:
        """The default as the documentation words it."""
        if self.default_text:
            return self.default_text
        return ("0", "1")[self.default] if isinstance(self.default, bool) else str(self.default)


@dataclass(frozen=True)
class Foreign:
    """A variable of another program that changes what DeepInfer does.

    `rivals`: variables through which a user settles the same thing, so that DeepInfer leaves this one alone.
    """

    name: str
    meaning: str
    rivals: tuple[str, ...] = ()


def _flag(text: str) -> bool:
    match text.lower():
        case "1" | "true" | "yes" | "on":
            return True
        case "0" | "false" | "no" | "off":
            return False
    raise ValueError(text)


def _folder(text: str) -> Path:
    try:
        path = Path(text).expanduser()
    except RuntimeError as problem:  # ~ of a user who does not exist
        raise ValueError(text) from problem
    # DeepGEMM and DeepEP read their cache variable as a list of folders separated by colons.
    if not path.is_absolute() or ":" in text or "\n" in text:
        raise ValueError(text)
    return path


def _any(text: str) -> str:
    return text


FLAG = Kind("flag", "0 or 1 (also false, no, off, true, yes, on)", _flag)
FOLDER = Kind[Path | None]("folder", "an absolute path (or one that starts with ~) without a colon", _folder)
TEXT = Kind("text", "any text", _any)

HOME = Variable(
    "DEEPINFER_HOME", FOLDER, None,
    "Where the optional parts lie: site/ (deep_gemm, deep_ep), cuda/ (tool chain for their JIT), image.json.",
    "the folder that holds site/deepinfer and image.json, else /opt/deepinfer",
)  # fmt: skip
CACHE_DIR = Variable(
    "DEEPINFER_CACHE_DIR", FOLDER, None,
    "Compiled kernels of Triton, DeepGEMM and DeepEP, each in a folder below it. "
    "Not writable: a folder under the temporary one is used instead, and `deepinfer env` says so.",
    "~/.cache/deepinfer",
)  # fmt: skip
DEBUG = Variable("DEEPINFER_DEBUG", FLAG, False, "Show the traceback behind an error message.")
REQUIRE_C = Variable(
    "DEEPINFER_REQUIRE_C", FLAG, False,
    "An extension deepinfer._C that cannot be used is an error, instead of a notice and its twin in Python.",
)  # fmt: skip
OPS_BACKEND = Variable(
    "DEEPINFER_OPS_BACKEND", TEXT, "", "Where kernels come from: triton, or reference (PyTorch).",
    "triton where the driver sees a GPU, else reference",
)  # fmt: skip
OPS_FALLBACK = Variable(
    "DEEPINFER_OPS_FALLBACK", TEXT, "",
    "Kernels that come from reference all the same, by their factories' names: gather_tl,norm_tl.", "none",
)  # fmt: skip
OPS_STRICT = Variable("DEEPINFER_OPS_STRICT", FLAG, False, "A kernel that would fall back is an error.")
BATCH_INVARIANT = Variable(
    "DEEPINFER_BATCH_INVARIANT", FLAG, False,
    "Demand that a token's logits have the same bits alone and in any batch, in one prefill, in chunks and decoded. "
    "The default path keeps that anyway; set, what cannot keep it is refused when a model is opened.",
)  # fmt: skip
TRACE_KERNELS = Variable(
    "DEEPINFER_TRACE_KERNELS", TEXT, "",
    "A file to which every kernel that runs adds one line of JSON: its name, backend and compile-time parameters.",
    "none",
)  # fmt: skip

VARIABLES: tuple[Variable[Any], ...] = (
    HOME,
    CACHE_DIR,
    DEBUG,
    REQUIRE_C,
    OPS_BACKEND,
    OPS_FALLBACK,
    OPS_STRICT,
    BATCH_INVARIANT,
    TRACE_KERNELS,
    Variable("DEEPINFER_BUILD_CACHE", TEXT, "", "The build system's cache: downloads, wheels, logs. A folder to "
             "itself, made if need be: one that holds anything else is refused, as `clean --cache` removes it whole.",
             "~/.cache/deepinfer-build", "build"),
    Variable("DEEPINFER_PYTHON", TEXT, "", "`./run` uses this interpreter as it is and installs nothing.",
             "a virtual environment in .venv", "build"),
    Variable("DEEPINFER_SETUP", FLAG, False, "Set by `./run`: whether what it starts may install things.", "", "build"),
    Variable("DEEPINFER_PACKS", TEXT, "", "Set by `./run --offline`: the folder of unpacked packs on PYTHONPATH.",
             "none", "build"),
    Variable("DEEPINFER_SKIP_C", FLAG, False, "setup.py packages the engine without deepinfer._C.", "", "build"),
    Variable("DEEPINFER_PREBUILT_C", TEXT, "", "setup.py packs this compiled deepinfer._C instead of compiling one.",
             "compile against this Python's torch", "build"),
    Variable("DEEPINFER_WHEEL_TAG", TEXT, "", "With DEEPINFER_PREBUILT_C, the wheel's tag: cp313-cp313-linux_x86_64.",
             "this Python's", "build"),
    Variable("DEEPINFER_REGISTRY_USER", TEXT, "", "Who pushes to a registry and fetches components from it.",
             "what `docker login` and its helpers keep", "build"),
    Variable("DEEPINFER_REGISTRY_PASSWORD", TEXT, "", "The password of DEEPINFER_REGISTRY_USER.", "none", "build"),
    Variable("DEEPINFER_REGISTRY_PASSWORD_FILE", TEXT, "",
             "A file that holds the password of DEEPINFER_REGISTRY_USER, in place of it.", "none", "build"),
    Variable("DEEPINFER_REGISTRY_TIMEOUT", TEXT, "",
             "Seconds without progress after which an attempt to push has failed.", "300", "build"),
)  # fmt: skip

CUDA_HOME = Foreign("CUDA_HOME", "CUDA tool chain of the JIT compilers", ("CUDA_PATH",))
CUDA_PATH = Foreign("CUDA_PATH", "CUDA tool chain, read where CUDA_HOME is unset")
TRITON_CACHE_DIR = Foreign("TRITON_CACHE_DIR", "Triton's compiled kernels", ("TRITON_HOME",))
TRITON_CACHE_MANAGER = Foreign("TRITON_CACHE_MANAGER", "the class that looks Triton's compiled kernels up")
TRITON_INTERPRET = Foreign("TRITON_INTERPRET", "1: Triton interprets kernels instead of compiling them")
DG_JIT_CACHE_DIR = Foreign("DG_JIT_CACHE_DIR", "DeepGEMM's compiled kernels", ("DJ_JIT_CACHE_DIR",))
EP_JIT_CACHE_DIR = Foreign("EP_JIT_CACHE_DIR", "DeepEP's compiled kernels", ("DJ_JIT_CACHE_DIR",))
TORCHINDUCTOR_CACHE_DIR = Foreign("TORCHINDUCTOR_CACHE_DIR", "torch.compile's kernels")
EP_NCCL_ROOT_DIR = Foreign("EP_NCCL_ROOT_DIR", "the NCCL whose headers DeepEP compiles with", ("NCCL_DIR",))
DG_JIT_NVCC_COMPILER = Foreign("DG_JIT_NVCC_COMPILER", "the nvcc that DeepGEMM calls")
EP_JIT_NVCC_COMPILER = Foreign("EP_JIT_NVCC_COMPILER", "the nvcc that DeepEP calls")
DJ_JIT_NVCC_COMPILER = Foreign("DJ_JIT_NVCC_COMPILER", "the nvcc of DeepGEMM and DeepEP, where neither has its own")
CC = Foreign("CC", "the C compiler that Triton calls at a first launch")
NVCC_CCBIN = Foreign("NVCC_CCBIN", "the C++ compiler that nvcc calls")
OMP_NUM_THREADS = Foreign("OMP_NUM_THREADS", "threads of PyTorch on the CPU; unset, a small model uses one")
EP_DISABLE_GIN = Foreign("EP_DISABLE_GIN", "1: DeepEP uses NVLink only, no InfiniBand")
TVM_FFI_DISABLE_TORCH_C_DLPACK = Foreign(
    "TVM_FFI_DISABLE_TORCH_C_DLPACK",
    "1: importing xgrammar compiles no extension for an older torch; given at the first structure",
)

GIVEN: tuple[Foreign, ...] = (
    CUDA_HOME,
    TRITON_CACHE_DIR,
    TRITON_CACHE_MANAGER,
    DG_JIT_CACHE_DIR,
    EP_JIT_CACHE_DIR,
    TORCHINDUCTOR_CACHE_DIR,
    EP_NCCL_ROOT_DIR,
    EP_DISABLE_GIN,
)
"""Those that `import deepinfer` may give a value."""

FOREIGN: tuple[Foreign, ...] = (
    CUDA_HOME,
    CUDA_PATH,
    TRITON_CACHE_DIR,
    TRITON_CACHE_MANAGER,
    Foreign("TRITON_HOME", "holds .triton, and with it Triton's cache where TRITON_CACHE_DIR is unset"),
    Foreign("TRITON_PTXAS_PATH", "the ptxas that Triton calls"),
    TRITON_INTERPRET,
    DG_JIT_CACHE_DIR,
    DG_JIT_NVCC_COMPILER,
    EP_JIT_CACHE_DIR,
    EP_JIT_NVCC_COMPILER,
    Foreign("DJ_JIT_CACHE_DIR", "compiled kernels of DeepGEMM and DeepEP, where neither has its own"),
    DJ_JIT_NVCC_COMPILER,
    EP_DISABLE_GIN,
    EP_NCCL_ROOT_DIR,
    TORCHINDUCTOR_CACHE_DIR,
    TVM_FFI_DISABLE_TORCH_C_DLPACK,
    Foreign("EP_SUPPRESS_NCCL_CHECK", "1: DeepEP does not check which NCCL is loaded"),
    CC,
    NVCC_CCBIN,
    OMP_NUM_THREADS,
    Foreign("CUDA_VISIBLE_DEVICES", "which GPUs this process sees"),
    Foreign("LD_LIBRARY_PATH", "folders that the dynamic loader searches first"),
)


def read(variable: Foreign) -> str:
    """The value of another program's variable, or ''."""
    return os.environ.get(variable.name, "")


def set_unless_settled(variable: Foreign, value: str) -> bool:
    """Give another program's variable a value, unless it or a rival of it is set already. Whether it was given."""
    if any(name in os.environ for name in (variable.name, *variable.rivals)):
        return False
    os.environ[variable.name] = value
    return True


def for_child(**changes: str) -> dict[str, str]:
    """This process's environment with changes, for a process that it starts."""
    return {**os.environ, **changes}


def problems() -> list[VariableError]:
    """What is wrong with the values of the variables that the engine reads, all at once."""
    found = []
    for variable in (variable for variable in VARIABLES if variable.reader == "engine"):
        try:
            variable.get()
        except VariableError as problem:
            found.append(problem)
    return found


def unknown() -> dict[str, str]:
    """Variables that start as ours do and are none: name -> the nearest known name, or ''."""
    known = [variable.name for variable in VARIABLES]
    strangers = sorted(name for name in os.environ if name.startswith(PREFIX) and name not in known)
    return {name: next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.75)), "") for name in strangers}
