"""Asking a registry whether it has an image: once, with a short limit, the answer kept for a day."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from docker.errors import DockerException
from requests.exceptions import RequestException

from build import cache
from build.containers import Engine

LIMIT = 10
"""Seconds that a registry has to answer in."""
KEPT = 24 * 3600.0
"""Seconds for which an answer, yes or no, is believed."""


@dataclass(frozen=True)
class Answer:
    """What a registry said: the digest of the reference, or None and why; asked_at in seconds since the epoch."""

    reference: str
    digest: str | None
    reason: str
    asked_at: float


def ask(engine: Engine, reference: str, *, again: bool = False, now: float | None = None) -> Answer:
    """Ask the reference's registry, through the engine, for its digest.

    Args:
        again: ask even if an answer of the last 24 hours is kept.
        now: seconds since the epoch; the clock's by default.
    """
    moment = time.time() if now is None else now
    kept = answer_file(reference)
    known = _read(kept)
    if not again and known is not None and known.reference == reference and 0 <= moment - known.asked_at < KEPT:
        return known
    digest, reason = _inquire(engine, reference)
    answer = Answer(reference, digest, reason, moment)
    cache.atomic_write(kept, json.dumps(asdict(answer)))
    return answer


def answer_file(reference: str) -> Path:
    """Where the answer is kept; removing it makes the next run ask again."""
    return cache.folder("registry") / f"{hashlib.sha256(reference.encode()).hexdigest()[:16]}.json"


def _read(path: Path) -> Answer | None:
    try:
        return Answer(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def _inquire(engine: Engine, reference: str) -> tuple[str | None, str]:
    api: Any = engine.client.api  # the docker package's types end here
    usual, api.timeout = api.timeout, LIMIT
    try:
        described = api.inspect_distribution(reference)
    except (DockerException, RequestException) as problem:
        explanation = getattr(problem, "explanation", None) or str(problem)
        return None, " ".join(str(explanation).split())[:300]
    finally:
        api.timeout = usual
    platforms = [(entry.get("os"), entry.get("architecture")) for entry in described.get("Platforms") or ()]
    if platforms and ("linux", "amd64") not in platforms:
        return None, "the image is not for linux/amd64"
    return str(described["Descriptor"]["digest"]), ""
