"""The two sides of a comparison: a backend of ours in this process, or what a dump holds of another's run."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch

import deepinfer
from deepinfer import envs, ops
from deepinfer.errors import DeepInferError, UsageError
from deepinfer.ops.ab.portable.read import Reader, Recorded
from deepinfer.ops.ab.portable.values import DumpError, Value
from deepinfer.ops.ab.portable.write import constants
from deepinfer.ops.case import Call, Case
from deepinfer.ops.dispatch import BACKENDS
from deepinfer.ops.execution import Outcome, outcome, run

_FOLDER = Path(ops.__file__).parent


class FailedThereError(Exception):
    """The other side raised; the text is what it said."""


class Side(Protocol):
    """versions: who it is: backend, its versions and its device; what two sides must not have in common altogether."""

    @property
    def versions(self) -> Mapping[str, str]: ...

    def outcome(self, case: Case, call: Call) -> Outcome:
        """What it makes of a call. Raises whatever went wrong."""


@dataclass(frozen=True)
class Here:
    """A backend of this package, in this process; strict, so that nothing comes from another backend."""

    backend: str
    device: str

    def __post_init__(self) -> None:
        """Refuse what cannot run here.

        Raises:
            UsageError: no such backend, or a device that does not go with the interpreter.
            DeepInferError: no GPU.
        """
        if self.backend not in BACKENDS:
            raise UsageError(f"there is no backend {self.backend!r}", next_step=f"use {' or '.join(BACKENDS)}")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise DeepInferError(
                "PyTorch sees no GPU",
                next_step="TRITON_INTERPRET=1 python -m deepinfer.ops.ab --device cpu, or a machine with a GPU",
            )
        if self.backend == "triton" and (self.device == "cpu") != interpreting():
            raise UsageError(
                "on a CPU, Triton's kernels run in its interpreter only, and there only",
                next_step="set TRITON_INTERPRET=1 for --device cpu, and unset it for --device cuda",
            )

    @property
    def versions(self) -> dict[str, str]:
        """Backend, versions, device, and a digest of the backend's source."""
        found = {"backend": self.backend, "deepinfer": deepinfer.__version__, "commit": _commit()}
        found |= {"source": _digest(self.backend), "torch": torch.__version__, "python": sys.version.split()[0]}
        if self.backend == "triton":
            import triton

            found["triton"] = str(triton.__version__) + (" interpreted" if interpreting() else "")
        return {**found, "device": torch.cuda.get_device_name() if self.device == "cuda" else "cpu"}

    def outcome(self, case: Case, call: Call) -> Outcome:
        """Run the kernel."""
        return run(case.factory, call, self.backend, self.device)


@dataclass(frozen=True)
class Dumped:
    """What a dump holds."""

    reader: Reader

    @property
    def versions(self) -> Mapping[str, str]:
        """What the dump says."""
        return self.reader.side

    def has(self, case: Case) -> bool:
        """Whether the dump has this case."""
        return (case.factory, case.name) in self.reader.calls

    def call(self, case: Case) -> Call:
        """The case's call with the dump's inputs. Raises DumpError where it is another call than the case's."""
        own, recorded = case.call(), self._recorded(case)
        if (recorded.parameters, recorded.named) != constants(own.parameters, own.named):
            raise DumpError("the dump has other compile-time parameters")
        return _with_values(own, self.reader.arguments(recorded, "before"))

    def outcome(self, case: Case, call: Call) -> Outcome:
        """What the other side made of it. Raises FailedThereError if that was an error."""
        recorded = self._recorded(case)
        if recorded.error:
            raise FailedThereError(recorded.error)
        return outcome(call, _with_values(call, self.reader.arguments(recorded, "after")))

    def _recorded(self, case: Case) -> Recorded:
        return self.reader.calls[case.factory, case.name]


def _with_values(call: Call, values: Sequence[Value]) -> Call:
    own = [(one.name, one.output, _kind(one.value)) for one in call.arguments]
    other = [(one.name, one.output, _kind(one.value)) for one in values]
    if own != other:
        where = next((f"{a} there, {b} here" for a, b in zip(other, own, strict=False) if a != b), "their number")
        raise DumpError(f"the dump has other arguments: {where}")
    pairs = zip(call.arguments, values, strict=True)
    return replace(call, arguments=[replace(one, value=other.value) for one, other in pairs])


def _kind(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return (value.dtype, tuple(value.shape), value.stride(), value.storage_offset())
    return type(value)


def refuse_equal(expected: Side, got: Side) -> None:
    """Two runs of the same code on the same versions and device say nothing. Raises UsageError for them."""
    ours, theirs = ({**side.versions, "commit": "", "python": ""} for side in (expected, got))
    if ours == theirs:
        raise UsageError(
            f"both sides are {told(got.versions)}: nothing would be compared",
            next_step="name another backend, or compare on another device or with other versions",
        )


def told(versions: Mapping[str, str]) -> str:
    """A side in a few words."""
    words = [versions.get("backend", "?")]
    words += [f"{name} {versions[name]}" for name in ("triton", "tilelang", "torch") if versions.get(name)]
    return f"{', '.join(words)}, {versions.get('device', '?')}"


def interpreting() -> bool:
    """Whether Triton interprets kernels in this process."""
    return envs.read(envs.TRITON_INTERPRET) not in ("", "0")


def _digest(backend: str) -> str:
    digest = hashlib.sha256()
    for path in sorted([*_FOLDER.glob("*.py"), *(_FOLDER / backend).rglob("*.py")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _commit() -> str:
    """The commit of the sources, where they are a checkout; else ''."""
    root = _FOLDER.parent.parent
    if not (root / ".git").exists():
        return ""
    command = ["git", "-C", str(root), "rev-parse", "--short=12", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
