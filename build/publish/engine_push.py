"""A push by the Docker engine, followed line by line: told from one that stalls, that is refused, that lost its engine.

The engine itself tries each layer five times; what is tried again here are stalls and broken connections.
"""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from docker.errors import APIError, DockerException
from requests.exceptions import ConnectionError as Broken
from requests.exceptions import RequestException, Timeout
from urllib3.exceptions import HTTPError, ReadTimeoutError

from build.containers import Engine
from build.errors import EnvironmentCannot
from build.publish.connection import RegistryCannot
from build.publish.credentials import HOW, find_credentials
from build.publish.registry import Registry

ATTEMPTS = 2
REFUSED = re.compile(r"(?i)unauthorized|denied|no basic auth|authentication required|forbidden")
FULL = re.compile(r"(?i)no space|insufficient storage|quota|50[07] ")
REPORT_EVERY = 5.0


class _Passing(Exception):
    """The attempt ended for a reason that may pass."""


def push_by_engine(engine: Engine, registry: Registry, tag: str, patience: float) -> str:
    """Push `registry.reference:tag`, a name that the image has locally; returns the digest that the engine tells.

    Args:
        patience: seconds without progress after which it is stalled.

    Raises:
        RegistryCannot: refused, full, down, or too slow.
        EnvironmentCannot: the engine went away.
    """
    found = find_credentials(registry.where.host)
    login = found.for_engine() if found is not None else {}
    reference = f"{registry.reference}:{tag}"
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return _once(engine, registry.reference, tag, login, patience)
        except _Passing as problem:
            if attempt == ATTEMPTS:
                raise RegistryCannot(
                    f"{reference}: the push failed {ATTEMPTS} times; no alias was moved", cause=str(problem),
                    next_step="see to the registry, then run the same command again: what arrived is not sent again",
                ) from None  # fmt: skip
            print(f"{registry.where.host}: {problem}; again", file=sys.stderr, flush=True)
            registry.try_upload()  # one that is down or full says so here, sooner and plainer than through the engine
    raise AssertionError("the last attempt returns or raises")


def _once(engine: Engine, repository: str, tag: str, login: Mapping[str, str], patience: float) -> str:
    api: Any = engine.client.api  # the docker package's types end here
    usual, api.timeout = api.timeout, patience
    try:
        lines = api.push(repository, tag=tag, stream=True, decode=True, auth_config=dict(login))
        with contextlib.closing(lines):  # closed, it ends the push in the engine
            digest = _follow(lines, patience)
    except (Timeout, TimeoutError, ReadTimeoutError):
        raise _Passing(f"the push stood still for {patience:g} s") from None
    except APIError as problem:
        raise _explained(f"{repository}:{tag}", str(problem.explanation or problem)) from None
    except Broken as problem:
        if "timed out" in str(problem).lower():
            raise _Passing(f"the push stood still for {patience:g} s") from None
        raise _gone(engine, problem) from None
    except (RequestException, HTTPError, DockerException, OSError, ValueError) as problem:
        raise _gone(engine, problem) from None
    finally:
        api.timeout = usual
    if digest.startswith("error: "):
        raise _explained(f"{repository}:{tag}", digest.removeprefix("error: "))
    if not digest:
        raise _gone(engine, None)
    return digest


def _follow(lines: Iterator[Any], patience: float) -> str:
    """Read the engine's lines to the end: the digest, or `error: …`, or nothing where they break off.

    Raises TimeoutError where for `patience` seconds the engine only said that it will try again.
    """
    layers: dict[str, str] = {}
    sent: dict[str, int] = {}
    said = moved = time.monotonic()
    for line in lines:
        now = time.monotonic()
        if not str(line.get("status", "")).startswith("Retrying"):
            moved = now
        elif now - moved > patience:
            raise TimeoutError
        if "error" in line:
            return f"error: {line['error']}"
        if digest := (line.get("aux") or {}).get("Digest"):
            return str(digest)
        name, status = str(line.get("id") or ""), str(line.get("status") or "")
        if name and "progressDetail" in line:
            layers[name] = status
            sent[name] = int((line["progressDetail"] or {}).get("current") or sent.get(name, 0))
        if now - said > REPORT_EVERY:
            said = now
            print(f"  {_progress(layers, sent)}", file=sys.stderr, flush=True)
    return ""


def _progress(layers: Mapping[str, str], sent: Mapping[str, int]) -> str:
    ended = sum(status.startswith(("Pushed", "Layer already", "Mounted")) for status in layers.values())
    again = sum(status.startswith("Retrying") for status in layers.values())
    return f"{ended} of {len(layers)} layers, {sum(sent.values()) / 1e6:.0f} MB read" + (
        f", {again} tried again" if again else ""
    )


def _explained(reference: str, said: str) -> Exception:
    said = " ".join(said.split())[:300]
    if REFUSED.search(said):
        return RegistryCannot(
            f"{reference}: the push is refused: {said}; no alias was moved",
            cause="the user may not write there, or no password is set", next_step=HOW,
        )  # fmt: skip
    if FULL.search(said):
        return RegistryCannot(
            f"{reference}: the push failed: {said}; no alias was moved",
            cause="the registry has no space left, or fails inside; the engine tried five times",
            next_step="look at the registry's own log and disk, then run the same command again",
        )
    return _Passing(said)


def _gone(engine: Engine, problem: Exception | None) -> Exception:
    try:
        engine.client.ping()
    except (DockerException, RequestException, OSError) as dead:
        return EnvironmentCannot(
            "the Docker engine went away during the push; no alias was moved",
            cause=str(dead).splitlines()[0][:200],
            next_step="start it (`./run doctor` says how), then run the same command again: it goes on where it was",
        )
    return _Passing(f"the engine broke the push off: {problem or 'it said no more'}"[:300])
