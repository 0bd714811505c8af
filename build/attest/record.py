"""Writes the SBOM and the provenance of a finished image beside its manifest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from build.attest.provenance import Layers, make_provenance
from build.attest.sbom import FORMAT, Subject, make_sbom
from build.cache import atomic_write
from build.containers import Engine
from build.digests import file_sha256
from build.inspection import Inspection
from build.plan import TargetPlan

LABEL = "org.opencontainers.image"
SETTINGS = ("Cmd", "Entrypoint", "Env", "ExposedPorts", "StopSignal", "User", "Volumes", "WorkingDir")


def record(
    engine: Engine,
    plan: TargetPlan,
    inspection: Inspection,
    inventory: Mapping[str, Any],
    manifest: Mapping[str, Any],
    folder: Path,
) -> dict[str, Any]:
    """Write `<key12>.cdx.json` and `<key12>.provenance.json` into `folder`, each in one moment.

    Args:
        inventory: what the image holds, as `run_gates` gives it.  manifest: without its attestations.

    Returns what the manifest says of them: name, sha256 and format of each, by `sbom` and `provenance`.
    """
    stem = manifest["image_key"][:12]
    sbom = _write(folder / f"{stem}.cdx.json", make_sbom(subject_of(manifest), inventory), FORMAT)
    statement = make_provenance(
        manifest, target=plan.target, inspection=inspection, sbom=sbom, engine=str(engine.client.version()["Version"]),
        layers=image_layers(engine, manifest["image_id"], manifest["base"]["image_id"]),
    )  # fmt: skip
    text = json.dumps(statement, indent=1, sort_keys=True) + "\n"
    return {"sbom": sbom, "provenance": _write(folder / f"{stem}.provenance.json", text, statement["predicateType"])}


def subject_of(manifest: Mapping[str, Any]) -> Subject:
    """The image of a manifest, as its SBOM names it."""
    labels = manifest["labels"]
    return Subject(
        tag=manifest["tags"][0],
        version=labels.get(f"{LABEL}.version", ""),
        image_id=manifest["image_id"],
        title=manifest["title"],
        created=labels.get(f"{LABEL}.created") or manifest["created"],
        base=manifest["inspection"]["distributions"],
    )


def image_layers(engine: Engine, image: str, base: str) -> Layers:
    """The layers of an image on its base, and its settings; both images have to be here."""
    layers = engine.image_config(image)["RootFS"]["Layers"]
    return Layers(tuple(layers), len(engine.image_config(base)["RootFS"]["Layers"]), image_settings(engine, image))


def image_settings(engine: Engine, image: str) -> dict[str, Any]:
    """What an image is set to run, labels apart; HEALTHCHECK is left out, which an OCI archive does not keep."""
    config = engine.image_config(image)["Config"]
    return {name: config.get(name) or None for name in SETTINGS}


def _write(path: Path, text: str, form: str) -> dict[str, str]:
    atomic_write(path, text)
    return {"name": path.name, "sha256": file_sha256(path), "format": form}
