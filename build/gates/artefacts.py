"""What the wheelhouse has of the components of an image: the bytes that its files must have."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from build import cache
from build.plan import TargetPlan
from build.wheels.wheelhouse import Wheelhouse, file_sha256


def expected_files(plan: TargetPlan, document: str) -> dict[str, dict[str, str]]:
    """Module -> {path below its package's parent: sha256}, of every artefact that is in the wheelhouse.

    Args:
        document: the text of image.json, "" if there is none. The keys that it records count before the plan's: an
            image is judged by what it was made of, even when a build would make another today.
    """
    house = Wheelhouse(cache.root() / "wheelhouse")
    recorded = _recorded_keys(document)
    found: dict[str, dict[str, str]] = {}
    for cell in plan.cells:
        key = recorded.get(cell.component.name) or cell.key
        artefact = house.find(key) if key and cell.component.module else None
        if artefact is not None and cell.component.module:
            found[cell.component.module] = _contents(artefact, cell.component.module)
    return found


def _recorded_keys(document: str) -> Mapping[str, str]:
    try:
        components = json.loads(document or "{}").get("components", {})
        return {name: str(facts["key"]) for name, facts in components.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _contents(artefact: Path, module: str) -> dict[str, str]:
    top = module.split(".")[0]
    if artefact.suffix != ".whl":
        return {f"{top}/{artefact.name}": file_sha256(artefact)}
    with zipfile.ZipFile(artefact) as wheel:
        names = [name for name in wheel.namelist() if name.startswith(f"{top}/") and not name.endswith("/")]
        return {name: sha256(wheel.read(name)).hexdigest() for name in names}
