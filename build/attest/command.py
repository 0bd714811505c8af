"""The verb `verify`."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from build.attest.fetch import fetch_evidence
from build.attest.rows import Report, as_text
from build.attest.signing import sign as sign_manifest
from build.attest.verify import verify_image
from build.command import TROUBLE, told_of
from build.containers import Engine
from build.errors import GateFailed, UsageError
from build.image.built import built_here
from build.image.names import moving_tag
from build.matrix.load import load_matrix
from build.matrix.select import select

_ID = re.compile(r"[0-9a-f]{12,64}")
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    rf"(?:sha256:)?[0-9a-f]{{12,64}}|(?:(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\])(?::[0-9]+)?/)?{_PART}(?:/{_PART})*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
"""An image's id, or its name as Docker takes it: the engine answers others with what looks like its own failure."""


def references(image: str) -> list[str]:
    """What is meant by `image`: a name or id of an image as Docker knows it, else images of the matrix by name.

    Raises:
        UsageError: it cannot be the name of an image.
        NothingSelected: a plain name is none of the matrix.
    """
    targets = load_matrix().targets
    if ":" in image or "/" in image or (_ID.fullmatch(image) and image not in targets):
        if _REFERENCE.fullmatch(image) is None:
            raise UsageError(
                f"{image!r} cannot be the name of an image",
                cause="one name, in lower case letters, digits and . _ - between them; a digest has 64 digits",
                next_step="name it as matrix.yaml does, or as `docker images` shows it: REPOSITORY:TAG, or its id",
            )
        return [image]
    names = [name for name, target in targets.items() if target.kind == "image"]
    return [moving_tag(name) for name in select(names, image, "image")]


def run(image: str, *, manifest: Path | None, key: str, sign: bool, as_json: bool, registry: bool = False) -> int:
    """Verify images and print what was found; returns the worst exit code, 5 where a fact differs.

    What a glob selects and was not built here is left out, and said. An image that cannot be verified is told, and the
    others are verified.

    Args:
        key: the public key of the signature, or with `sign` the private key to sign with.
        registry: take manifest, SBOM and provenance from the registry that the image was pulled from.
    """
    if registry and (manifest is not None or sign):
        raise UsageError(
            "--registry fetches what is told of an image; --manifest names it, and --sign is for who built it",
            next_step="leave the others out",
        )
    chosen = references(image)
    if manifest is not None and len(chosen) > 1:
        raise UsageError("--manifest is of one image", next_step="name one image")
    engine = Engine.connect()
    if len(chosen) > 1:
        by_tag = {tag: tag.partition(":")[2] for tag in chosen}
        here = built_here(engine, list(by_tag.values()), image)
        chosen = [tag for tag, name in by_tag.items() if name in here]
    told: list[dict[str, Any]] = []
    codes = [0]
    for reference in chosen:
        try:
            report = _verified(engine, reference, manifest, key="" if sign else key, registry=registry)
            print(as_text(report), file=sys.stderr if as_json else sys.stdout, flush=True)
            told.append(report.to_json())
            codes.append(0 if report.ok else GateFailed.exit_code)
            if sign:
                _sign(report, key)
        except TROUBLE as problem:
            error = told_of(problem)
            told = [entry for entry in told if entry["image"] != reference]
            told.append({"image": reference, "ok": False, **error.to_json()})
            codes.append(error.exit_code)
    if as_json:
        print(json.dumps(told, indent=2))
    return max(codes)


def _verified(engine: Engine, reference: str, manifest: Path | None, *, key: str, registry: bool) -> Report:
    if not registry:
        return verify_image(engine, reference, manifest=manifest, key=key)
    fetched = fetch_evidence(engine, reference)
    report = verify_image(engine, reference, manifest=fetched.folder, key=key)
    return replace(report, rows=(fetched.row, *report.rows))


def _sign(report: Report, key: str) -> None:
    if not report.ok:
        raise GateFailed(f"{report.reference} is not as recorded, so it is not signed", next_step="see the facts above")
    print(f"signed: {sign_manifest(Path(report.manifest), key)}", file=sys.stderr)
