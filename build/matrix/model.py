"""What matrix.yaml says, as frozen dataclasses. Loading and validating lives in load.py; nothing here does I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

ComponentKind = Literal["overlay", "extension", "wheel"]
TargetKind = Literal["image", "host"]


@dataclass(frozen=True)
class Source:
    """Where a component's source comes from: exactly one of pypi, path, git.

    pypi: name on PyPI, with `version` and the sdist's `sha256`.
    path: a folder, relative to the repository.
    git: a URL, with a full `commit`.
    wheel: overlay components only: `pypi` names a wheel, `sha256` is the wheel's.
    """

    pypi: str | None = None
    version: str | None = None
    sha256: str | None = None
    path: str | None = None
    git: str | None = None
    commit: str | None = None


@dataclass(frozen=True)
class Component:
    """One thing that is put into images: NCCL (overlay), deepinfer._C (extension), DeepGEMM and DeepEP (wheels).

    requires: `packaging` specifiers by fact name (torch, cuda, nccl, gcc, python, glibc).
    environment: variables of the compile.  shims: headers of ours (repository paths) force-included by the compile.
    memory_gib: peak of one compile, from measurement; the scheduler keeps the sum under the machine's memory.
    module: the import name.  toolchain: the component needs nvcc at run time.
    """

    name: str
    title: str
    kind: ComponentKind
    version: str
    source: Source
    module: str | None = None
    requires: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    shims: tuple[str, ...] = ()
    memory_gib: float = 1.0
    toolchain: bool = False
    licence: str = ""


@dataclass(frozen=True)
class Replica:
    """A stand-in for a vendor base: a Debian suite plus one fully pinned lock of wheels.

    expect: facts that differ from the vendor's by nature (python, gcc, glibc).
    apt: Debian packages of the operating-system layer.
    plant_cudart12: the distribution (`name==version`) whose libcudart.so.12 is planted under the root user's
        ~/.triton, as Triton leaves it on the real image; empty for none.
    """

    suite: str
    python: str
    lock: str
    apt: tuple[str, ...]
    expect: Mapping[str, str] = field(default_factory=dict)
    plant_cudart12: str = ""


@dataclass(frozen=True)
class Toolchain:
    """The run-time CUDA tool chain (nvcc, nvvm, cccl, crt, cudart headers) that DeepGEMM's and DeepEP's JIT use.

    lock: hash-locked wheels that are laid out as a CUDA_HOME at `prefix` where the base lacks nvcc >= `minimum`.
    """

    lock: str
    minimum: str
    prefix: str = "/opt/deepinfer/cuda"


@dataclass(frozen=True)
class Target:
    """An image to make, or the host.

    vendor: image reference of the real base, None if there is none.  vendor_gb: what a pull needs on disk.
    expect: facts of the vendor's base (python, torch, cuda, triton, tokenspeed-triton, nccl, gcc, glibc).
    components: names, in install order.  runtime_lock: the engine's run-time dependencies, installed only where absent.
    vendor_modules: import names of the vendor's own programs that must keep working.
    """

    name: str
    title: str
    kind: TargetKind
    components: tuple[str, ...]
    vendor: str | None = None
    vendor_gb: float = 0.0
    expect: Mapping[str, str] = field(default_factory=dict)
    replica: Replica | None = None
    toolchain: Toolchain | None = None
    runtime_lock: str | None = None
    vendor_modules: tuple[str, ...] = ()


@dataclass(frozen=True)
class Matrix:
    """The whole of matrix.yaml, validated."""

    components: Mapping[str, Component]
    targets: Mapping[str, Target]
