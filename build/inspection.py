"""What a base really holds: facts read from inside it, never from its tag.

The facts come from one program (`build/bases/probe/`, standard library only) that runs in the base with its
own Python, in a container without network, or on the host with the chosen interpreter. It prints JSON of this shape.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

KILLED = "it was killed by signal 9"
"""How a problem ends where the kernel, for want of memory, or somebody killed what looked into the base."""


@dataclass(frozen=True)
class Library:
    """A shared library file: its path in the base, soname, version if it tells one, and real size in bytes."""

    path: str
    soname: str
    version: str | None = None
    size: int = 0


@dataclass(frozen=True)
class Inspection:
    """Facts of one base.

    base_id: image id (`sha256:…`) or, on the host, a digest of the facts.  reference: as the user named it.
    python: "3.13.5"; python_tag: "cp313"; ext_suffix: ".cpython-313-x86_64-linux-gnu.so"; site: where packages are
        installed for everybody (purelib of the interpreter); executable: absolute path.
    torch, torch_git, torch_path, torch_lib: version, git hash, package folder, folder of its libraries; None without.
    cuda: torch.version.cuda ("13.0"), None for a CPU build.
    triton, tokenspeed_triton: versions or None.
    nccl: every libnccl.so.2 found; nccl_loaded: the one that a process that imported torch maps.
    nccl_header: version in the headers beside the loaded library; nccl_dist: distribution that owns it.
    cudart: every libcudart.so.* found on the usual paths, in site-packages and under ~/.triton of every home.
    cuda_home, nvcc: folder and version ("13.0.88") of a tool kit in the base, None without.
    gcc, glibc, libstdcxx: versions ("14.2.0", "2.41") and path of libstdc++.so.6.
    distributions: normalised name -> version of everything installed for this Python.
    closed: folders on the way to this Python's files that a user without rights may not pass.
    unreadable, unreadable_bytes: files and folders of this Python that such a user may not read (not all, if there are
        thousands), and the bytes of all of the files.
    shell: the image's SHELL, empty for the usual one.
    """

    base_id: str
    reference: str
    os: str
    machine: str
    python: str
    python_tag: str
    ext_suffix: str
    executable: str
    site: str
    torch: str | None = None
    torch_git: str | None = None
    torch_path: str | None = None
    torch_lib: str | None = None
    cuda: str | None = None
    triton: str | None = None
    tokenspeed_triton: str | None = None
    nccl: tuple[Library, ...] = ()
    nccl_loaded: str | None = None
    nccl_version: str | None = None
    nccl_header: str | None = None
    nccl_dist: str | None = None
    cudart: tuple[Library, ...] = ()
    cuda_home: str | None = None
    nvcc: str | None = None
    gcc: str | None = None
    glibc: str | None = None
    libstdcxx: str | None = None
    user: str = ""
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    distributions: Mapping[str, str] = field(default_factory=dict)
    closed: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    unreadable_bytes: int = 0
    shell: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def interrupted(self) -> bool:
        """Whether something was killed while it was looked at: that says nothing of the base, and is not kept."""
        return any(problem.endswith(KILLED) for problem in self.problems)

    @property
    def python_version(self) -> str:
        """The Python without its patch level, as locks and wheels go by: "3.13"."""
        return ".".join(self.python.split(".")[:2])

    def facts(self) -> dict[str, str | None]:
        """The facts that `expect` and `requires` speak of, by their names in matrix.yaml."""
        return {
            "python": self.python or None,
            "torch": self.torch,
            "cuda": self.cuda,
            "triton": self.triton,
            "tokenspeed-triton": self.tokenspeed_triton,
            "nccl": self.nccl_version,
            "gcc": self.gcc,
            "glibc": self.glibc,
        }

    def to_json(self) -> dict[str, Any]:
        """A JSON object; `from_json` is its inverse."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Inspection:
        """Build from what the program in the base printed. Unknown keys are an error, missing ones too."""
        fields = dict(data)
        for name in ("nccl", "cudart"):
            fields[name] = tuple(Library(**entry) for entry in fields.get(name, ()))
        for name in ("entrypoint", "command", "closed", "unreadable", "shell", "problems"):
            fields[name] = tuple(fields.get(name) or ())
        return cls(**fields)
