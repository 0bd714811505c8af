"""What lies in an OCI archive: the image by its digests, and the files that go with it as artefacts beside it.

In an archive there are no tags to fall back on: index.json lists the artefacts after the image, which is where
`oras discover --oci-layout` looks for them. Programs that want the image ask by its name and see nothing of them.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build.errors import EnvironmentCannot, UsageError
from build.publish.artefacts import EMPTY, LIMIT, Document, Found, descriptor, read_artefact
from build.publish.manifests import Manifest, sha256

REF_NAME = "org.opencontainers.image.ref.name"
INDEX = "index.json"
_SMALL = 16 << 20


@dataclass(frozen=True)
class Content:
    """What an OCI archive holds: the image's manifest, the name in it, its configuration; what is attached to it."""

    manifest: Manifest
    tag: str
    config: Mapping[str, Any]
    attached: tuple[Found, ...] = ()

    @property
    def digest(self) -> str:
        return self.manifest.digest

    @property
    def config_digest(self) -> str:
        return self.manifest.config

    @property
    def layers(self) -> list[str]:
        return list(self.config["rootfs"]["diff_ids"])

    @property
    def labels(self) -> dict[str, str]:
        return dict(self.config.get("config", {}).get("Labels") or {})


def read_layout(file: Path) -> Content:
    """Look into an OCI archive; its manifest and its configuration have to fit their digests.

    Raises:
        UsageError: there is no such file, or it is a folder, a device or a pipe.
        EnvironmentCannot: it is not a whole archive.
    """
    if file.exists() and not file.is_file():  # to open a pipe would wait for its writer
        raise UsageError(f"--from {file} is no file", next_step="copy the archive into a file, and name that")
    try:
        with tarfile.open(file, mode="r:") as archive:
            members = _members(archive)
            entries = json.loads(_take(archive, members, INDEX, _SMALL))["manifests"]
            # The image is the one that has a name; artefacts are listed without.
            (entry,) = [one for one in entries if REF_NAME in (one.get("annotations") or {})] or entries
            body = _take(archive, members, _blob(entry["digest"]), _SMALL)
            manifest = Manifest(body, str(entry["mediaType"]))
            config = _take(archive, members, _blob(manifest.config), _SMALL)
            if manifest.digest != entry["digest"] or sha256(config) != manifest.config:
                raise ValueError("its manifest does not fit its digest")
            tag = str((entry.get("annotations") or {}).get(REF_NAME, ""))
            listed = {str(one["digest"]) for one in entries if one is not entry}
            bodies = [Manifest(_take(archive, members, _blob(digest), _SMALL), "") for digest in sorted(listed)]
            attached = [read_artefact(found, manifest.digest) for found in bodies if found.digest in listed]
            content = Content(manifest, tag, json.loads(config), tuple(one for one in attached if one is not None))
            content.layers, content.labels  # noqa: B018  # raises here, where the file can be named, if they are amiss
    except FileNotFoundError:
        raise UsageError(f"there is no file {file}", next_step="`./run publish --archive FILE` writes one") from None
    except (tarfile.TarError, KeyError, ValueError, TypeError, AttributeError, EOFError) as problem:
        raise unfit(file, f"{type(problem).__name__}: {problem}"[:200]) from None
    return content


def read_attached(file: Path, found: Found) -> bytes:
    """The bytes of an attached file. Raises EnvironmentCannot where the archive does not have it whole."""
    try:
        with tarfile.open(file, mode="r:") as archive:
            data = _take(archive, _members(archive), _blob(found.digest), LIMIT)
    except (tarfile.TarError, KeyError, ValueError, EOFError) as problem:
        raise unfit(file, f"the {found.kind} beside the image: {problem}"[:200]) from None
    if sha256(data) != found.digest:
        raise unfit(file, f"the {found.kind} beside the image does not have its digest")
    return data


def add_documents(file: Path, image: Manifest, documents: Sequence[Document]) -> None:
    """Attach files to the image of an archive that skopeo has just written, in place.

    skopeo writes index.json after all blobs: from there on the archive is written anew, so that nothing stands in it
    twice and no second copy of the layers is needed.
    """
    subject = {"mediaType": image.media_type, "digest": image.digest, "size": len(image.body)}
    with tarfile.open(file, mode="r:") as archive:
        members = _members(archive)
        start = members[INDEX].offset
        kept = {member.name: member for member in archive if member.isfile() and member.offset >= start}
        tail = {name: _take(archive, kept, name, _SMALL) for name in kept}
    name = next(name for name in tail if name.removeprefix("./") == INDEX)
    index = json.loads(tail[name])
    blobs = {sha256(EMPTY): EMPTY}
    for document in documents:
        artefact = document.artefact(subject)
        data = document.path.read_bytes()
        blobs |= {sha256(data): data, artefact.digest: artefact.body}
        index["manifests"].append(descriptor(artefact))
    tail[name] = json.dumps(index).encode()
    with file.open("r+b") as handle:
        handle.truncate(start)
        handle.seek(start)
        handle.write(bytes(2 * tarfile.BLOCKSIZE))
    with tarfile.open(file, mode="a:") as archive:
        for digest, data in blobs.items():
            if _blob(digest) not in members:
                _add(archive, _blob(digest), data)
        for name, data in tail.items():
            _add(archive, name, data)


def unfit(file: Path, why: str) -> EnvironmentCannot:
    """What is said of a file that is no whole archive of ours."""
    return EnvironmentCannot(
        f"{file} is not a whole archive of an image of this project",
        cause=why,
        next_step="compare its sha256 with where it comes from; `./run publish --archive FILE` writes one",
    )


def _members(archive: tarfile.TarFile) -> dict[str, tarfile.TarInfo]:
    return {member.name.removeprefix("./"): member for member in archive if member.isfile()}


def _take(archive: tarfile.TarFile, members: Mapping[str, tarfile.TarInfo], name: str, limit: int) -> bytes:
    member = members[name]
    handle = archive.extractfile(member)
    if handle is None or member.size > limit:
        raise ValueError(f"{name} is no small file")
    return handle.read()


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o644
    archive.addfile(info, io.BytesIO(data))


def _blob(digest: str) -> str:
    algorithm, _, value = digest.partition(":")
    return f"blobs/{algorithm}/{value}"
