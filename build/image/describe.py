"""image.json: what an image says of itself, to `deepinfer env`, to the gates and to whoever has only the image."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from build.bases.resolve import Base
from build.digests import file_sha256
from build.image.library_path import LibraryPath
from build.image.toolchain import ToolchainChoice
from build.inspection import Inspection
from build.plan import TargetPlan
from build.wheels.results import CellResult

SCHEMA = 1


def declared_changes(
    nccl: Mapping[str, Any], library_path: LibraryPath, opened: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """What differs from the base on purpose: `nccl` (version, replaced, path), `cudart12` (soname, source, target …).

    `opened`: folders that everybody may `pass` and files that everybody may `read` now.

    A key is there only if there is such a change.
    """
    changes: dict[str, Any] = {}
    if nccl:
        changes["nccl"] = dict(nccl)
    for copy in library_path.copies:
        changes[copy.soname.removeprefix("lib").replace(".so.", "")] = copy.facts()
    if opened:
        changes["opened"] = {way: list(paths) for way, paths in opened.items()}
    return changes


def component_facts(plan: TargetPlan, results: Sequence[CellResult]) -> dict[str, dict[str, Any]]:
    """Every component by name: title, version, module, status (installed, unsupported), reason, key, licence.

    `artefact`: sha256 of what was installed, for two compiles of one key need not give the same bytes; null where
    there is none, as for a library that is put in the place of this machine's.
    """
    status = {result.cell.name: result for result in results}
    components = {}
    for cell in plan.cells:
        result = status.get(cell.name)
        there = cell.status != "unsupported"
        components[cell.component.name] = {
            "title": cell.component.title,
            "version": cell.component.version,
            "module": cell.component.module,
            "status": "installed" if there else "unsupported",
            "reason": (result.reason if result is not None else "") or cell.reason,
            "key": cell.key,
            "artefact": file_sha256(result.artefact) if result is not None and result.artefact is not None else None,
            "licence": cell.component.licence,
        }
    return components


def describe(
    plan: TargetPlan,
    *,
    base: Base,
    inspection: Inspection,
    results: Sequence[CellResult],
    version: str,
    tag: str,
    package: str,
    toolchain: ToolchainChoice,
    runtime: Mapping[str, Any],
    library_path: LibraryPath,
    nccl: Mapping[str, Any],
    opened: Mapping[str, Sequence[str]],
    warm: Mapping[str, Any],
    notes: Sequence[str] = (),
) -> bytes:
    """The bytes of image.json: the same for the same inputs, so that its layer is too (hence no time in it).

    warm: facts of the warm caches (`build.image.warm`); `warm` is null in an image without.
    """
    document = {
        "schema": SCHEMA,
        "image": plan.target.name,
        "title": plan.target.title,
        "version": version,
        "tag": tag,
        "key": plan.image_key,
        "package": package,
        "base": {
            "kind": base.kind, "reference": base.reference, "image_id": base.image_id, "digest": base.digest,
            "facts": inspection.facts(),
        },
        "components": component_facts(plan, results),
        "toolchain": {
            "status": toolchain.status, "reason": toolchain.reason, "path": toolchain.prefix, "nvcc": toolchain.nvcc,
            "host_compiler": toolchain.host_compiler,
        },
        "runtime": dict(runtime),
        "warm": dict(warm) or None,
        "declared": declared_changes(nccl, library_path, opened),
        "notes": [*notes, *library_path.notes, *([library_path.problem] if library_path.problem else [])],
    }  # fmt: skip
    return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()
