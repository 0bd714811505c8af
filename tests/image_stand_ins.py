"""What the tests of images are made with: facts of a base, wheels and compiled files that say just enough."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from build.containers import Engine
from build.inspection import Inspection, Library
from build.matrix.model import Component, Source, Target, Toolchain
from build.plan import Cell, CellStatus, TargetPlan

SITE = "/usr/local/lib/python3.13/dist-packages"
NCCL = f"{SITE}/nvidia/nccl/lib/libnccl.so.2"
TRITON_CUDART = "/root/.triton/nvidia/cudart/cuda_cudart-linux-x86_64-12.8.57-archive/lib/libcudart.so.12.8.57"
EXECUTABLE_BIT = 0o100755 << 16


def base_facts(**changes: object) -> Inspection:
    """A CUDA 13 base with NCCL in a wheel, no nvcc, and Triton's CUDA 12 runtime in the root user's home."""
    facts: dict[str, object] = {
        "base_id": "sha256:" + "b" * 64,
        "reference": "deepinfer-base:stand-in",
        "os": "Debian GNU/Linux 13 (trixie)",
        "machine": "x86_64",
        "python": "3.13.5",
        "python_tag": "cp313",
        "ext_suffix": ".cpython-313-x86_64-linux-gnu.so",
        "executable": "/usr/bin/python3",
        "site": SITE,
        "torch": "2.11.0+cu130",
        "cuda": "13.0",
        "nccl_loaded": NCCL,
        "nccl_version": "2.28.9",
        "gcc": "14.2.0",
        "cudart": (
            Library(TRITON_CUDART, "libcudart.so.12", "12.8.57"),
            Library(f"{SITE}/nvidia/cu13/lib/libcudart.so.13", "libcudart.so.13", "13.0.96"),
        ),
        "distributions": {"torch": "2.11.0", "nvidia-nccl-cu13": "2.28.9", "packaging": "21.0"},
    }
    return Inspection(**{**facts, **changes})  # type: ignore[arg-type]


def component(name: str, kind: str = "wheel", *, version: str = "1.0", toolchain: bool = False) -> Component:
    """A component without constraints."""
    return Component(
        name,
        name.upper(),
        kind,
        version,
        Source(pypi=f"stand-in-{name}"),
        module=name,
        toolchain=toolchain,  # type: ignore[arg-type]
    )


def plan_of(
    cells: Mapping[str, tuple[Component, CellStatus]] | None = None, *, name: str = "stand-in", **changes: object
) -> TargetPlan:
    """A plan of an image with the given cells."""
    made = tuple(Cell(name, part, status, key="c" * 64) for part, status in (cells or {}).values())
    target = Target(
        name, "Stand-in", "image", tuple(cells or {}), toolchain=Toolchain("images/flagtree/toolchain.lock", "12.9")
    )
    facts: dict[str, object] = {"inspection": None, "base_kind": "replica", "image_key": "0123456789abcdef" * 4}
    return TargetPlan(target=target, cells=made, **{**facts, **changes})  # type: ignore[arg-type]


def make_wheel(
    folder: Path,
    name: str,
    version: str,
    files: Mapping[str, bytes],
    *,
    licence: str | None = "MIT\n",
    executable: tuple[str, ...] = (),
) -> Path:
    """A wheel of these files with a true RECORD."""
    info = f"{name}-{version}.dist-info"
    contents = dict(files)
    contents[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()
    contents[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    if licence is not None:
        contents[f"{info}/licenses/LICENSE"] = licence.encode()
    record = "".join(f"{path},sha256={_digest(data)},{len(data)}\n" for path, data in contents.items())
    contents[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, data in contents.items():
            entry = zipfile.ZipInfo(path, (2026, 1, 1, 0, 0, 0))
            if path in executable:
                entry.external_attr = EXECUTABLE_BIT
            archive.writestr(entry, data)
    return wheel


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


def make_extension(folder: Path, inspection: Inspection) -> Path:
    """A file that says of itself that it is deepinfer._C for this base; enough to be packed, not to be loaded."""
    fields = {"python": inspection.python_tag, "torch": inspection.torch, "torch_git": "", "cuda": inspection.cuda}
    path = folder / f"_C{inspection.ext_suffix}"
    path.write_bytes(b"\x7fELF" + bytes(60) + b"DEEPINFER-C-ABI " + json.dumps(fields).encode() + b"\0")
    return path


def load_empty(engine: Engine, architecture: str) -> str:
    """Load an image with one empty file, for a machine of this kind; returns its id."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("empty"))
    config = {
        "architecture": architecture,
        "os": "linux",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer.getvalue()).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "Layers": ["layer.tar"], "RepoTags": []}]
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as archive:
        for name, data in (
            ("config.json", json.dumps(config).encode()),
            ("manifest.json", json.dumps(manifest).encode()),
            ("layer.tar", layer.getvalue()),
        ):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    (image,) = engine.client.images.load(whole.getvalue())
    return str(image.id)
