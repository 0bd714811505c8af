"""The list of an image's contents, CycloneDX 1.6 as JSON: Python distributions, Debian packages, files of the overlay.

Libraries and the document itself are written by cyclonedx-python-lib, and the whole is held against the standard's own
schema by it. The files are put in as plain data: the library takes a millisecond for each of five thousand to say the
same. They stand by folder, for the schema asks that the parts of a list differ from each other, and comparing every
file with every other takes half a minute.

Equal images give equal bytes: the time in it is the image's, and the serial number follows from the image's id.
"""

from __future__ import annotations

import json
import uuid
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name

from build.errors import BuildError

if TYPE_CHECKING:
    from cyclonedx.model.component import Component

ORIGIN, FOLDER, LINK, MODE, BYTES = (f"deepinfer:{name}" for name in ("origin", "folder", "link", "mode", "bytes"))
"""Names of the properties that say what CycloneDX has no field for."""
FORMAT = "CycloneDX 1.6"


@dataclass(frozen=True)
class Subject:
    """The image that is described.

    created: as the image's label has it.  base: the distributions of its base, normalised name -> version.
    """

    tag: str
    version: str
    image_id: str
    title: str
    created: str
    base: Mapping[str, str] = field(default_factory=dict)


def make_sbom(subject: Subject, inventory: Mapping[str, Any]) -> str:
    """The document's text.

    Args:
        inventory: what build/gates/programs/inventory.py found in the finished image.

    Raises BuildError when it does not fit the schema.
    """
    document = _libraries(subject, inventory)
    document.setdefault("components", []).extend(_folders(inventory["files"]))
    text = json.dumps(document, indent=1, sort_keys=True) + "\n"
    validate(text)
    return text


def validate(text: str) -> None:
    """Raise BuildError where `text` does not fit CycloneDX's schema."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if wrong is not None:
        raise BuildError(
            "the list of the image's contents does not fit CycloneDX's schema",
            cause=str(wrong).strip().splitlines()[0][:300],
            next_step="look for a distribution with odd metadata in the base; DEEPINFER_DEBUG=1 shows more",
        )


def files_of(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Path -> {"sha256", "bytes", "mode"} or {"link": target}, of every file in a parsed document."""
    found: dict[str, dict[str, Any]] = {}
    for component in _walk(document.get("components", [])):
        told = {entry["name"]: entry["value"] for entry in component.get("properties", [])}
        if component.get("type") != "file":
            continue
        if LINK in told:
            found[component["name"]] = {"link": told[LINK]}
        elif component.get("hashes"):
            found[component["name"]] = {
                "sha256": component["hashes"][0]["content"],
                "bytes": int(told[BYTES]),
                "mode": told[MODE],
            }
    return found


def packages_of(document: Mapping[str, Any]) -> dict[str, str]:
    """`purl` (with the folder, where one is told) -> version, of every library in a parsed document."""
    return {
        component["bom-ref"]: component.get("version", "")
        for component in document.get("components", [])
        if component.get("type") == "library"
    }


def package_refs(subject: Subject, inventory: Mapping[str, Any]) -> dict[str, str]:
    """The same as `packages_of`, of what an image holds now."""
    libraries = (one for one in _packages(subject, inventory) if one.type.value == "library")
    return {str(one.bom_ref): one.version or "" for one in libraries}


