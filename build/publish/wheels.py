"""Compiled components in a registry, by their key: what one machine of a matrix compiled, the others fetch.

A component is an OCI artifact of the repository `deepinfer-components`, its tag the cell's key: one layer, the wheel
or the extension, and a configuration that is the wheelhouse's own record of it. The registry checks neither; who
fetches one does: the layer has to have the hash that the record tells, and the record the key that was asked for.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from build import cache
from build.containers import Engine
from build.errors import EnvironmentCannot
from build.publish.connection import Damaged
from build.publish.location import COMPONENTS, Location
from build.publish.manifests import OCI_MANIFEST, Manifest, sha256
from build.publish.registry import Registry
from build.wheels.cell import lock_name
from build.wheels.fetch import told_space
from build.wheels.wheelhouse import Wheelhouse

RECORD = "application/vnd.deepinfer.component.record.v1+json"
ARTEFACT = "application/vnd.deepinfer.component.v1"


class WheelRefused(EnvironmentCannot):
    """What a registry has under a key is not what its record says, or is of another key."""


def components_of(where: Location, engine: Engine | None = None) -> Registry:
    """The repository of components in a registry, with this user's credentials."""
    info = engine.client.info() if engine is not None else None
    return Registry.open(where, COMPONENTS, engine_info=info)


def push_wheels(registry: Registry, keys: Sequence[str], house: Wheelhouse | None = None) -> dict[str, str]:
    """Push what the wheelhouse has under these keys; returns per key: pushed, there, or absent (not compiled here).

    A key that the registry has already stays as it is: equal keys mean equal inputs, whoever compiled.
    """
    store = house or _house()
    return {key: _push(registry, key, store) for key in keys}


def _push(registry: Registry, key: str, house: Wheelhouse) -> str:
    entry = house.entry(key)
    if entry is None:
        return "absent"
    if registry.manifest(key) is not None:
        return "there"
    record = json.dumps({**entry.meta, "key": key}, indent=1, sort_keys=True).encode()
    digest = f"sha256:{entry.meta['sha256']}"
    registry.put_blob(record, sha256(record))
    registry.put_blob(entry.artefact, digest)
    document = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": {"mediaType": RECORD, "digest": sha256(record), "size": len(record)},
        "layers": [
            {
                "mediaType": ARTEFACT, "digest": digest, "size": entry.meta["size"],
                "annotations": {"org.opencontainers.image.title": entry.artefact.name},
            }
        ],
    }  # fmt: skip
    # The tag comes last: who finds it finds all of it.
    registry.put_manifest(key, Manifest(json.dumps(document, sort_keys=True).encode(), OCI_MANIFEST))
    return "pushed"


def pull_wheel(registry: Registry, key: str, house: Wheelhouse | None = None) -> Path | None:
    """Fetch a key's component into the wheelhouse; returns the kept file, None where the registry has none.

    Raises:
        WheelRefused: it does not fit its hash, its record, or the key. Nothing is kept of it.
        RegistryCannot: the registry does not answer.
    """
    store = house or _house()
    with cache.locked(lock_name(key), waiting_for=f"component {key[:12]}"), told_space(store.root):
        found = store.find(key)
        try:
            manifest = registry.manifest(key) if found is None else None
        except Damaged as problem:
            raise _refused(registry, key, problem.what) from None
        if found is not None or manifest is None:
            return found
        with tempfile.TemporaryDirectory(prefix=".part-fetched-", dir=cache.folder("work")) as scratch:
            try:
                record = _record(registry, manifest, key, Path(scratch))
                artefact = Path(scratch) / str(record["artefact"])
                registry.get_blob(f"sha256:{record['sha256']}", artefact, size=record["size"])
            except Damaged as problem:
                raise _refused(registry, key, problem.what) from None
            return store.put(key, artefact, {**record, "fetched_from": registry.reference})


def pull_missing(where: Location, keys: Sequence[str], house: Wheelhouse, engine: Engine | None = None) -> list[str]:
    """Fetch what the wheelhouse lacks and the registry has; returns the keys that came. Refused ones are told.

    Raises RegistryCannot where the registry does not answer: it was asked for by name.
    """
    registry = components_of(where, engine)
    came = []
    for key in keys:
        if house.find(key) is not None:
            continue
        try:
            if pull_wheel(registry, key, house) is not None:
                came.append(key)
                print(f"fetched component {key[:12]} from {registry.reference}", file=sys.stderr, flush=True)
        except WheelRefused as problem:
            print(f"{problem}\n  it is compiled here instead", file=sys.stderr, flush=True)
    return came


def _record(registry: Registry, manifest: Manifest, key: str, scratch: Path) -> dict[str, Any]:
    """The record of a component, as far as it is believed: of this key, of this one layer, with a plain file name."""
    try:
        config, (layer,) = manifest.document["config"], manifest.document["layers"]
        if config["mediaType"] != RECORD or layer["mediaType"] != ARTEFACT or config["size"] > 1 << 20:
            raise ValueError("it is not a component")
        file = scratch / ".record"
        registry.get_blob(str(config["digest"]), file, size=int(config["size"]))
        record: Mapping[str, Any] = json.loads(file.read_bytes())
        name, size = record["artefact"], record["size"]
        if record["key"] != key:
            raise ValueError(f"it was pushed as {str(record['key'])[:12]}, and lies under another key")
        if layer["digest"] != f"sha256:{record['sha256']}" or not isinstance(size, int) or layer["size"] != size:
            raise ValueError("its layer is not the file that its record tells")
        if not isinstance(name, str) or Path(name).name != name or name.startswith("."):
            raise ValueError("its file has no plain name")
    except (KeyError, ValueError, TypeError) as problem:
        raise _refused(registry, key, str(problem)) from None
    return dict(record)


def _refused(registry: Registry, key: str, why: str) -> WheelRefused:
    return WheelRefused(
        f"{registry.reference}:{key[:12]}… is refused: {why}",
        cause="it was damaged, altered, or pushed by something else",
        next_step="remove that tag from the registry, or build without --wheels-from",
    )


def _house() -> Wheelhouse:
    return Wheelhouse(cache.root() / "wheelhouse")
