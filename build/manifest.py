"""The manifest of a finished image: what went in, what was added, what the gates found, how long it took.

Two files below the cache, `manifests/<image>/<key12>.json` and `.md`, and `last.json` / `last.md` beside them for the
last build. docs/manifest.schema.json describes the JSON form. The list of the image's contents and its provenance lie
beside them (build/attest/); the manifest names them with their sums.

How an image names its manifest: a label is part of the image, so it cannot hold the digest of a file that tells how the
image came out (gates, sizes, times). It holds the digest of image.json instead, the part that is known before assembly
and determines the image: base, components with their keys, what was replaced. The manifest repeats that document whole
(`document`) with the same digest (`document_sha256`); whoever has an image finds its manifest by that label, and a
manifest whose document does not have that digest is of another image.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from build import cache
from build.containers import LABEL
from build.digests import file_sha256
from build.gates.result import GateResult
from build.inspection import Inspection
from build.matrix.model import Source
from build.plan import TargetPlan
from build.wheels.results import CellResult

SCHEMA = 1
Attest = Callable[[Mapping[str, Any], Path], Mapping[str, Any]]
"""From the manifest, without its attestations, and the folder to write into, to the attestations."""


class BaseFacts(Protocol):
    """What is told of a base (build.bases.resolve.Base)."""

    @property
    def kind(self) -> str: ...
    @property
    def reference(self) -> str: ...
    @property
    def image_id(self) -> str: ...
    @property
    def digest(self) -> str: ...


class BuiltFacts(Protocol):
    """What is told of a finished image (build.image.assemble.Built)."""

    @property
    def image_id(self) -> str: ...
    @property
    def tags(self) -> tuple[str, ...]: ...
    @property
    def sizes(self) -> Mapping[str, int]: ...
    @property
    def labels(self) -> Mapping[str, str]: ...
    @property
    def document(self) -> Mapping[str, Any]: ...


def write_manifest(
    plan: TargetPlan,
    inspection: Inspection,
    *,
    base: BaseFacts,
    built: BuiltFacts,
    results: Sequence[CellResult],
    gates: Sequence[GateResult],
    times: Mapping[str, float],
    attest: Attest | None = None,
) -> Path:
    """Write both forms, each in one moment; returns the JSON file.

    Args:
        times: seconds by step.
        attest: writes what goes beside the manifest, and returns what the manifest says of it.

    Raises OSError when the cache has no space; the manifest of the build before is whole then.
    """
    manifest = make_manifest(plan, inspection, base=base, built=built, results=results, gates=gates, times=times)
    folder = cache.folder(f"manifests/{plan.target.name}")
    if attest is not None:
        manifest["attestations"] = attest(manifest, folder)
    text, page = json.dumps(manifest, indent=1, sort_keys=True) + "\n", as_markdown(manifest)
    name = plan.image_key[:12]
    for stem in (name, "last"):
        cache.atomic_write(folder / f"{stem}.md", page)
        cache.atomic_write(folder / f"{stem}.json", text)
    return folder / f"{name}.json"


def make_manifest(
    plan: TargetPlan,
    inspection: Inspection,
    *,
    base: BaseFacts,
    built: BuiltFacts,
    results: Sequence[CellResult],
    gates: Sequence[GateResult],
    times: Mapping[str, float],
) -> dict[str, Any]:
    """The manifest as a JSON object; no path of this machine is in it."""
    by_cell = {result.cell.name: result for result in results}
    return {
        "schema": SCHEMA,
        "image": plan.target.name,
        "title": plan.target.title,
        "created": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "image_id": built.image_id,
        "image_key": plan.image_key,
        "image_inputs": dict(plan.image_inputs),
        "tags": list(built.tags),
        "labels": dict(sorted(built.labels.items())),
        "document": dict(built.document),
        "document_sha256": document_sha256(built.document),
        "base": {"kind": base.kind, "reference": base.reference, "image_id": base.image_id, "digest": base.digest},
        "inspection": inspection.to_json(),
        "cells": [_cell(plan, index, by_cell) for index in range(len(plan.cells))],
        "layers": [{"what": what, "bytes": size} for what, size in built.sizes.items()],
        "gates": [gate.to_json() for gate in gates],
        "passed": all(gate.ok for gate in gates),
        "times": {step: round(seconds, 2) for step, seconds in times.items()},
    }


def document_sha256(document: Mapping[str, Any]) -> str:
    """Digest of image.json as it lies in the image, `sha256:…`; the label io.deepinfer.hopper.manifest holds it."""
    text = json.dumps(document, indent=1, sort_keys=True) + "\n"
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def find_manifest(image: str, labels: Mapping[str, str]) -> dict[str, Any] | None:
    """The manifest of an image by its labels, None if this cache has none that is whole and of this very image."""
    wanted = labels.get(f"{LABEL}.manifest")
    key = labels.get(f"{LABEL}.key", "")
    path = cache.folder(f"manifests/{image}") / f"{key[:12]}.json"
    try:
        manifest: dict[str, Any] = json.loads(path.read_text())
        same = document_sha256(manifest["document"]) == manifest["document_sha256"] == wanted
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return manifest if same else None


def _cell(plan: TargetPlan, index: int, results: Mapping[str, CellResult]) -> dict[str, Any]:
    cell = plan.cells[index]
    result = results.get(cell.name)
    artefact = result.artefact if result is not None else None
    return {
        "cell": cell.name,
        "title": cell.component.title,
        "version": cell.component.version,
        "kind": cell.component.kind,
        "licence": cell.component.licence,
        "status": result.status if result is not None else cell.status,
        "reason": (result.reason if result is not None else "") or cell.reason,
        "notes": list(cell.notes),
        "key": cell.key,
        "inputs": dict(sorted(cell.inputs.items())),
        "source": _source(cell.component.source),
        "artefact": None if artefact is None or not artefact.is_file() else {
            "name": artefact.name, "bytes": artefact.stat().st_size, "sha256": file_sha256(artefact),
        },
        "seconds": round(result.seconds, 2) if result is not None else 0.0,
    }  # fmt: skip


def _source(source: Source) -> dict[str, str]:
    told = {
        "pypi": source.pypi, "version": source.version, "sha256": source.sha256, "path": source.path,
        "git": source.git, "commit": source.commit,
    }  # fmt: skip
    return {name: value for name, value in told.items() if value is not None}


def as_markdown(manifest: Mapping[str, Any]) -> str:
    """The manifest as a page for people."""
    base = manifest["base"]
    lines = [
        f"# {manifest['tags'][0]}",
        "",
        f"{manifest['title']}; made {manifest['created']} on {base['kind']} `{base['reference']}`, `{base['digest']}`.",
        f"Image `{manifest['image_id']}`, key `{manifest['image_key']}`, image.json `{manifest['document_sha256']}`.",
        *_beside(manifest),
        "",
        "## Components",
        "",
        "| component | version | status | key | source | artefact | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for cell in manifest["cells"]:
        source = " ".join(f"{name} {value[:16]}" for name, value in cell["source"].items())
        made = cell["artefact"]
        artefact = f"`{made['name']}` {made['bytes'] / 1e6:.1f} MB, sha256 `{made['sha256'][:16]}`" if made else "-"
        status = "\n".join([cell["status"] + (f": {cell['reason']}" if cell["reason"] else ""), *cell["notes"]])
        columns = (cell["title"], cell["version"], status, cell["key"][:12] or "-", source, artefact, cell["seconds"])
        lines.append(_row(*columns))
    lines += ["", "## Added to the base", "", "| what | MB |", "|---|---|"]
    lines += [_row(layer["what"], f"{layer['bytes'] / 1e6:.1f}") for layer in manifest["layers"]]
    lines += ["", "## Gates", "", "| gate | state | detail | seconds |", "|---|---|---|---|"]
    lines += [
        _row(gate["name"], gate["state"], gate["skipped_reason"] or gate["detail"], gate["seconds"])
        for gate in manifest["gates"]
    ]
    lines += ["", "## Times", "", "| step | seconds |", "|---|---|"]
    lines += [_row(step, seconds) for step, seconds in manifest["times"].items()]
    lines += ["", "## The base, as inspected", "", "| fact | value |", "|---|---|"]
    lines += [_row(name, value) for name, value in _facts(manifest["inspection"]).items()]
    lines += ["", "## Labels", "", "| label | value |", "|---|---|"]
    lines += [_row(name, value) for name, value in manifest["labels"].items()]
    return "\n".join(lines) + "\n"


def _beside(manifest: Mapping[str, Any]) -> list[str]:
    """The files that go with the manifest."""
    told = manifest.get("attestations", {})
    names = {"sbom": "Contents", "provenance": "Provenance"}
    return [
        f"{label}: `{told[what]['name']}` ({told[what]['format']}), sha256 `{told[what]['sha256']}`."
        for what, label in names.items()
        if what in told
    ]


def _facts(inspection: Mapping[str, Any]) -> dict[str, Any]:
    """The single-valued facts; the lists of libraries and distributions are in the JSON form."""
    return {name: value for name, value in inspection.items() if isinstance(value, str) and value}


def _row(*columns: object) -> str:
    cells = (str(column).replace("|", "\\|").replace("\n", "<br>") for column in columns)
    return f"| {' | '.join(cells)} |"
