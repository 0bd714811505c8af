"""The way to one repository of a registry: requests, logged in where they must be; what passes is waited out."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urljoin

import requests

from build.errors import EnvironmentCannot
from build.publish import login
from build.publish.credentials import HOW, Credentials
from build.publish.location import Location
from build.publish.words import plain_words, said

T = TypeVar("T")

PAUSES = (1.0, 2.0, 4.0)
"""Seconds before each further attempt, where an attempt failed for a reason that may pass."""
PASSING = (408, 425, 429, 500, 502, 503, 504, 507)


class RegistryCannot(EnvironmentCannot):
    """The registry is down, too slow, full, refuses the password, or answers what it must not."""


class Damaged(RegistryCannot):
    """What the registry gave does not have the digest that it was asked by, or that came with it."""


class _Passing(Exception):
    """An attempt failed for a reason that may pass."""


class Connection:
    """Requests to one repository.

    Example:
        def operation() -> bool:
            with connection.send("HEAD", "blobs/sha256:…") as got:
                return got.status_code == 200

        there = connection.patiently("asking for a blob", operation)

    Args:
        plain: HTTP is allowed where the registry speaks no TLS.
        patience: seconds without a byte after which an attempt has failed.
        pauses: seconds before each further attempt; None for PAUSES.
    """

    def __init__(
        self, where: Location, name: str, *, credentials: Credentials | None, plain: bool, patience: float,
        pauses: Sequence[float] | None,
    ) -> None:  # fmt: skip
        self._where = where
        self._repository = where.repository(name)
        self._reference = where.reference(name)
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

    def patiently(self, what: str, operation: Callable[[], T]) -> T:
        """What an operation returns, which is begun anew where an attempt failed for a reason that may pass.

        what: what it does, for messages, as in "moving the tag x". Raises RegistryCannot.
        """
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
                print(f"{self._where.host}: {what}: {problem}; again in {pause:g} s", file=sys.stderr, flush=True)
                time.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    def send(self, method: str, path: str, **options: Any) -> requests.Response:
        """One request, logged in if it must be. A body that is a file is sent from its start."""
        url = path if "://" in path else f"{self._find_base()}/v2/{self._repository}/{path}"
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

    def place(self, location: str) -> str:
        """The address that the registry itself names in an answer, which may begin anywhere."""
        return urljoin(f"{self._base}/", location)

    def chunks(self, got: requests.Response, limit: int) -> Iterator[bytes]:
        """The pieces of a body. Raises Damaged where it is longer than it may be."""
        seen = 0
        try:
            for chunk in got.iter_content(1 << 20):
                seen += len(chunk)
                if seen > limit:
                    raise self.damaged(f"it sends more than the {limit} bytes that it may")
                yield chunk
        except (requests.exceptions.RequestException, OSError) as problem:
            raise _Passing(plain_words(problem)) from None

    def expect(self, got: requests.Response, status: int) -> None:
        """Raise RegistryCannot where it answers with another status."""
        if got.status_code != status:
            raise self._cannot(f"it answers {said(got)}", cause="it does not take what it was sent")

    def damaged(self, what: str) -> Damaged:
        """The error of what does not have its digest."""
        return Damaged(
            f"{self._reference}: {what}", cause="it is damaged, or was altered", next_step="see to the registry's disk"
        )

    def _raw(self, method: str, url: str, **options: Any) -> requests.Response:
        try:
            return self._session.request(
                method, url, auth=self._header, timeout=(10, self._patience), proxies=self._proxies, **options
            )
        except requests.exceptions.SSLError as problem:
            raise self._cannot(
                "its certificate is not trusted here, or it speaks no TLS", cause=plain_words(problem),
                next_step=f"put its CA into /etc/docker/certs.d/{self._where.host}/ca.crt, which Docker reads as well",
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
            secure = f"https://{self._where.api_host}"
            if self._plain:
                try:
                    limits = (10, self._patience)
                    probe = self._session.get(
                        f"{secure}/v2/", auth=login.Header(), timeout=limits, proxies=self._proxies
                    )
                    probe.close()
                except requests.exceptions.SSLError as problem:
                    if "certificate" not in str(problem).lower():
                        secure = f"http://{self._where.api_host}"
                except requests.exceptions.Timeout:
                    raise _Passing(f"it gave no answer within {self._patience:g} s") from None
                except requests.exceptions.RequestException as problem:
                    raise _Passing(plain_words(problem)) from None
            self._base = secure
        return self._base

    def _refused(self, reason: str) -> RegistryCannot:
        known = "the user and password that are set were not taken" if self._credentials else "no password is set"
        return self._cannot(
            f"access is refused: {reason}", cause=known, next_step=HOW.replace("HOST", self._where.host)
        )

    def _cannot(self, what: str, *, cause: str = "", next_step: str = "") -> RegistryCannot:
        step = next_step or "look at the registry's own log, then run the same command again"
        return RegistryCannot(f"{self._reference}: {what}", cause=cause, next_step=step)
