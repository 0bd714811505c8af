"""What a string in matrix.yaml may look like: one named format each, for the loader, the JSON Schema and the page.

A format has a regular expression (also given to editors through the schema), a few words that say what is wanted,
and sometimes a check that a regular expression cannot make. Facts and their names are here too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

REQUIRE_FACTS = ("torch", "cuda", "nccl", "gcc", "python", "glibc")
EXPECT_FACTS = ("python", "torch", "cuda", "triton", "tokenspeed-triton", "nccl", "gcc", "glibc")
SUITES = ("bookworm", "trixie")
"""The Debian suites whose root file system build/bases/rootfs.py can make."""
FACT_LABELS = {"cuda": "CUDA", "nccl": "NCCL", "python": "Python", "triton": "Triton"}


@dataclass(frozen=True)
class Format:
    """A kind of string.

    pattern: must match the whole text.  what: completes "must be …".
    choices: the only texts allowed, in which case the nearest one is named.
    check: returns what is wrong with a text that the pattern lets through, or an empty string.
    """

    what: str
    pattern: str = ""
    choices: tuple[str, ...] = ()
    check: Callable[[str], str] | None = None

    def complaint(self, text: str) -> str:
        """What is wrong with `text`; empty if nothing is."""
        if self.choices:
            return "" if text in self.choices else f"must be {self.what}"
        if self.pattern and re.fullmatch(self.pattern, text) is None:
            return f"must be {self.what}"
        return self.check(text) if self.check else ""


def _specifier(text: str) -> str:
    try:
        parsed = SpecifierSet(text)
    except InvalidSpecifier:
        return "is not a version specifier: write it as '>=2.9,<3' (operators ==, !=, <, <=, >, >=, ~=)"
    return "" if len(parsed) else "is empty: leave the key out if every version will do"


def _version(text: str) -> str:
    try:
        Version(text)
    except InvalidVersion:
        return "is not a version such as '2.11.0+cu130'"
    return ""


def _sha256(text: str) -> str:
    return "is a placeholder of zeros, not a hash" if set(text) == {"0"} else ""


def _relative(text: str) -> str:
    if ".." in text.split("/"):
        return "leaves the repository: write a path below it, without '..'"
    return ""


# Printable text without control characters, lone surrogates or line ends; what a shell makes of it does not matter,
# because no shell ever sees it.
TEXT = Format("one line of printable text", r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{1,1000}")
NAME = Format(
    "a name: letters, digits, '_', '.', '-' (64 at most), starting with a letter, digit or '_'",
    r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}",
)
FACT = Format("one of the facts " + ", ".join(REQUIRE_FACTS), choices=REQUIRE_FACTS)
EXPECTED_FACT = Format("one of the facts " + ", ".join(EXPECT_FACTS), choices=EXPECT_FACTS)
SPECIFIER = Format("a version specifier such as '>=2.9,<3'", r"[A-Za-z0-9_.+*!<>=~, -]{1,200}", check=_specifier)
VERSION = Format("a version such as '2.11.0+cu130'", r"[A-Za-z0-9_.+!-]{1,100}", check=_version)
SHA256 = Format("a sha256: 64 digits of 0-9 and a-f", r"[0-9a-f]{64}", check=_sha256)
COMMIT = Format("a full commit: 40 digits of 0-9 and a-f, not a branch, a tag or an abbreviation", r"[0-9a-f]{40}")
PROJECT = Format("a project's name on PyPI", r"[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?")
PINNED = Format(
    "one pinned distribution: name==version", r"[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?==[A-Za-z0-9.+!_-]{1,100}"
)
GIT_URL = Format("an https:// or ssh:// URL of a git repository", r"(https|ssh)://[A-Za-z0-9@._~:/%+-]{1,500}")
PATH = Format(
    "a path below the repository, of letters, digits and '_.-/' only, not an absolute one",
    r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*",
    check=_relative,
)
PREFIX = Format("an absolute path of letters, digits and '_.-'", r"(/[A-Za-z0-9_-][A-Za-z0-9_.-]*){1,20}")
MODULE = Format("an import name such as deepinfer._C", r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*){0,9}")
VARIABLE = Format("the name of an environment variable", r"[A-Za-z_][A-Za-z0-9_]{0,99}")
REFERENCE = Format(
    "an image reference: registry/name:tag or registry/name@sha256:…", r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,500}"
)
SUITE = Format("one of the Debian suites " + ", ".join(SUITES), choices=SUITES)
APT = Format("the name of a Debian package", r"[a-z0-9][a-z0-9+.-]{1,99}")
PYTHON = Format('a Python version such as "3.13"', r"3\.[0-9]{1,2}")


def fact_label(fact: str) -> str:
    """How a fact is written in a sentence: CUDA, NCCL, gcc."""
    return FACT_LABELS.get(fact, fact)
