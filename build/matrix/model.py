"""What matrix.yaml says, as frozen dataclasses. Loading and validating lives in load.py; nothing here does I/O.

The annotations carry more than the type: a `Format` says what the text may look like, a plain string says what the
key means. The loader, docs/matrix.schema.json and docs/matrix.md are all made from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from build.matrix import formats as f

ComponentKind = Literal["overlay", "extension", "wheel"]
TargetKind = Literal["image", "host"]


class FromKey:
    """Marks the field that holds the key under which the entry stands; it is not a key of its own in the file."""


Expect = Mapping[Annotated[str, f.EXPECTED_FACT], Annotated[str, f.VERSION]]
Requires = Mapping[Annotated[str, f.FACT], Annotated[str, f.SPECIFIER]]


@dataclass(frozen=True)
class Source:
    """Where a component's source comes from: exactly one of pypi, path, git."""

    pypi: Annotated[str | None, f.PROJECT, "name on PyPI: an sdist; for an overlay, a wheel"] = None
    version: Annotated[str | None, f.VERSION, "with pypi: the version of the file"] = None
    sha256: Annotated[str | None, f.SHA256, "with pypi: the sha256 of the file"] = None
    path: Annotated[str | None, f.PATH, "a folder of the repository"] = None
    include: Annotated[
        tuple[Annotated[str, f.PATH], ...],
        "with path: the files and folders in it that can change the binary, relative to it; all of it if left out",
    ] = ()
    git: Annotated[str | None, f.GIT_URL, "URL of a git repository"] = None
    commit: Annotated[str | None, f.COMMIT, "with git: the full commit"] = None


@dataclass(frozen=True)
class Beyond:
    """A constraint that upstream states and this project goes past, and why it may."""

    stated: Annotated[str, f.SPECIFIER, "what upstream states"]
    reason: Annotated[str, f.TEXT, "what was seen to work all the same"]


@dataclass(frozen=True)
class Component:
    """One thing that is put into images: NCCL (overlay), deepinfer._C (extension), DeepGEMM and DeepEP (wheels)."""

    name: Annotated[str, FromKey]
    title: Annotated[str, f.TEXT, "as people write it"]
    kind: Annotated[
        ComponentKind,
        "overlay: files of a wheel laid over the base's own; extension: a shared object of this repository; "
        "wheel: compiled from its source into a wheel",
    ]
    version: Annotated[str, f.VERSION, "its version"]
    source: Annotated[Source, "where its source comes from"]
    module: Annotated[str | None, f.MODULE, "the import name; an overlay has none"] = None
    provides: Annotated[
        str | None, f.FACT, "overlay: the fact that it changes for the other components of the image"
    ] = None
    requires: Annotated[Requires, "what the base must have: version specifiers by fact"] = field(default_factory=dict)
    beyond: Annotated[
        Mapping[Annotated[str, f.FACT], Beyond], "where `requires` allows more than upstream states, by fact"
    ] = field(default_factory=dict)
    environment: Annotated[Mapping[Annotated[str, f.VARIABLE], Annotated[str, f.TEXT]], "variables of the compile"] = (
        field(default_factory=dict)
    )
    shims: Annotated[
        tuple[Annotated[str, f.PATH], ...], "headers of this repository that the compile includes before all others"
    ] = ()
    shims_where: Annotated[
        Requires, "the bases that the shims are for: version specifiers by fact; every base if left out"
    ] = field(default_factory=dict)
    memory_gib: Annotated[
        float, "measured peak of one compile in GiB; the compiles that run together stay below the machine's memory"
    ] = 1.0
    toolchain: Annotated[bool, "it needs nvcc and a host compiler at run time"] = False
    licence: Annotated[str, f.TEXT, "SPDX name of its licence"] = ""


@dataclass(frozen=True)
class Replica:
    """A stand-in for a vendor base: a Debian suite plus one fully pinned lock of wheels."""

    suite: Annotated[str, f.SUITE, "Debian suite"]
    python: Annotated[str, f.PYTHON, "that suite's Python"]
    lock: Annotated[str, f.PATH, "hash-locked wheels: torch, Triton and what they load"]
    apt: Annotated[tuple[Annotated[str, f.APT], ...], "Debian packages of the operating-system layer"]
    expect: Annotated[Expect, "facts that differ from the vendor's by nature"] = field(default_factory=dict)
    plant_cudart12: Annotated[
        str,
        f.PINNED,
        "the distribution whose libcudart.so.12 is planted under the root user's ~/.triton, as Triton leaves it on "
        "the real image",
    ] = ""


@dataclass(frozen=True)
class Toolchain:
    """The run-time CUDA tool chain (nvcc, nvvm, cccl, crt, cudart headers) that DeepGEMM's and DeepEP's JIT use."""

    lock: Annotated[str, f.PATH, "hash-locked wheels, laid out as a CUDA_HOME where the base lacks one"]
    minimum: Annotated[str, f.VERSION, "the oldest nvcc of a base that will do"]
    prefix: Annotated[str, f.PREFIX, "where it is laid out"] = "/opt/deepinfer/cuda"


@dataclass(frozen=True)
class Target:
    """An image to make, or the host."""

    name: Annotated[str, FromKey]
    title: Annotated[str, f.TEXT, "as people write it"]
    kind: Annotated[TargetKind, "image, or host: this machine, into a prefix"]
    components: Annotated[tuple[Annotated[str, f.NAME], ...], "names of components"]
    vendor: Annotated[str | None, f.REFERENCE, "reference of the real base; left out if there is none"] = None
    vendor_gb: Annotated[float, "GB on disk that a pull of the real base needs"] = 0.0
    expect: Annotated[
        Expect,
        "facts of the vendor's base, which stops the build where it differs; a fact left out is known once it was "
        "inspected, but a torch without `cuda` is a build for the CPU",
    ] = field(default_factory=dict)
    replica: Annotated[Replica | None, "how to make a stand-in for the base"] = None
    toolchain: Annotated[Toolchain | None, "the run-time CUDA tool chain"] = None
    runtime_lock: Annotated[
        str | None, f.PATH, "the engine's run-time dependencies, hash-locked; installed only where absent"
    ] = None
    vendor_modules: Annotated[
        tuple[Annotated[str, f.MODULE], ...], "import names of the vendor's own programs that must keep working"
    ] = ()
    runner: Annotated[
        tuple[Annotated[str, f.NAME], ...],
        "labels of the runner that builds it in continuous integration; they follow from the room that the base takes "
        "if left out",
    ] = ()


@dataclass(frozen=True)
class Document:
    """matrix.yaml itself."""

    schema: Annotated[Literal[1], "version of this format"]
    components: Annotated[Mapping[Annotated[str, f.NAME], Component], "components by name"]
    images: Annotated[Mapping[Annotated[str, f.NAME], Target], "images, and the host, by name"]


@dataclass(frozen=True)
class Matrix:
    """The whole of matrix.yaml, validated."""

    components: Mapping[str, Component]
    targets: Mapping[str, Target]
