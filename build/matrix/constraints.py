"""A component's constraints against a base's facts, answered in plain words."""

from __future__ import annotations

from collections.abc import Mapping

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from build.matrix.formats import fact_label
from build.matrix.model import Component

Facts = Mapping[str, str | None]


def unmet(component: Component, facts: Facts, base: str = "the base") -> dict[str, str]:
    """The constraints that the facts do not satisfy: fact -> "needs gcc >= 13, the base has 12.2.0".

    Args:
        facts: by the names of matrix.yaml; absent, None or empty: the base has no such thing.
        base: how to speak of it.
    """
    problems = {}
    for fact, specifier in component.requires.items():
        if not satisfies(facts.get(fact), specifier):
            problems[fact] = f"needs {wanted(fact, specifier)}, {base} {holds(fact, facts)}"
    return problems


def beyond(component: Component, facts: Facts, base: str = "the base") -> tuple[str, ...]:
    """Where a component that is supported goes past what upstream states, with the reason."""
    return tuple(
        f"upstream states {wanted(fact, passed.stated)}, {base} {holds(fact, facts)}: {passed.reason}"
        for fact, passed in component.beyond.items()
        if not satisfies(facts.get(fact), passed.stated)
    )


def satisfies(version: str | None, specifier: str) -> bool:
    """Whether a version (local parts such as +cu130 welcome) is within a specifier; None and garbage are not."""
    if not version:
        return False
    try:
        return SpecifierSet(specifier).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


def wanted(fact: str, specifier: str) -> str:
    """`gcc >= 13`, `CUDA >= 13.0, < 14`."""
    parts = []
    for part in specifier.split(","):
        text = part.strip()
        operator = text[: len(text) - len(text.lstrip("=!<>~"))]
        parts.append(f"{operator} {text[len(operator) :].strip()}")
    return f"{fact_label(fact)} {', '.join(parts)}"


def holds(fact: str, facts: Facts) -> str:
    """`has 12.2.0`, `has none`, `'s torch is built for the CPU only`, as the end of a sentence about the base."""
    version = facts.get(fact)
    if version:
        try:
            Version(version)
        except InvalidVersion:
            return f"has {version!a}, which cannot be read as a version"
        return f"has {version}"
    if fact == "cuda" and facts.get("torch"):
        return "has a torch built for the CPU only"
    if fact == "cuda":
        return "has no torch built with it"
    return f"has no {fact_label(fact)}"
