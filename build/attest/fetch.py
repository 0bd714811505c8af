"""What is told of an image, from the registry that it was pulled from: for who has only pulled it."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from build import cache
from build.attest.facts import ATTESTATIONS
from build.attest.rows import Row, compared, settled
from build.containers import LABEL, Engine
from build.errors import EnvironmentCannot, UsageError
from build.publish.artefacts import Found, file_name, newest_first
from build.publish.location import Location
from build.publish.manifests import Manifest
from build.publish.referrers import find_attached
from build.publish.registry import Registry
from build.wheels.wheelhouse import KEY

_DIGEST = re.compile(r"(?P<name>.+)@(?P<digest>sha256:[0-9a-f]{64})")
_TAG = re.compile(r"(?P<name>.+):(?P<digest>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})")


@dataclass(frozen=True)
class Fetched:
    """Where the evidence of an image was written, and a row on the image in the registry itself."""

    folder: Path
    row: Row


def fetch_evidence(engine: Engine, reference: str) -> Fetched:
    """Fetch manifest, SBOM, provenance and signature of an image that is here under this name.

    Args:
        reference: as it was pulled, `HOST[:PORT]/PATH@sha256:…` or with a tag.

    Raises:
        UsageError: the reference names no registry.
        EnvironmentCannot: the image is not here, is none of this project's, or nothing is attached to it; the registry
            does not answer.
    """
    registry, digest = _open(engine, reference)
    image_id = engine.image_id(reference)
    if image_id is None:
        raise EnvironmentCannot(f"there is no image {reference} here", next_step=f"docker pull {reference}")
    key = engine.labels(image_id).get(f"{LABEL}.key", "")
    if not KEY.fullmatch(key):
        raise EnvironmentCannot(f"{reference} is no image of this project: it has no label {LABEL}.key")
    return fetch_from(registry, digest, image_id=image_id, key=key)


def fetch_from(registry: Registry, digest: str, *, image_id: str, key: str) -> Fetched:
    """Fetch what is attached to an image of a repository.

    Args:
        digest: of the image's manifest there, or a tag.
        image_id, key: of the image that is here.

    Raises EnvironmentCannot: there is no such image there, or nothing is attached to it.
    """
    there = registry.manifest(digest)
    if there is None:
        raise EnvironmentCannot(
            f"{registry.reference} has no image {digest}",
            cause="it was removed, or the name is another registry's",
            next_step="name it as it was pulled; --manifest FOLDER takes the evidence from a folder",
        )
    attached = find_attached(registry, there.digest)
    folder = cache.folder(f"attached/{there.digest.removeprefix('sha256:')[:16]}-{key[:12]}")
    with (
        cache.locked(f"attached-{folder.name}", waiting_for="fetch of the evidence"),
        tempfile.TemporaryDirectory(prefix=cache.LEFTOVER, dir=folder.parent) as scratch,
    ):
        _fetch(registry, attached, Path(scratch), key, {there.config, there.digest})
        _replace(folder, Path(scratch))
    return Fetched(folder, _row(there, image_id))


def _open(engine: Engine, reference: str) -> tuple[Registry, str]:
    """The repository that a reference names, and the tag or digest in it."""
    match = _DIGEST.fullmatch(reference) or _TAG.fullmatch(reference)
    path, _, name = (match["name"] if match else reference).rpartition("/")
    if match is None or not path:
        raise UsageError(
            f"--registry: {reference if '@' not in reference else 'the image'} is not named as it was pulled",
            next_step="./run verify HOST[:PORT]/PATH/deepinfer@sha256:… --registry",
        )
    where = Location.parse(path, flag="registry")
    Location.parse(f"{path}/{name}")  # the same rules hold for the last part
    return Registry.open(where, name, engine_info=engine.client.info()), match["digest"]


def _fetch(registry: Registry, attached: Sequence[Found], folder: Path, key: str, ids: set[str]) -> None:
    """Write the newest manifest that is of this image, else the newest, and what it names."""
    manifests = newest_first([found for found in attached if found.kind == "manifest"])
    if not manifests:
        raise EnvironmentCannot(
            f"the registry has nothing that says how this image was made: {registry.reference}",
            cause="it was published without, or copied from another registry without what belongs to it",
            next_step="`oras cp -r` copies both; --manifest FOLDER takes it from a folder",
        )
    place = folder / file_name("manifest", key)
    for found in (*manifests, manifests[0]):
        _take(registry, found, place)
        if _told(place).get("image_id") in ids:
            break
    sums = {kind: entry.get("sha256") for kind, entry in _entries(place).items()}
    for kind in ("sbom", "provenance", "signature"):
        of_kind = newest_first([found for found in attached if found.kind == kind])
        fitting = [found for found in of_kind if found.digest == f"sha256:{sums.get(kind)}"] or of_kind
        if fitting:
            # Another one than the manifest names is taken too: the check says that it differs.
            _take(registry, fitting[0], folder / file_name(kind, key))


def _replace(folder: Path, fetched: Path) -> None:
    """Put what was fetched in the place of what an older publication had; who reads the folder meanwhile, as another
    check of the same image does, finds every file whole.
    """
    names = sorted(path.name for path in fetched.iterdir())
    for name in names:
        (fetched / name).replace(folder / name)
    for old in folder.iterdir():
        if old.name not in names:
            old.unlink()


def _take(registry: Registry, found: Found, place: Path) -> None:
    with cache.atomic_path(place) as part:
        registry.get_blob(found.digest, part, size=found.size)


def _told(place: Path) -> dict[str, object]:
    try:
        found = json.loads(place.read_bytes())
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _entries(place: Path) -> dict[str, dict[str, object]]:
    told = _told(place).get(ATTESTATIONS)
    entries = told.items() if isinstance(told, dict) else ()
    return {str(kind): entry for kind, entry in entries if isinstance(entry, dict)}


def _row(there: Manifest, image_id: str) -> Row:
    """The image that is here against the one in the registry."""
    fact = "image id, by the registry"
    differing = [] if image_id in (there.config, there.digest) else compared("image", fact, there.config, image_id)
    return settled("image", fact, f"as {there.digest} names it", differing)[0]
