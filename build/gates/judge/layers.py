"""The gate on what was added to the base: no secret, nothing of the builder, nothing of the building machine."""

from __future__ import annotations

import configparser
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from build.gates.judge.rows import Row, Verdicts

_NAMES = {
    "a configuration that may hold credentials": re.compile(
        r"/(pip\.conf|\.pypirc|\.netrc|\.npmrc|\.git-credentials|\.docker/config\.json|\.env|credentials)$"
    ),
    "a key or certificate": re.compile(r"/(id_(rsa|ed25519|ecdsa)|[^/]*\.(key|p12|pfx|crt|pem))$"),
    "left by the builder": re.compile(
        r"\.whl$|/[^/]*\.o$|/\.?ccache/|/\.cache/|^/var/lib/apt/lists/.+|^/var/cache/apt/.+\.(deb|bin)$|/\.part-|"
        r"^/(build|src|out|work|wheels|context)/|/\.setuptools/|\.egg-info/SOURCES\.txt$"
    ),
}
# certifi's list of public certificate authorities is its whole content.
_PUBLIC = re.compile(r"/certifi/cacert\.pem$")
_SECRET_NAME = re.compile(r"(token|password|passwd|secret|credential|api_?key)", re.IGNORECASE)
_PASSWORD_URL = re.compile(r"https?://[^/\s:@]+:[^/\s@]+@")
_PUBLIC_HOSTS = {"pypi.org", "files.pythonhosted.org", "github.com", "deb.debian.org", ""}
_PIP_INDEXES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL")
_INDEXES = (*_PIP_INDEXES, "UV_INDEX_URL", "UV_DEFAULT_INDEX")
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
_PIP_FILES = ("/etc/pip.conf", "~/.config/pip/pip.conf", "~/.pip/pip.conf", "/etc/xdg/pip/pip.conf")


def needles() -> dict[str, str]:
    """Host names of this machine's package indexes and proxies: what it is -> the text that may not be in an image."""
    settings = {f"the host of {name}": os.environ.get(name, "") for name in (*_INDEXES, *_PROXIES)}
    settings["the host of pip's index"] = " ".join(map(_pip_indexes, _PIP_FILES))
    found = {}
    for what, addresses in settings.items():
        for number, text in enumerate(dict.fromkeys(filter(None, map(_telling, addresses.split()))), 1):
            found[what if number == 1 else f"{what} ({number})"] = text
    return found


def _pip_indexes(file: str) -> str:
    """The addresses of package indexes in one of pip's files; "" without."""
    parser = configparser.RawConfigParser()  # as pip reads it: an address may hold a %
    try:
        parser.read(Path(file).expanduser())
        keys = [name.removeprefix("PIP_").lower().replace("_", "-") for name in _PIP_INDEXES]  # pip's rule
        return " ".join(parser.get("global", key, fallback="") for key in keys)
    except (configparser.Error, ValueError, RuntimeError):  # not such a file, no text, or a user without a home
        return ""


def _telling(url: str) -> str:
    """The text by which the host of an address is found again; "" for a public one and for this machine itself."""
    try:
        host = urlsplit(url if "//" in url else f"//{url}").hostname or ""
    except ValueError:
        return ""
    if host in _PUBLIC_HOSTS or host in ("localhost", "::1") or host.startswith("127."):
        return ""
    return host if "." in host or ":" in host else f"//{host}"  # a single word stands in many a text


def judge_layers(
    verdicts: Verdicts,
    facts: Mapping[str, Any],
    *,
    history: Sequence[str],
    environment: Mapping[str, str],
    labels: Mapping[str, str],
    hidden: Mapping[str, str],
    seconds: float,
    problem: str = "",
) -> None:
    """facts: what `scan` printed.  history: the added layers' commands.  environment: what differs from the base's.

    hidden: what `needles` gave.  problem: how the scan failed, if it did.
    """
    problem = problem or ("" if "added" in facts else "the scan printed no list")
    rows = [Row(False, f"the added files could not be listed: {problem}")] if problem else []
    added = facts.get("added")
    for path in added or []:
        for what, pattern in _NAMES.items():
            if pattern.search(path) and not _PUBLIC.search(path):
                rows.append(Row(False, f"{path}: {what}"))
    rows += [Row(False, f"{one['path']}: holds {one['what']}") for one in facts.get("secrets", [])]
    for name, value in environment.items():
        if _SECRET_NAME.search(name) and value:
            rows.append(Row(False, f"the environment variable {name} is set in the image"))
    texts = {
        **{f"the command of an added layer ({line[:60]})": line for line in history},
        **{f"the environment variable {name}": value for name, value in environment.items()},
        **{f"the label {name}": value for name, value in labels.items()},
    }
    for where, text in texts.items():
        if _PASSWORD_URL.search(text):
            rows.append(Row(False, f"{where} holds a URL with a password"))
        rows += [Row(False, f"{where} names {what}") for what, needle in hidden.items() if needle in text]
    if added is None and not problem:
        reason = "files were not compared: the base is not here (history, environment and labels were looked at)"
        rows.append(Row(True, reason))
    elif not any(row.ok is False for row in rows):
        rows.append(Row(True, _summary(added or [], len(history))))
    verdicts.add("layers", rows, seconds=seconds)


def _summary(added: Sequence[str], layers: int) -> str:
    tops = Counter("/".join(PurePosixPath(path).parts[:4]).replace("//", "/") for path in added)
    largest = ", ".join(f"{top} ({count})" for top, count in tops.most_common(4))
    files, steps = (f"{count} {what}{'s' * (count != 1)}" for count, what in ((len(added), "file"), (layers, "step")))
    return f"{files} in {steps}: {largest or 'nothing'}"
