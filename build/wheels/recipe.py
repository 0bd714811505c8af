"""How a component is compiled, as data: arguments and environment, the same in a container and on the host.

A recipe is written against `Places`, so that it can be hashed with stand-ins for the paths: what changes the recipe
changes the cell's key, and where a machine keeps its folders does not.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from build.errors import MatrixError
from build.matrix.model import Component

INSIDE = Path(__file__).with_name("inside.py")
"""The program that carries a job out beside the compiler: standard library only, any Python >= 3.11."""

ARCHITECTURES = "9.0"
SOURCE_DATE_EPOCH = "1767225600"  # 2026-01-01: file times inside wheels, so that equal inputs give equal archives
CCACHE_SIZE = "400M"


@dataclass(frozen=True)
class Places:
    """Where a compile finds and leaves things; absolute paths of the container or of the host.

    python: the interpreter whose torch is compiled against.  source: the unpacked source.  out: folder for the product.
    work: scratch.  result: folder that receives the finished artefact and result.json.
    path: the whole PATH; a ccache masquerade folder must come first to be used.  pythonpath: build packages.
    cuda_home: None for a CPU build.  libstdcxx: the shared libstdc++.so.6 that extensions must link.
    ccache: the compiler cache's folder, None to go without.  include: further header folders (elfutils on a host).
    shims: where the component's shim headers lie, in the order of `component.shims`.
    """

    python: str
    source: str
    out: str
    work: str
    result: str
    path: tuple[str, ...]
    pythonpath: tuple[str, ...] = ()
    cuda_home: str | None = None
    libstdcxx: str | None = None
    ccache: str | None = None
    include: tuple[str, ...] = ()
    shims: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recipe:
    """One compile: `argv` in folder `cwd` with `env`; `product` is the glob of what it leaves below `out`."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = ""
    out: str = ""
    product: str = ""
    result: str = ""

    def to_job(self) -> dict[str, Any]:
        """The JSON that `inside.py` reads."""
        return {
            "argv": list(self.argv),
            "env": dict(self.env),
            "cwd": self.cwd,
            "out": self.out,
            "product": self.product,
            "result": self.result,
        }


def make_recipe(component: Component, places: Places, *, jobs: int) -> Recipe:
    """The compile of an extension or wheel component. `jobs`: compiler processes at once."""
    setup = (places.python, "setup.py")
    if component.kind == "extension":
        temporary = f"{places.work}/build"
        argv: tuple[str, ...] = (*setup, "build_ext", "--build-lib", places.out, "--build-temp", temporary)
        product = "**/*.so"
    elif component.kind == "wheel":
        # No `build` before it: bdist_wheel would run build_ext a second time.
        argv, product = (*setup, "bdist_wheel", "--dist-dir", places.out), "*.whl"
    else:
        raise MatrixError(f"component {component.name!r} is of kind {component.kind!r}, which is not compiled")
    return Recipe(argv, _environment(component, places, jobs), places.source, places.out, product, places.result)


def _environment(component: Component, places: Places, jobs: int) -> dict[str, str]:
    # Without -g0 nine tenths of an extension are debug sections, which are stripped anyway.
    flags = ["-g0", *(word for shim in places.shims for word in ("-include", shim))]
    env = {
        "PATH": ":".join(places.path),
        "HOME": places.work,
        "TMPDIR": places.work,
        "MAX_JOBS": str(jobs),
        "TORCH_CUDA_ARCH_LIST": ARCHITECTURES,
        "SOURCE_DATE_EPOCH": SOURCE_DATE_EPOCH,
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "LC_ALL": "C.UTF-8",
        "CFLAGS": " ".join(flags),
        "CXXFLAGS": " ".join(flags),
    }
    if places.pythonpath:
        env["PYTHONPATH"] = ":".join(places.pythonpath)
    if places.cuda_home is not None:
        env["CUDA_HOME"] = places.cuda_home
    if places.include:
        env["CPATH"] = ":".join(places.include)
    if places.libstdcxx is not None:
        # Named before the driver's own choice: a relocated gcc would link the static one, which crashes in std::regex.
        env["LDFLAGS"] = f"-Wl,--push-state,--no-as-needed {places.libstdcxx} -Wl,--pop-state"
    if places.ccache is not None:
        env |= {
            "CCACHE_DIR": places.ccache,
            "CCACHE_NOHASHDIR": "1",
            "CCACHE_COMPILERCHECK": "content",
            # Every header of a fresh container is new by its ctime; the contents are hashed in any case.
            "CCACHE_SLOPPINESS": "include_file_ctime,include_file_mtime",
            "CCACHE_MAXSIZE": CCACHE_SIZE,
        }
    return env | dict(component.environment)


def recipe_digest(component: Component) -> str:
    """64 hex digits over how this component is compiled and finished; the same on every machine.

    Without its shims, of which only some bases take any: a cell's key has their contents apart.
    """
    hasher = hashlib.sha256(INSIDE.read_bytes())
    if component.kind != "overlay":
        stand_ins = Places(
            "<python>", "<source>", "<out>", "<work>", "<result>", ("<path>",), ("<site>",),
            cuda_home="<cuda>", libstdcxx="<libstdc++>", ccache=None, include=(), shims=(),
        )  # fmt: skip
        job = make_recipe(component, stand_ins, jobs=1).to_job()
        hasher.update(json.dumps(job, sort_keys=True).encode())
    return hasher.hexdigest()
