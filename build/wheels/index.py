"""A package index, read as data: which files a project has, their hashes and URLs. Nothing of a package is run.

pip would run an sdist's setup.py just to read its metadata, and these need torch for that; so files are found through
the index's own listing (the JSON form, or HTML where a mirror has only that) and fetched by hash. pip's settings for
the index, the certificate and the proxy are respected.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, TypeVar

from packaging.utils import canonicalize_name

from build.call import call
from build.errors import EnvironmentCannot

ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
PUBLIC = "https://pypi.org/simple"
TIMEOUT = 30.0
PAUSES = (1.0, 3.0)
"""Seconds between tries; one more try than pauses."""
T = TypeVar("T")


@dataclass(frozen=True)
class Listed:
    """A file that the index offers. `sha256` is empty where the index does not say."""

    name: str
    url: str
    sha256: str = ""


class Passing(Exception):
    """A failure that may pass: worth another try."""


class NoSuchProject(Exception):
    """The index answers, but does not have the project."""


@functools.cache
def _pip_setting(name: str) -> str:
    done = call(sys.executable, "-m", "pip", "config", "get", f"global.{name}", quiet=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def index_url() -> str:
    """The index that pip would ask: PIP_INDEX_URL, pip's configuration, else PyPI."""
    return (os.environ.get("PIP_INDEX_URL") or _pip_setting("index-url") or PUBLIC).rstrip("/")


def shown(url: str) -> str:
    """A URL without the password that a private index may carry."""
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def list_files(project: str, index: str) -> list[Listed]:
    """Every file of a project. Raises NoSuchProject, or EnvironmentCannot when the index cannot be reached."""
    url = f"{index}/{canonicalize_name(project)}/"

    def ask() -> list[Listed]:
        with _open(url, {"Accept": ACCEPT}) as (answer, headers, final):
            body = answer.read()
        kind = headers.get_content_type()
        files = _from_json(body, final) if kind.endswith("json") else _from_html(body, final)
        return [replace(file, url=_with_credentials(file.url, index)) for file in files]

    try:
        return persistently(ask)
    except urllib.error.HTTPError as refused:
        if refused.code == 404:
            raise NoSuchProject(project) from refused
        raise _unreachable(url, f"it answers {refused.code} {refused.reason}") from refused
    except Passing as problem:
        raise _unreachable(url, str(problem)) from problem


def _with_credentials(url: str, index: str) -> str:
    """The address of a file; with the index's own user and password where it lies on the index's host."""
    there, own = urllib.parse.urlsplit(url), urllib.parse.urlsplit(index)
    credentials, _, host = own.netloc.rpartition("@")
    same = credentials and (there.scheme, there.netloc) == (own.scheme, host)
    return urllib.parse.urlunsplit(there._replace(netloc=own.netloc)) if same else url


def download(url: str, target: IO[bytes]) -> None:
    """Write what `url` holds to `target`. Raises Passing or HTTPError for one try; wrap it in `persistently`."""
    with _open(url, {}) as (answer, headers, _):
        size, told = 0, headers.get("Content-Length", "")
        while chunk := answer.read(1 << 20):
            size += target.write(chunk)
    if told.isdigit() and size != int(told):
        raise Passing(f"the connection ended after {size} of {told} bytes")


def persistently(attempt: Callable[[], T]) -> T:
    """Run `attempt`; on Passing wait and try again, a few times."""
    for pause in PAUSES:
        try:
            return attempt()
        except Passing as problem:
            print(f"{problem}; trying again in {pause:.0f} s", file=sys.stderr)
            time.sleep(pause)
    return attempt()


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects as usual, but takes no credentials along to another host."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        made = super().redirect_request(req, fp, code, msg, headers, newurl)
        places = [urllib.parse.urlsplit(url)[:2] for url in (req.full_url, newurl)]
        if made is not None and places[0] != places[1]:
            made.remove_header("Authorization")
        return made


class _open:  # noqa: N801 - reads as the function that it stands for
    """Open a URL with pip's certificate and the URL's own credentials; sort failures into passing and lasting."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.username is not None:
            pair = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
            headers = {**headers, "Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
        self.url = url
        self.request = urllib.request.Request(shown(url), headers=headers)

    def __enter__(self) -> tuple[IO[bytes], HTTPMessage, str]:
        try:
            https = urllib.request.HTTPSHandler(context=_certificates())
            self.answer = urllib.request.build_opener(https, _Redirects).open(self.request, timeout=TIMEOUT)
        except urllib.error.HTTPError as refused:
            if refused.code in (408, 425, 429) or refused.code >= 500:
                raise Passing(f"{shown(self.url)} answers {refused.code} {refused.reason}") from refused
            raise
        except (OSError, HTTPException, ValueError) as problem:
            reason = problem.reason if isinstance(problem, urllib.error.URLError) else problem
            raise Passing(f"{shown(self.url)} cannot be reached ({reason})") from problem
        return self.answer, self.answer.headers, self.answer.url

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, _: object) -> None:
        self.answer.close()
        if isinstance(problem, HTTPException | TimeoutError | ConnectionError | ssl.SSLError):
            raise Passing(f"{shown(self.url)} broke off ({problem})") from problem


@functools.cache
def _certificates() -> ssl.SSLContext:
    named = os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE") or _pip_setting("cert")
    if named and not Path(named).is_file():
        raise EnvironmentCannot(
            f"the certificate file {named} does not exist",
            cause="PIP_CERT, SSL_CERT_FILE or pip's `cert` setting names it",
            next_step="correct the setting",
        )
    return ssl.create_default_context(cafile=named or None)


def _unreachable(url: str, reason: str) -> EnvironmentCannot:
    return EnvironmentCannot(
        f"the package index cannot be asked: {reason}",
        cause=f"no network, a proxy, or a wrong index ({shown(url)})",
        next_step="check the network and `pip config list`, or put the file into a folder and give --offline DIR",
    )


def _from_json(body: bytes, base: str) -> list[Listed]:
    try:
        files = json.loads(body)["files"]
        return [
            Listed(file["filename"], urllib.parse.urljoin(base, file["url"]), file["hashes"].get("sha256", ""))
            for file in files
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise _unreachable(base, f"its answer is not an index page ({problem})") from problem


def _from_html(body: bytes, base: str) -> list[Listed]:
    page = _Links()
    page.feed(body.decode(errors="replace"))
    found = []
    for href in page.links:
        url, _, fragment = urllib.parse.urljoin(base, href).partition("#")
        name = urllib.parse.unquote(urllib.parse.urlsplit(url).path.rpartition("/")[2])
        algorithm, _, digest = fragment.partition("=")
        found.append(Listed(name, url, digest if algorithm == "sha256" else ""))
    return found


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value for name, value in attrs if tag == "a" and name == "href" and value]
