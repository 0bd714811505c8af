"""Every single fact of a manifest by name, and its sum: so that a check can say which one is not what it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

ATTESTATIONS = "attestations"
"""The manifest's key for the files beside it. They hold sums of the rest, so it is none of the facts itself."""
_NAMED_BY = ("cell", "name", "what", "path")


def manifest_facts(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Name -> value of each fact, as text: `cells[flagtree/deep_gemm].artefact.sha256` -> `63df…`.

    An entry of a list is called by what names it where it has such a field, else by its number.
    """
    facts = {name: value for name, value in manifest.items() if name != ATTESTATIONS}
    # As it will be read again: a tuple is a list in JSON, a number's text is JSON's.
    return dict(_leaves("", json.loads(json.dumps(facts))))


def fact_sums(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Name -> sha256 of the value, of each fact."""
    return {name: hashlib.sha256(value.encode()).hexdigest() for name, value in manifest_facts(manifest).items()}


def _leaves(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key in sorted(value):
            yield from _leaves(f"{name}.{key}" if name else str(key), value[key])
    elif isinstance(value, list) and value:
        labels = [_label(entry, index) for index, entry in enumerate(value)]
        if len(set(labels)) < len(labels):
            labels = [str(index) for index in range(len(value))]
        for label, entry in zip(labels, value, strict=True):
            yield from _leaves(f"{name}[{label}]", entry)
    else:
        yield name, json.dumps(value, sort_keys=True)


def _label(entry: Any, index: int) -> str:
    if isinstance(entry, Mapping):
        return next((entry[key] for key in _NAMED_BY if isinstance(entry.get(key), str)), str(index))
    return str(index)
