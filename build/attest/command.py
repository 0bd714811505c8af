"""The verb `verify`."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

from build.attest.fetch import fetch_evidence
from build.attest.rows import as_text
from build.attest.signing import sign as sign_manifest
from build.attest.verify import verify_image
from build.containers import Engine
from build.errors import GateFailed, UsageError
from build.image.names import moving_tag
from build.matrix.load import load_matrix
from build.matrix.select import select


def references(image: str) -> list[str]:
    """What is meant by `image`: a name or id of an image as Docker knows it, else images of the matrix by name.

    Raises NothingSelected where a plain name is none of the matrix.
    """
    if ":" in image or "/" in image:
        return [image]
    targets = load_matrix().targets
    names = [name for name, target in targets.items() if target.kind == "image"]
    return [moving_tag(name) for name in select(names, image, "image")]


def run(image: str, *, manifest: Path | None, key: str, sign: bool, as_json: bool, registry: bool = False) -> int:
    """Verify images and print what was found; returns 0, or 5 where a fact differs.

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
    reports = []
    for reference in chosen:
        fetched = fetch_evidence(engine, reference) if registry else None
        named = manifest if fetched is None else fetched.folder
        report = verify_image(engine, reference, manifest=named, key="" if sign else key)
        if fetched is not None:
            report = replace(report, rows=(fetched.row, *report.rows))
        print(as_text(report), file=sys.stderr if as_json else sys.stdout, flush=True)
        reports.append(report)
        if sign:
            if not report.ok:
                raise GateFailed(
                    f"{reference} is not as recorded, so it is not signed", next_step="see the facts above"
                )
            print(f"signed: {sign_manifest(Path(report.manifest), key)}", file=sys.stderr)
    if as_json:
        print(json.dumps([report.to_json() for report in reports], indent=2))
    return 0 if all(report.ok for report in reports) else 5
