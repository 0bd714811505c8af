"""Names and labels of images: what a tag may say, and what the labels tell of an image's making."""

from __future__ import annotations

import re
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from build.bases.resolve import Base
from build.call import CallFailed, call
from build.containers import LABEL
from build.errors import EnvironmentCannot, MatrixError
from build.inspection import Inspection
from build.plan import TargetPlan

REPOSITORY_NAME = "deepinfer"
_NAME = re.compile(r"[a-z0-9]+(?:[._-][a-z0-9]+)*")
_TAG_LIMIT = 128


def immutable_tag(version: str, plan: TargetPlan, inspection: Inspection) -> str:
    """`deepinfer:<version>-<image>[-replica]-torch2.11.0-cu130-py313-<key12>`: one name for one content.

    Raises MatrixError for an image whose name cannot be part of a tag.
    """
    parts = [tag_part(version), checked_name(plan.target.name)]
    if plan.base_kind == "replica":
        parts.append("replica")
    torch = (inspection.torch or "none").partition("+")[0]
    python = inspection.python_version.replace(".", "")
    parts += [f"torch{tag_part(torch)}", _cuda(inspection.cuda), f"py{tag_part(python)}", plan.image_key[:12]]
    tag = "-".join(parts)
    if len(tag) > _TAG_LIMIT:
        raise MatrixError(f"the tag {tag!r} has {len(tag)} characters; {_TAG_LIMIT} are allowed")
    return f"{REPOSITORY_NAME}:{tag}"


def moving_tag(image: str) -> str:
    """`deepinfer:<image>`, the last build of this machine that passed its gates."""
    return f"{REPOSITORY_NAME}:{checked_name(image)}"


def checked_name(image: str) -> str:
    """An image's name, if it can stand in a tag as it is: lower case letters, digits and single . _ - between them."""
    if _NAME.fullmatch(image) is None:
        raise MatrixError(
            f"{image!r} cannot be the name of an image",
            cause="it becomes part of a tag",
            next_step="use lower case letters, digits and hyphens",
        )
    return image


def tag_part(text: str) -> str:
    """Any text as part of a tag: what a tag cannot hold (the + of a local version) becomes a dot."""
    return re.sub(r"[^A-Za-z0-9_.]+", ".", text).strip(".") or "unknown"


def _cuda(version: str | None) -> str:
    return f"cu{tag_part(version).replace('.', '')}" if version else "cpu"


def engine_version(repository: Path) -> str:
    """The engine's version, as pyproject.toml has it."""
    try:
        document = tomllib.loads((repository / "pyproject.toml").read_text())
        return str(document["project"]["version"])
    except (OSError, KeyError, tomllib.TOMLDecodeError) as problem:
        raise EnvironmentCannot(
            f"pyproject.toml tells no version: {problem}", next_step="restore pyproject.toml of this repository"
        ) from problem


def revision(repository: Path) -> str:
    """The commit that is checked out, with `-modified` where files differ from it; "unknown" outside of a checkout."""
    try:
        commit = _git(repository, "rev-parse", "HEAD")
        changed = _git(repository, "status", "--porcelain", "--untracked-files=no")
    except (CallFailed, EnvironmentCannot):
        return "unknown"
    return f"{commit}-modified" if changed else commit


def _git(repository: Path, *words: str) -> str:
    """What git says of the checkout whose code runs here, whoever it belongs to: of another user's git says nothing."""
    own = ("-c", f"safe.directory={repository.resolve()}")
    return call("git", *own, "-C", repository, *words, quiet=True).stdout.strip()


def source_url(repository: Path) -> str:
    """Where the sources are published: of pyproject.toml, else a public remote of the checkout; empty if unknown."""
    document = tomllib.loads((repository / "pyproject.toml").read_text())
    urls = document.get("project", {}).get("urls", {})
    for name in ("Source", "source", "Repository", "Homepage"):
        if name in urls:
            return str(urls[name])
    try:
        remote = _git(repository, "remote", "get-url", "origin")
    except (CallFailed, EnvironmentCannot):
        return ""
    parsed = urlsplit(remote)
    # A path of this machine, or an address with a password in it, is nobody else's business.
    public = parsed.scheme == "https" and parsed.hostname and "." in parsed.hostname and "@" not in parsed.netloc
    return remote if public else ""


def image_labels(
    plan: TargetPlan, base: Base, *, version: str, document_digest: str, repository: Path, facts: dict[str, str]
) -> dict[str, str]:
    """The labels of an image.

    Args:
        document_digest: sha256 of image.json, which names every part: whoever has the image can check it.
        facts: further labels of the project's own, by short name (`nccl`, `cudart12`).
    """
    commit = revision(repository)
    standard = {
        "title": plan.target.title,
        "version": version,
        "revision": commit,
        "created": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        # Where no address is published, the commit is all that can be told of it.
        "source": source_url(repository) or f"urn:git:{commit}",
        "licenses": "Apache-2.0",
        "base.name": base.reference,
        "base.digest": base.digest,
    }
    ours = {
        "image": plan.target.name,
        "key": plan.image_key,
        "base": base.kind,
        "base.id": base.image_id,
        "manifest": f"sha256:{document_digest}",
        **facts,
    }
    labels = {f"org.opencontainers.image.{name}": value for name, value in standard.items()}
    return labels | {f"{LABEL}.{name}": value for name, value in ours.items()}
