"""A registry's HTTP API: manifests and blobs of one repository, with hashes checked."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from build.publish.connection import Connection
from build.publish.credentials import Credentials, find_credentials
from build.publish.location import Location
from build.publish.manifests import MANIFESTS, OCI_INDEX, Manifest

_LIMIT = 8 << 20
"""Bytes of a manifest; registries allow 4 MiB."""
_PAGES = 20
"""Pages of a list that are read; one registry or another gives a hundred entries on a page."""


class Registry:
    """One repository of a registry.

    Args:
        plain, patience, pauses: see Connection.
    """

    def __init__(
        self, where: Location, name: str, *, credentials: Credentials | None = None, plain: bool = False,
        patience: float = 60.0, pauses: Sequence[float] | None = None,
    ) -> None:  # fmt: skip
        self.where = where
        self.repository = where.repository(name)
        self.reference = where.reference(name)
        self._connection = Connection(
            where, name, credentials=credentials, plain=plain, patience=patience, pauses=pauses
        )

    @classmethod
    def open(
        cls, where: Location, name: str, *, engine_info: Mapping[str, Any] | None = None, patience: float = 60.0
    ) -> Registry:
        """A repository with the credentials of this user, HTTP allowed where the engine allows it."""
        found = find_credentials(where.host)
        return cls(where, name, credentials=found, plain=where.may_be_plain(engine_info), patience=patience)

    def manifest(self, reference: str) -> Manifest | None:
        """The manifest of a tag or digest, None if there is none. Raises RegistryCannot."""

        def operation() -> Manifest | None:
            got = self._connection.send(
                "GET", f"manifests/{reference}", headers={"Accept": ", ".join(MANIFESTS)}, stream=True
            )
            with got:
                if got.status_code == 404:
                    return None
                self._connection.expect(got, 200)
                body = b"".join(self._connection.chunks(got, _LIMIT))
            found = Manifest(body, got.headers.get("Content-Type", MANIFESTS[0]).partition(";")[0])
            promised = {got.headers.get("Docker-Content-Digest", found.digest)}
            if reference.startswith("sha256:"):
                promised.add(reference)
            if promised != {found.digest}:
                raise self._connection.damaged(f"its manifest of {reference} does not have its digest")
            return found

        return self._connection.patiently(f"asking for {reference}", operation)

    def put_manifest(self, tag: str, manifest: Manifest) -> bool:
        """Make a tag name this manifest, in one moment, or store it under its own digest. Raises RegistryCannot.

        Returns whether the registry itself keeps the list of what refers to the manifest's subject (OCI 1.1).
        """

        def operation() -> bool:
            headers = {"Content-Type": manifest.media_type}
            with self._connection.send("PUT", f"manifests/{tag}", headers=headers, data=manifest.body) as got:
                self._connection.expect(got, 201)
                return "OCI-Subject" in got.headers

        return self._connection.patiently(f"moving the tag {tag}", operation)

    def referrers(self, digest: str) -> list[Any] | None:
        """Descriptors of what refers to a manifest, None where the registry keeps no such list."""

        def operation() -> list[Any] | None:
            found: list[Any] = []
            place = f"referrers/{digest}"
            for _ in range(_PAGES):
                with self._connection.send("GET", place, headers={"Accept": OCI_INDEX}, stream=True) as got:
                    if got.status_code != 200 or OCI_INDEX not in got.headers.get("Content-Type", ""):
                        return found or None
                    page = Manifest(b"".join(self._connection.chunks(got, _LIMIT)), OCI_INDEX).document
                    following = got.links.get("next", {}).get("url", "")
                entries = page.get("manifests")
                found += entries if isinstance(entries, list) else []
                if not following:
                    break
                place = self._connection.place(following)
            return found

        return self._connection.patiently("asking what belongs to the image", operation)

    def put_blob(self, content: bytes | Path, digest: str) -> None:
        """Store a blob, if it is not there yet. Raises RegistryCannot."""

        def operation() -> None:
            with self._connection.send("HEAD", f"blobs/{digest}") as known:
                if known.status_code == 200:
                    return
            with self._connection.send("POST", "blobs/uploads/") as begun:
                self._connection.expect(begun, 202)
                place = self._connection.place(begun.headers.get("Location", ""))
            place += ("&" if "?" in place else "?") + f"digest={digest}"
            headers = {"Content-Type": "application/octet-stream"}
            if isinstance(content, bytes):
                ended = self._connection.send("PUT", place, headers=headers, data=content)
            else:
                with content.open("rb") as file:
                    ended = self._connection.send("PUT", place, headers=headers, data=file)
            with ended:
                self._connection.expect(ended, 201)

        self._connection.patiently("sending a blob", operation)

    def try_upload(self) -> None:
        """Begin an upload and take it back. Raises RegistryCannot where nothing can be written there."""

        def operation() -> None:
            with self._connection.send("POST", "blobs/uploads/") as begun:
                self._connection.expect(begun, 202)
                place = self._connection.place(begun.headers.get("Location", ""))
            self._connection.send("DELETE", place).close()

        self._connection.patiently("beginning an upload", operation)

    def get_blob(self, digest: str, target: Path, *, size: int) -> None:
        """Write a blob to a file of the caller's. Raises RegistryCannot; the file may then hold anything.

        Args:
            size: bytes that it has to have.
        """

        def operation() -> None:
            with target.open("wb") as file:
                for chunk in self._blob(digest, size):
                    file.write(chunk)

        self._connection.patiently("fetching a blob", operation)

    def read_blob(self, digest: str, *, size: int, begin: Callable[[], Callable[[bytes], object]]) -> None:
        """Give a blob to a function, piece by piece. Raises RegistryCannot when what was given is not the blob.

        Args:
            begin: makes the function; called anew for each attempt.
        """

        def operation() -> None:
            take = begin()
            for chunk in self._blob(digest, size):
                take(chunk)

        self._connection.patiently("reading a blob", operation)

    def _blob(self, digest: str, size: int) -> Iterator[bytes]:
        """The pieces of a blob; after the last it is known whether they were it."""
        hashed, seen = hashlib.sha256(), 0
        with self._connection.send("GET", f"blobs/{digest}", stream=True) as got:
            self._connection.expect(got, 200)
            for chunk in self._connection.chunks(got, size):
                hashed.update(chunk)
                seen += len(chunk)
                yield chunk
        if f"sha256:{hashed.hexdigest()}" != digest or seen != size:
            raise self._connection.damaged(f"what it gave for {digest[:19]}… does not have that digest")