def _walk(components: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for component in components:
        yield component
        yield from _walk(component.get("components", []))


def _libraries(subject: Subject, inventory: Mapping[str, Any]) -> dict[str, Any]:
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.output.json import JsonV1Dot6

    image = Component(
        type=ComponentType.CONTAINER, name=subject.tag, version=subject.image_id, description=subject.title,
        bom_ref="image",
    )  # fmt: skip
    maker = Component(type=ComponentType.APPLICATION, name="deepinfer-hopper", version=subject.version)
    metadata = BomMetaData(component=image, timestamp=datetime.fromisoformat(subject.created))
    metadata.tools.components.add(maker)
    packages = _packages(subject, inventory)
    bom = Bom(
        metadata=metadata, components=packages, serial_number=uuid.uuid5(uuid.NAMESPACE_OID, subject.image_id)
    )  # fmt: skip
    bom.register_dependency(image, packages)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about dependencies among packages, which are nobody's question here
        document: dict[str, Any] = json.loads(JsonV1Dot6(bom).output_as_string())
    return document


def _packages(subject: Subject, inventory: Mapping[str, Any]) -> list[Component]:
    found = [_system(inventory["system"])] if inventory["system"].get("ID") else []
    distributions = inventory["distributions"]
    names = [canonicalize_name(row["name"]) for row in distributions]
    for name, row in zip(names, distributions, strict=True):
        found.append(_distribution(subject, name, row, alone=names.count(name) == 1))
    found += [_debian(row, inventory["system"]) for row in inventory["debian"]]
    return found


def _system(facts: Mapping[str, str]) -> Component:
    from cyclonedx.model.component import Component, ComponentType

    return Component(
        type=ComponentType.OPERATING_SYSTEM, name=facts["ID"], version=facts.get("VERSION_ID"), bom_ref="system"
    )


def _distribution(subject: Subject, name: str, row: Mapping[str, str], *, alone: bool) -> Component:
    from cyclonedx.model import Property
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.model.license import DisjunctiveLicense, License, LicenseExpression
    from packageurl import PackageURL

    purl = PackageURL("pypi", None, name, row["version"] or None)
    licences: list[License] = []
    if row["expression"]:
        licences = [LicenseExpression(row["expression"])]
    elif row["licence"]:
        licences = [DisjunctiveLicense(name=row["licence"])]
    ours = row["folder"].startswith("/opt/deepinfer/") or subject.base.get(name) != row["version"]
    return Component(
        type=ComponentType.LIBRARY, name=row["name"], version=row["version"], purl=purl, licenses=licences,
        # The same name may be there twice: the vendor's DeepGEMM, and ours in a folder of its own.
        bom_ref=str(purl) if alone else f"{purl}#{row['folder']}",
        properties=[Property(name=ORIGIN, value="overlay" if ours else "base"),
                    Property(name=FOLDER, value=row["folder"])],
    )  # fmt: skip


def _debian(row: Mapping[str, str], system: Mapping[str, str]) -> Component:
    from cyclonedx.model import Property
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    distribution = system.get("ID", "debian")
    qualifiers = {"arch": row["architecture"], "distro": f"{distribution}-{system.get('VERSION_ID', '')}".rstrip("-")}
    purl = PackageURL("deb", distribution, row["package"], row["version"], qualifiers)
    return Component(
        type=ComponentType.LIBRARY, name=row["package"], version=row["version"], purl=purl, bom_ref=str(purl),
        properties=[Property(name=ORIGIN, value="base")],
    )  # fmt: skip


def _folders(files: Mapping[str, Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """One component for every folder that holds files of the overlay, with the files in it."""
    by_folder: dict[str, list[str]] = {}
    for path in sorted(files):
        by_folder.setdefault(str(PurePosixPath(path).parent), []).append(path)
    inner = [
        {
            "type": "file", "bom-ref": f"folder:{_text(folder)}", "name": _text(folder),
            "components": [_file(path, files[path]) for path in paths],
        }
        for folder, paths in sorted(by_folder.items())
    ]  # fmt: skip
    if inner:
        yield {"type": "file", "bom-ref": "overlay", "name": "overlay", "description": _OVERLAY, "components": inner}


_OVERLAY = "every file that the image adds to its base or changes in it, by folder"


def _file(path: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {"type": "file", "bom-ref": f"file:{_text(path)}", "name": _text(path)}
    if "link" in facts:
        return told | {"properties": _properties({LINK: _text(facts["link"])})}
    properties = _properties({BYTES: str(facts["bytes"]), MODE: facts["mode"]})
    return told | {"hashes": [{"alg": "SHA-256", "content": facts["sha256"]}], "properties": properties}


def _properties(told: Mapping[str, str]) -> Sequence[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in told.items()]


def _text(name: str) -> str:
    """A file's name need not be text; what stands in JSON for others has to be."""
    return name.encode(errors="backslashreplace").decode()
