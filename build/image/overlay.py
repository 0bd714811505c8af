"""What is laid over a base, part by part, on this machine: the base needs neither pip nor a network."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from build.errors import MatrixError
from build.image.licences import lay_licences
from build.image.parts import CACHE, HOME, SCRIPTS, SITE, Contents, inside
from build.inspection import Inspection
from build.locks import fetched_wheels, install_wheel


def read_minimums(requirements: Path) -> dict[str, Requirement]:
    """The requirements of a runtime.in by normalised name; what the engine works with, loosely."""
    found: dict[str, Requirement] = {}
    for number, raw in enumerate(requirements.read_text().splitlines(), 1):
        line = raw.partition("#")[0].strip()
        if not line:
            continue
        try:
            requirement = Requirement(line)
        except InvalidRequirement as problem:
            raise MatrixError(f"{requirements}:{number}: {problem}") from problem
        found[canonicalize_name(requirement.name)] = requirement
    return found


def sort_runtime(
    wanted: Mapping[str, str], minimums: Mapping[str, Requirement], present: Mapping[str, str]
) -> dict[str, dict[str, str]]:
    """What happens to every run-time dependency: added where absent; a base's own is kept, and told if it is too old.

    Args:
        wanted: normalised name -> version that the lock would add.  present: likewise, what the base has.
    """
    result = {}
    for name, version in sorted(wanted.items()):
        held = present.get(name)
        if held is None:
            result[name] = {"status": "added", "version": version, "reason": "the base has none"}
            continue
        requirement = minimums.get(name)
        if requirement is None or _fits(requirement, held):
            result[name] = {"status": "base", "version": held, "reason": "the base's own is kept"}
        else:
            reason = f"the engine wants {requirement}; the base's own is never upgraded"
            result[name] = {"status": "too old", "version": held, "reason": reason}
    return result


def too_old(decided: Mapping[str, Mapping[str, str]]) -> list[str]:
    """A line for each dependency that the base has too old, for the user to read."""
    held = {name: fact for name, fact in decided.items() if fact["status"] == "too old"}
    return [f"{name} {fact['version']}: {fact['reason']}" for name, fact in held.items()]


def _fits(requirement: Requirement, version: str) -> bool:
    try:
        return requirement.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


def lock_versions(wheels: Path) -> dict[str, str]:
    """Normalised name -> version of the wheels of a fetched lock."""
    return {name: str(parse_wheel_filename(wheel.name)[1]) for name, wheel in fetched_wheels(wheels).items()}


def lay_runtime(tree: Path, wheels: Path, decided: Mapping[str, Mapping[str, str]], inspection: Inspection) -> Contents:
    """Install the run-time dependencies that are to be added into the base's site; their commands stay out."""
    modules: list[str] = []
    for name, wheel in fetched_wheels(wheels).items():
        if decided[name]["status"] == "added":
            install_wheel(wheel, PurePosixPath(inspection.site), tree, scripts=None, python=inspection.executable)
            lay_licences(tree, name, wheel)
            modules += [f"{inspection.site}/{top}" for top in top_modules(wheel)]
    return Contents(modules=tuple(modules), facts={name: dict(facts) for name, facts in decided.items()})


def lay_components(tree: Path, wheels: Mapping[str, Path], inspection: Inspection) -> Contents:
    """Install compiled components (name -> wheel) into a site of their own, which only `import deepinfer` adds."""
    for name, wheel in wheels.items():
        install_wheel(wheel, SITE, tree, scripts=None, python=inspection.executable)
        lay_licences(tree, name, wheel)
    return Contents(modules=(str(SITE),) if wheels else ())


def lay_system(tree: Path, libraries: Sequence[Mapping[str, str]]) -> Contents:
    """The folders that exist in every image; `libraries` are copied out of the base by lay.py later."""
    for folder in (CACHE, HOME):
        inside(tree, folder).mkdir(parents=True)
    return Contents(facts={"libraries": [dict(library) for library in libraries]})


def lay_engine(tree: Path, wheel: Path, document: bytes, inspection: Inspection) -> Contents:
    """Install the engine with its command, and image.json, which says what this image is."""
    install_wheel(wheel, PurePosixPath(inspection.site), tree, scripts=SCRIPTS, python=inspection.executable)
    lay_licences(tree, "deepinfer", wheel)
    target = inside(tree, SITE.parent / "image.json")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(document)
    return Contents(modules=(f"{inspection.site}/deepinfer",))


def top_modules(wheel: Path) -> list[str]:
    """The top-level modules and packages that a wheel installs."""
    with zipfile.ZipFile(wheel) as archive:
        tops: dict[str, Any] = {}
        for name in archive.namelist():
            top, _, rest = name.partition("/")
            if not top.endswith((".dist-info", ".data")) and (rest or top.endswith(".py")):
                tops[top] = None
    return sorted(tops)
