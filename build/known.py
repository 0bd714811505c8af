"""The last inspection of every base, by image and kind: so that a plan needs neither Docker nor the base."""

from __future__ import annotations

import json
from pathlib import Path

from build import cache
from build.inspection import Inspection
from build.plan import BaseKind


def _file(image: str, kind: BaseKind) -> Path:
    return cache.location() / "inspections" / f"last-{image}-{kind}.json"


def remember(image: str, kind: BaseKind, inspection: Inspection) -> None:
    """Keep an inspection as the last one of this image's base, unless something was killed in the middle of it."""
    if inspection.interrupted:
        return
    cache.root()  # marked as a cache before anything lies in it
    text = json.dumps(inspection.to_json(), sort_keys=True)
    path = _file(image, kind)
    if not path.exists() or path.read_bytes() != text.encode():
        cache.atomic_write(path, text)


def recall(image: str, kind: BaseKind) -> Inspection | None:
    """The last inspection of this image's base, None if there was none or an older version wrote it."""
    try:
        return Inspection.from_json(json.loads(_file(image, kind).read_text()))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
