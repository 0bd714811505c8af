"""Logging in at a registry: what it asks for (Basic, or a Bearer token of its token service) from its challenge."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import requests
from requests.auth import AuthBase
from requests.utils import parse_dict_header

from build.publish.credentials import Credentials


class Refused(Exception):
    """The registry, or its token service, does not take what it was given; says so without it."""


@dataclass(frozen=True)
class Header(AuthBase):
    """Sets exactly this Authorization header, or none: an entry in ~/.netrc has no say in it."""

    value: str = ""

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self.value:
            request.headers["Authorization"] = self.value
        return request

    def __repr__(self) -> str:
        return "Header(…)"


def answer(
    session: requests.Session, challenge: str, credentials: Credentials | None, *, plain: bool, timeout: float
) -> Header:
    """What to send after a 401 with this WWW-Authenticate header.

    Args:
        plain: whether the password may travel without TLS.

    Raises Refused, and what `requests` raises.
    """
    scheme, _, rest = challenge.partition(" ")
    if scheme.lower() == "basic":
        if credentials is None or not credentials.password:
            raise Refused("it asks for a user and a password, and none are known here")
        return Header(_basic(credentials))
    if scheme.lower() != "bearer":
        raise Refused(f"it asks for a way of logging in that is not known here: {scheme or 'none'}")
    parse: Any = parse_dict_header  # which has no types
    asked = {name: value or "" for name, value in parse(rest).items()}
    realm = asked.pop("realm", "")
    if urlsplit(realm).scheme != "https" and not (plain and urlsplit(realm).scheme == "http"):
        raise Refused("its token service has no https address, and would see the password in the clear")
    wanted = {name: asked[name] for name in ("service", "scope") if asked.get(name)}
    return Header(f"Bearer {_token(session, realm, wanted, credentials, timeout)}")


def _token(
    session: requests.Session, realm: str, wanted: dict[str, str], credentials: Credentials | None, timeout: float
) -> str:
    if credentials is not None and credentials.identity_token:
        form = {**wanted, "grant_type": "refresh_token", "refresh_token": credentials.identity_token}
        form["client_id"] = "deepinfer"
        given = session.post(realm, data=form, auth=Header(), timeout=timeout)
    else:
        header = Header() if credentials is None else Header(_basic(credentials))
        given = session.get(realm, params=wanted, auth=header, timeout=timeout)
    if given.status_code in (400, 401, 403):
        raise Refused("its token service refuses the user or the password")
    given.raise_for_status()
    body: Any = given.json()
    token = (body.get("token") or body.get("access_token")) if isinstance(body, dict) else None
    if not token:
        raise Refused("its token service gave no token")
    return str(token)


def _basic(credentials: Credentials) -> str:
    pair = f"{credentials.user}:{credentials.password}".encode()
    return f"Basic {base64.b64encode(pair).decode()}"
