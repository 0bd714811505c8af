"""What an image's components were made of: the bytes that their files must have."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from build import cache
from build.digests import file_sha256
from build.plan import TargetPlan
from build.wheels.wheelhouse import Wheelhouse


def expected_files(plan: TargetPlan, document: str) -> dict[str, dict[str, str]]:
    """Module -> {path below its package's parent: sha256}, of every component whose own artefact is known here.

    Args:
        document: the text of image.json, "" if there is none. The keys that it records count before the plan's: an
            image is judged by what it was made of, even when a build would make another today. An artefact of that
            key with other bytes than the recorded ones was compiled elsewhere or again, and says nothing of it.
    """
    house = Wheelhouse(cache.root() / "wheelhouse")
    recorded = _recorded(document)
    found: dict[str, dict[str, str]] = {}
    for cell in plan.cells:
        module = cell.component.module
        facts = recorded.get(cell.component.name, {})
        key, digest = str(facts.get("key") or cell.key), str(facts.get("artefact") or "")
        artefact = house.find(key) if key and module else None
        if artefact is not None and module and (not digest or file_sha256(artefact) == digest):
            found[module] = _contents(artefact, module)
        elif digest and module and cell.component.kind == "extension" and plan.inspection is not None:
            # The artefact is the file itself: no copy of it is needed.
            found[module] = {module.replace(".", "/") + plan.inspection.ext_suffix: digest}
    return found


def _recorded(document: str) -> Mapping[str, Mapping[str, Any]]:
    try:
        components = json.loads(document or "{}").get("components", {})
        return {name: facts for name, facts in components.items() if isinstance(facts, dict)}
    except (ValueError, AttributeError):
        return {}


def _contents(artefact: Path, module: str) -> dict[str, str]:
    top = module.split(".")[0]
    if artefact.suffix != ".whl":
        return {f"{top}/{artefact.name}": file_sha256(artefact)}
    with zipfile.ZipFile(artefact) as wheel:
        names = [name for name in wheel.namelist() if name.startswith(f"{top}/") and not name.endswith("/")]
        return {name: sha256(wheel.read(name)).hexdigest() for name in names}
