"""Brings together what one image is made of: decides what each part holds, and has it made or taken from the cache."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from build import cache
from build.bases.reach import opened
from build.bases.resolve import Base
from build.containers import Engine
from build.digests import file_sha256
from build.errors import BuildError, EnvironmentCannot
from build.image import lay
from build.image.describe import describe
from build.image.library_path import LibraryPath, examine
from build.image.names import engine_version, immutable_tag
from build.image.nccl import lay_nccl, nccl_site
from build.image.overlay import (
    lay_components,
    lay_engine,
    lay_runtime,
    lay_system,
    lock_versions,
    read_minimums,
    sort_runtime,
    too_old,
)
from build.image.package import pack_engine
from build.image.parts import SCRIPTS, Contents, Part, cached_part, existing_folders
from build.image.toolchain import ToolchainChoice, choose_toolchain, lay_toolchain
from build.inspection import Inspection
from build.locks import fetch_lock
from build.matrix.model import Matrix
from build.plan import Cell, TargetPlan
from build.sources import package_digest
from build.wheels.fetch import fetch_source
from build.wheels.results import CellResult


@dataclass(frozen=True)
class Collected:
    """Everything that goes into one image.

    environment: variables that the image sets for this base.
    prepared: what lay.py does inside the image: `libraries` to copy, paths that are `opened` to users.
    document: image.json.  warnings: what the user should read.
    """

    tag: str
    version: str
    parts: tuple[Part, ...]
    environment: Mapping[str, str]
    prepared: Mapping[str, Any]
    document: bytes
    warnings: tuple[str, ...]


def collect_parts(
    engine: Engine,
    plan: TargetPlan,
    *,
    base: Base,
    inspection: Inspection,
    results: Sequence[CellResult],
    matrix: Matrix,
    warm: Part,
) -> Collected:
    """Decide and lay out every part of an image but `warm`, which is made beforehand in an image without it."""
    maker = _Maker(plan, inspection, {result.cell.component.name: result for result in results})
    library_path = examine(engine, base.reference, inspection)
    copies = tuple(copy.facts() for copy in library_path.copies)
    toolchain, choice = maker.toolchain()
    runtime, ours, nccl = maker.runtime(), maker.ours(), maker.nccl()
    prepared = {"libraries": list(copies), "opened": opened(inspection)}
    system = maker.part("system", prepared, lambda tree: lay_system(tree, copies))
    version = engine_version(cache.REPOSITORY)
    tag = immutable_tag(version, plan, inspection)
    document = describe(
        plan, base=base, inspection=inspection, results=results, version=version, tag=tag,
        package=maker.package, toolchain=choice, runtime=runtime.facts, library_path=library_path,
        nccl=nccl.facts, opened=opened(inspection), warm=warm.facts, notes=base_notes(inspection),
    )  # fmt: skip
    return Collected(
        tag,
        version,
        (toolchain, runtime, ours, nccl, system, warm, maker.deepinfer(document)),
        choice.environment(inspection) | for_users(inspection.environment),
        prepared,
        document,
        tuple(_warnings(choice, runtime.facts, library_path)),
    )


def for_users(base: Mapping[str, str]) -> dict[str, str]:
    """What a base's variables lack, or say for root alone, that the image's users need."""
    changed = user_name(base)
    path = base.get("PATH", "")
    if path and str(SCRIPTS) not in path.split(":"):
        changed["PATH"] = f"{path.rstrip(':')}:{SCRIPTS}"  # last: the vendor's commands come first as before
    if base.get("HOME"):
        changed["HOME"] = lay.HOME  # else root's, in which nobody else can write
    return changed


def user_name(base: Mapping[str, str]) -> dict[str, str]:
    """The variable that names a user to those whom /etc/passwd does not know, where the base has none.

    Importing torch._inductor, which deep_ep does, asks for the user's name whatever the cache variables say, and ends
    with an error under a bare uid (`docker run --user 12345`, or a cluster that gives every pod its own).
    """
    asked = ("LOGNAME", "USER", "LNAME", "USERNAME")  # what getpass.getuser looks at, in this order
    return {} if any(base.get(name) for name in asked) else {"USER": lay.USER}


def _warnings(choice: ToolchainChoice, runtime: Mapping[str, Any], library_path: LibraryPath) -> list[str]:
    found = too_old(runtime)
    if choice.status == "added" and choice.host_compiler is None:
        found.append(choice.reason)
    if library_path.problem:
        found.append(library_path.problem)
    return found


def base_notes(inspection: Inspection) -> list[str]:
    """What is odd about a base and was left as it is, or was opened to users, in sentences for image.json."""
    notes = []
    searched = inspection.environment.get("LD_LIBRARY_PATH", "")
    if searched and "" in searched.split(":"):
        notes.append("LD_LIBRARY_PATH of the base has an empty element: programs load libraries of the current folder")
    others = [library.path for library in inspection.nccl if library.path != inspection.nccl_loaded]
    if others and inspection.nccl_loaded:
        notes.append(f"torch loads {inspection.nccl_loaded}; {' and '.join(others)} was left as it is")
    if inspection.closed:
        notes.append(f"only root could pass {' and '.join(inspection.closed)} to the base's Python; everybody can here")
    return notes


class _Maker:
    """Makes the parts of one image; each is named with all that its contents depend on."""

    def __init__(self, plan: TargetPlan, inspection: Inspection, results: Mapping[str, CellResult]) -> None:
        self.plan = plan
        self.inspection = inspection
        self.results = results
        self.package = plan.image_inputs.get("package") or package_digest(cache.REPOSITORY)
        self.folder = cache.folder(f"parts/{plan.target.name}")
        self.cells = {cell.component.name: cell for cell in plan.cells if cell.status != "unsupported"}
        places: list[PurePosixPath | str] = [inspection.site, SCRIPTS, "/opt", "/home"]
        if inspection.nccl_loaded is not None:
            places.append(nccl_site(inspection.nccl_loaded) or PurePosixPath(inspection.nccl_loaded).parent)
        self.existing = existing_folders(*places)

    def part(self, name: str, inputs: object, make: Any) -> Part:
        layout = [self.inspection.site, self.inspection.executable]
        return cached_part(self.plan.target.name, name, [layout, inputs], self.existing, make)

    def lock(self, name: str) -> tuple[Path, Path]:
        """A lock of the repository, and the folder of its wheels for this base's Python."""
        path = cache.REPOSITORY / name
        return path, fetch_lock(path, self.inspection.python_version)

    def toolchain(self) -> tuple[Part, ToolchainChoice]:
        choice = choose_toolchain(self.plan, self.inspection, None)
        named = self.plan.target.toolchain
        if choice.status != "added" or named is None:
            return self.part("toolchain", choice.status, lambda tree: Contents()), choice
        lock, wheels = self.lock(named.lock)
        choice = choose_toolchain(self.plan, self.inspection, lock_versions(wheels).get("nvidia-cuda-nvcc"))
        own = _own_cudart(self.inspection)

        def make(tree: Path) -> Contents:
            lay_toolchain(tree, wheels, PurePosixPath(named.prefix), own)
            return Contents()

        return self.part("toolchain", [file_sha256(lock), named.prefix, own], make), choice

    def runtime(self) -> Part:
        if self.plan.target.runtime_lock is None:
            return self.part("runtime", None, lambda tree: Contents())
        lock, wheels = self.lock(self.plan.target.runtime_lock)
        minimums = lock.with_suffix(".in")
        decided = sort_runtime(lock_versions(wheels), read_minimums(minimums), self.inspection.distributions)
        inputs = [file_sha256(lock), self.inspection.python_version, decided]
        return self.part("runtime", inputs, lambda tree: lay_runtime(tree, wheels, decided, self.inspection))

    def ours(self) -> Part:
        wheels = {name: self.artefact(cell) for name, cell in self.cells.items() if cell.component.kind == "wheel"}
        inputs = {name: file_sha256(wheel) for name, wheel in wheels.items()}
        return self.part("ours", inputs, lambda tree: lay_components(tree, wheels, self.inspection))

    def nccl(self) -> Part:
        cells = [cell for cell in self.cells.values() if cell.component.kind == "overlay"]
        if not cells or cells[0].component.version == self.inspection.nccl_version:
            return self.part("nccl", None, lambda tree: Contents())
        (cell,) = cells
        wheel = self.artefact(cell)
        loaded = [self.inspection.nccl_loaded, self.inspection.nccl_version, sorted(self.inspection.distributions)]
        return self.part(
            "nccl", [file_sha256(wheel), *loaded], lambda tree: lay_nccl(tree, wheel, cell, self.inspection)
        )

    def deepinfer(self, document: bytes) -> Part:
        cell = self.cells.get("_C")
        extension = self.artefact(cell) if cell is not None else None
        inputs = [hashlib.sha256(document).hexdigest(), file_sha256(extension) if extension is not None else None]

        def make(tree: Path) -> Contents:
            name = self.plan.target.name
            with tempfile.TemporaryDirectory(prefix=".part-", dir=self.folder) as scratch:
                wheel = pack_engine(cache.REPOSITORY, extension, self.inspection, Path(scratch), target=name)
                if package_digest(cache.REPOSITORY) != self.package:  # after they were copied
                    raise BuildError(
                        "the engine's sources changed while the image was being made", next_step="run the build again"
                    )
                return lay_engine(tree, wheel, document, self.inspection)

        return self.part("deepinfer", inputs, make)

    def artefact(self, cell: Cell) -> Path:
        """What a cell was compiled to, or for an overlay the wheel that was fetched."""
        result = self.results.get(cell.component.name)
        if result is not None and result.artefact is not None:
            return result.artefact
        if cell.component.kind == "overlay":
            return fetch_source(cell.component)
        raise EnvironmentCannot(
            f"{cell.name} has no compiled artefact", next_step=f"build it: ./run build --image {cell.image}"
        )


def _own_cudart(inspection: Inspection) -> str | None:
    """The CUDA runtime that torch itself loads: in the site of the packages, of torch's own major version."""
    major = (inspection.cuda or "").partition(".")[0]
    named = [library.path for library in inspection.cudart if library.soname == f"libcudart.so.{major}"]
    beside_torch = [path for path in named if path.startswith(f"{inspection.site}/")]
    return min(beside_torch or named, default=None)
