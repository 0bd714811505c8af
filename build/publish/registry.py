"""A registry's HTTP API: manifests and blobs of one repository, with hashes checked and passing troubles waited out."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urljoin

import requests

from build.errors import EnvironmentCannot
from build.publish import login
from build.publish.credentials import HOW, Credentials, find_credentials
from build.publish.location import Location
from build.publish.manifests import MANIFESTS, OCI_INDEX, Manifest
from build.publish.words import plain_words, said

T = TypeVar("T")

PAUSES = (1.0, 2.0, 4.0)
"""Seconds before each further attempt, where an attempt failed for a reason that may pass."""
PASSING = (408, 425, 429, 500, 502, 503, 504, 507)
_LIMIT = 8 << 20
"""Bytes of a manifest; registries allow 4 MiB."""
_PAGES = 20
"""Pages of a list that are read; one registry or another gives a hundred entries on a page."""


class RegistryCannot(EnvironmentCannot):
    """The registry is down, too slow, full, refuses the password, or answers what it must not."""


class Damaged(RegistryCannot):
    """What the registry gave does not have the digest that it was asked by, or that came with it."""


class _Passing(Exception):
    """An attempt failed for a reason that may pass."""


class Registry:
    """One repository of a registry.

    Args:
        plain: HTTP is allowed where the registry speaks no TLS.
        patience: seconds without a byte after which an attempt has failed.
        pauses: seconds before each further attempt.
    """

    def __init__(
        self, where: Location, name: str, *, credentials: Credentials | None = None, plain: bool = False,
        patience: float = 60.0, pauses: Sequence[float] | None = None,
    ) -> None:  # fmt: skip
        self.where = where
        self.repository = where.repository(name)
        self.reference = where.reference(name)
        self._credentials = credentials
        self._plain = plain
        self._patience = patience
        self._pauses = PAUSES if pauses is None else tuple(pauses)
        self._header = login.Header()
        self._session = requests.Session()
        # No proxy leads to this machine itself, whatever NO_PROXY forgets; Docker's engine takes it so, too.
        self._proxies = {"http": "", "https": ""} if where.may_be_plain() else {}
        own = Path("/etc/docker/certs.d") / where.host / "ca.crt"
        if own.is_file():
            self._session.verify = str(own)  # where Docker's engine looks for it, too
        self._base = ""

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
            got = self._send("GET", f"manifests/{reference}", headers={"Accept": ", ".join(MANIFESTS)}, stream=True)
            with got:
                if got.status_code == 404:
                    return None
                self._expect(got, 200)
                body = b"".join(self._chunks(got, _LIMIT))
            found = Manifest(body, got.headers.get("Content-Type", MANIFESTS[0]).partition(";")[0])
            promised = {got.headers.get("Docker-Content-Digest", found.digest)}
            if reference.startswith("sha256:"):
                promised.add(reference)
            if promised != {found.digest}:
                raise self._damaged(f"its manifest of {reference} does not have its digest")
            return found

        return self._patiently(f"asking for {reference}", operation)

    def put_manifest(self, tag: str, manifest: Manifest) -> bool:
        """Make a tag name this manifest, in one moment, or store it under its own digest. Raises RegistryCannot.

        Returns whether the registry itself keeps the list of what refers to the manifest's subject (OCI 1.1).
        """

        def operation() -> bool:
            headers = {"Content-Type": manifest.media_type}
            with self._send("PUT", f"manifests/{tag}", headers=headers, data=manifest.body) as got:
                self._expect(got, 201)
                return "OCI-Subject" in got.headers

        return self._patiently(f"moving the tag {tag}", operation)

    def referrers(self, digest: str) -> list[Any] | None:
        """Descriptors of what refers to a manifest, None where the registry keeps no such list."""

        def operation() -> list[Any] | None:
            found: list[Any] = []
            place = f"referrers/{digest}"
            for _ in range(_PAGES):
                with self._send("GET", place, headers={"Accept": OCI_INDEX}, stream=True) as got:
                    if got.status_code != 200 or OCI_INDEX not in got.headers.get("Content-Type", ""):
                        return found or None
                    page = Manifest(b"".join(self._chunks(got, _LIMIT)), OCI_INDEX).document
                    following = got.links.get("next", {}).get("url", "")
                found += list(page.get("manifests") or ())
                if not following:
                    break
                place = urljoin(f"{self._base}/", following)
            return found

        return self._patiently("asking what belongs to the image", operation)

    def put_blob(self, content: bytes | Path, digest: str) -> None:
        """Store a blob, if it is not there yet. Raises RegistryCannot."""

        def operation() -> None:
            with self._send("HEAD", f"blobs/{digest}") as known:
                if known.status_code == 200:
                    return
            with self._send("POST", "blobs/uploads/") as begun:
                self._expect(begun, 202)
                place = urljoin(f"{self._base}/", begun.headers.get("Location", ""))
            place += ("&" if "?" in place else "?") + f"digest={digest}"
            headers = {"Content-Type": "application/octet-stream"}
            if isinstance(content, bytes):
                ended = self._send("PUT", place, headers=headers, data=content)
            else:
                with content.open("rb") as file:
                    ended = self._send("PUT", place, headers=headers, data=file)
            with ended:
                self._expect(ended, 201)

        self._patiently("sending a blob", operation)

    def try_upload(self) -> None:
        """Begin an upload and take it back. Raises RegistryCannot where nothing can be written there."""

        def operation() -> None:
            with self._send("POST", "blobs/uploads/") as begun:
                self._expect(begun, 202)
                place = urljoin(f"{self._base}/", begun.headers.get("Location", ""))
            self._send("DELETE", place).close()

        self._patiently("beginning an upload", operation)

    def get_blob(self, digest: str, target: Path, *, size: int) -> None:
        """Write a blob to a file of the caller's. Raises RegistryCannot; the file may then hold anything.

        Args:
            size: bytes that it has to have.
        """

        def operation() -> None:
            with target.open("wb") as file:
                for chunk in self._blob(digest, size):
                    file.write(chunk)

        self._patiently("fetching a blob", operation)

    def read_blob(self, digest: str, *, size: int, begin: Callable[[], Callable[[bytes], object]]) -> None:
        """Give a blob to a function, piece by piece. Raises RegistryCannot when what was given is not the blob.

        Args:
            begin: makes the function; called anew for each attempt.
        """

        def operation() -> None:
            take = begin()
            for chunk in self._blob(digest, size):
                take(chunk)

        self._patiently("reading a blob", operation)

    def _blob(self, digest: str, size: int) -> Iterator[bytes]:
        """The pieces of a blob; after the last it is known whether they were it."""
        hashed, seen = hashlib.sha256(), 0
        with self._send("GET", f"blobs/{digest}", stream=True) as got:
            self._expect(got, 200)
            for chunk in self._chunks(got, size):
                hashed.update(chunk)
                seen += len(chunk)
                yield chunk
        if f"sha256:{hashed.hexdigest()}" != digest or seen != size:
            raise self._damaged(f"what it gave for {digest[:19]}… does not have that digest")

    def _patiently(self, what: str, operation: Callable[[], T]) -> T:
        pauses = [*self._pauses, None]
        for pause in pauses:
            try:
                return operation()
            except _Passing as problem:
                if pause is None:
                    raise self._cannot(
                        f"{what} failed {len(pauses)} times",
                        cause=str(problem),
                        next_step="see to the registry, then run the same command again: it goes on where it stopped",
                    ) from None
                print(f"{self.where.host}: {what}: {problem}; again in {pause:g} s", file=sys.stderr, flush=True)
                time.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    def _send(self, method: str, path: str, **options: Any) -> requests.Response:
        """One request, logged in if it must be. A body that is a file is sent from its start."""
        url = path if "://" in path else f"{self._find_base()}/v2/{self.repository}/{path}"
        got = self._raw(method, url, **options)
        if got.status_code == 401:
            got.close()
            self._log_in(got)
            if hasattr(options.get("data"), "seek"):
                options["data"].seek(0)
            got = self._raw(method, url, **options)
        if got.status_code in (401, 403):
            raise self._refused(said(got))
        if got.status_code in PASSING:
            raise _Passing(said(got))
        return got

    def _raw(self, method: str, url: str, **options: Any) -> requests.Response:
        try:
            return self._session.request(
                method, url, auth=self._header, timeout=(10, self._patience), proxies=self._proxies, **options
            )
        except requests.exceptions.SSLError as problem:
            raise self._cannot(
                "its certificate is not trusted here, or it speaks no TLS", cause=plain_words(problem),
                next_step=f"put its CA into /etc/docker/certs.d/{self.where.host}/ca.crt, which Docker reads as well",
            ) from None  # fmt: skip
        except requests.exceptions.Timeout:
            raise _Passing(f"it gave no answer within {self._patience:g} s") from None
        except requests.exceptions.RequestException as problem:
            raise _Passing(plain_words(problem)) from None

    def _log_in(self, got: requests.Response) -> None:
        try:
            self._header = login.answer(
                self._session, got.headers.get("WWW-Authenticate", ""), self._credentials,
                plain=self._plain, timeout=self._patience,
            )  # fmt: skip
        except login.Refused as problem:
            raise self._refused(str(problem)) from None
        except (requests.exceptions.RequestException, ValueError) as problem:
            raise _Passing(f"its token service: {plain_words(problem)}") from None

    def _find_base(self) -> str:
        """https://HOST, or http://HOST where that is allowed and TLS is not spoken."""
        if not self._base:
            secure = f"https://{self.where.api_host}"
            if self._plain:
                try:
                    limits = (10, self._patience)
                    probe = self._session.get(
                        f"{secure}/v2/", auth=login.Header(), timeout=limits, proxies=self._proxies
                    )
                    probe.close()
                except requests.exceptions.SSLError as problem:
                    if "certificate" not in str(problem).lower():
                        secure = f"http://{self.where.api_host}"
                except requests.exceptions.Timeout:
                    raise _Passing(f"it gave no answer within {self._patience:g} s") from None
                except requests.exceptions.RequestException as problem:
                    raise _Passing(plain_words(problem)) from None
            self._base = secure
        return self._base

    def _chunks(self, got: requests.Response, limit: int) -> Iterator[bytes]:
        seen = 0
        try:
            for chunk in got.iter_content(1 << 20):
                seen += len(chunk)
                if seen > limit:
                    raise self._damaged(f"it sends more than the {limit} bytes that it may")
                yield chunk
        except (requests.exceptions.RequestException, OSError) as problem:
            raise _Passing(plain_words(problem)) from None

    def _expect(self, got: requests.Response, status: int) -> None:
        if got.status_code != status:
            raise self._cannot(f"it answers {said(got)}", cause="it does not take what it was sent")

    def _refused(self, reason: str) -> RegistryCannot:
        known = "the user and password that are set were not taken" if self._credentials else "no password is set"
        return self._cannot(f"access is refused: {reason}", cause=known, next_step=HOW.replace("HOST", self.where.host))

    def _damaged(self, what: str) -> Damaged:
        return Damaged(
            f"{self.reference}: {what}", cause="it is damaged, or was altered", next_step="see to the registry's disk"
        )

    def _cannot(self, what: str, *, cause: str = "", next_step: str = "") -> RegistryCannot:
        step = next_step or "look at the registry's own log, then run the same command again"
        return RegistryCannot(f"{self.reference}: {what}", cause=cause, next_step=step)
