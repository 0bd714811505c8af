"""The list of an image's contents: fits the standard's schema, says everything once, and always the same bytes."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from build.attest.sbom import Subject, files_of, make_sbom, package_refs, packages_of, validate
from build.errors import BuildError
from build.gates.launcher import bundle
from build.gates.programs import inventory

SUBJECT = Subject(
    "deepinfer:0.1.0-flagtree-replica-x", "0.1.0", "sha256:" + "b" * 64, "FlagTree", "2026-11-30T08:39:02Z",
    {"torch": "2.11.0+cu130", "deepgemm": "2.7.0"},
)  # fmt: skip
DIST = "/usr/lib/python3/dist-packages"


def held(**changes: object) -> dict[str, Any]:
    """What a small image holds."""
    return {
        "files": {
            "/opt/deepinfer/image.json": {"sha256": "a" * 64, "bytes": 12, "mode": "0644"},
            "/opt/deepinfer/lib/libcudart.so.12": {"link": "libcudart.so.12.8.57"},
            "/opt/deepinfer/lib/libcudart.so.12.8.57": {"sha256": "c" * 64, "bytes": 3, "mode": "0755"},
        },
        "distributions": [
            {"name": "torch", "version": "2.11.0+cu130", "folder": DIST, "expression": "BSD-3-Clause", "licence": ""},
            {"name": "deepgemm", "version": "2.7.0", "folder": DIST, "expression": "", "licence": "MIT License"},
            {"name": "DeepGEMM", "version": "2.7.0", "folder": "/opt/deepinfer/site", "expression": "", "licence": ""},
        ],
        "debian": [
            {"package": "libc6", "version": "2.41-12", "architecture": "amd64", "source": "glibc"},
            {"package": "libc6", "version": "2.41-12", "architecture": "i386", "source": "glibc"},
        ],
        "system": {"ID": "debian", "VERSION_ID": "13"},
        **changes,
    }


def properties(component: dict[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in component["properties"]}


def test_every_file_is_in_it_with_its_sum_or_where_it_points() -> None:
    document = json.loads(make_sbom(SUBJECT, held()))
    assert document["specVersion"] == "1.6"
    assert files_of(document) == held()["files"]


def test_every_package_is_in_it_once_even_two_of_one_name() -> None:
    document = json.loads(make_sbom(SUBJECT, held()))
    libraries = [component for component in document["components"] if component["type"] == "library"]
    assert len(libraries) == 5
    assert packages_of(document) == package_refs(SUBJECT, held())
    gemms = {properties(one)["deepinfer:folder"]: one for one in libraries if one["name"].lower() == "deepgemm"}
    assert properties(gemms[DIST])["deepinfer:origin"] == "base"
    assert properties(gemms["/opt/deepinfer/site"])["deepinfer:origin"] == "overlay"
    torch = next(one for one in libraries if one["name"] == "torch")
    assert torch["purl"] == "pkg:pypi/torch@2.11.0%2Bcu130" and torch["licenses"] == [{"expression": "BSD-3-Clause"}]
    assert any(one.get("purl") == "pkg:deb/debian/libc6@2.41-12?arch=i386&distro=debian-13" for one in libraries)


def test_the_image_is_its_subject() -> None:
    document = json.loads(make_sbom(SUBJECT, held()))
    assert document["metadata"]["component"]["name"] == SUBJECT.tag
    assert document["metadata"]["component"]["version"] == SUBJECT.image_id
    assert document["metadata"]["timestamp"].startswith("2026-11-30T08:39:02")


def test_equal_images_give_equal_bytes_whatever_the_order() -> None:
    turned = held(
        files=dict(reversed(held()["files"].items())),
        distributions=held()["distributions"][::-1],
        debian=held()["debian"][::-1],
    )
    assert make_sbom(SUBJECT, held()) == make_sbom(SUBJECT, turned)


def test_another_image_is_another_document() -> None:
    other = Subject(SUBJECT.tag, "0.1.0", "sha256:" + "d" * 64, "FlagTree", SUBJECT.created, SUBJECT.base)
    serials = {json.loads(make_sbom(one, held()))["serialNumber"] for one in (SUBJECT, other)}
    assert len(serials) == 2


def test_an_image_without_packages_and_names_that_are_no_text() -> None:
    odd = "/opt/deepinfer/\udcff<&>\"'"
    bare = held(files={odd: {"sha256": "a" * 64, "bytes": 0, "mode": "0644"}}, distributions=[], debian=[], system={})
    document = json.loads(make_sbom(SUBJECT, bare))
    assert list(files_of(document)) == ["/opt/deepinfer/\\udcff<&>\"'"]
    assert packages_of(document) == {}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda made: made["components"][0].update(type="thing"),
        lambda made: made.pop("bomFormat"),
        lambda made: made.update(serialNumber="urn:uuid:1"),
        lambda made: made["components"].append(
            {"type": "file", "name": "/x", "hashes": [{"alg": "SHA-256", "content": "?"}]}
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_the_schema_is_refused(spoil: Any) -> None:
    document = json.loads(make_sbom(SUBJECT, held()))
    spoil(document)
    with pytest.raises(BuildError, match="CycloneDX's schema"):
        validate(json.dumps(document))


def test_the_library_is_not_loaded_by_the_verbs() -> None:
    code = "import sys, tasks, build.verbs; print([name for name in sys.modules if name.startswith('cyclonedx')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_program_in_the_image_describes_files_links_and_folders(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "deep").mkdir(parents=True)
    (root / "deep" / "file").write_bytes(b"abc")
    (root / "deep" / "file").chmod(0o750)
    (root / "link").symlink_to("deep/file")
    os.mkfifo(root / "pipe")
    found = inventory.inventory([str(root / "link"), str(root / "absent")], roots=[str(root)])["files"]
    assert found == {
        str(root / "link"): {"link": "deep/file"},
        str(root / "deep" / "file"): {
            "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", "bytes": 3, "mode": "0750",
        },
    }  # fmt: skip


def test_the_program_runs_as_the_archive_that_goes_into_images(tmp_path: Path) -> None:
    archive, arguments = tmp_path / "gates.pyz", tmp_path / "a.json"
    archive.write_bytes(bundle())
    assert "build/gates/programs/inventory.py" in zipfile.ZipFile(archive).namelist()
    arguments.write_text(json.dumps({"paths": [str(arguments)]}))
    done = subprocess.run(
        [sys.executable, archive, "inventory", f"@{arguments}"], capture_output=True, text=True, check=True, cwd="/"
    )
    found = json.loads(done.stdout)
    assert list(found["files"]) == [str(arguments)]
    assert {row["name"]: row["version"] for row in found["distributions"]}["pytest"] == importlib.metadata.version(
        "pytest"
    )


def test_debian_packages_installed_and_removed_and_with_files_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "status.d").mkdir()
    (tmp_path / "status").write_text(
        "Package: libc6\nStatus: install ok installed\nArchitecture: amd64\nVersion: 2.41-12\nSource: glibc (2.41)\n"
        "Description: GNU C Library\n with: a second line\n\n"
        "Package: gone\nStatus: deinstall ok config-files\nArchitecture: amd64\nVersion: 1\n\n"
    )
    (tmp_path / "status.d" / "base").write_text("Package: base-files\nVersion: 13\nArchitecture: all\n")
    (tmp_path / "status.d" / "base.md5sums").write_text("Package: no\n")
    found = inventory.debian(tmp_path)
    assert [(row["package"], row["version"], row["source"]) for row in found] == [
        ("base-files", "13", ""),
        ("libc6", "2.41-12", "glibc (2.41)"),
    ]


def test_a_system_that_is_no_debian_has_no_packages(tmp_path: Path) -> None:
    assert inventory.debian(tmp_path) == []
    assert inventory.system(tmp_path / "os-release") == {}


def test_distributions_with_odd_metadata(tmp_path: Path) -> None:
    for name, text in {
        "good": "Name: good\nVersion: 1\nLicense-Expression: MIT\n",
        "long": f"Name: long\nVersion: 2\nLicense: {'x' * 200}\n",
        "nameless": "Version: 3\n",
    }.items():
        folder = tmp_path / f"{name}-1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(text)
    (tmp_path / "empty-1.dist-info").mkdir()
    found = inventory.distributions([str(tmp_path), str(tmp_path), "/nonexistent"])
    assert [(row["name"], row["expression"], row["licence"]) for row in found] == [
        ("good", "MIT", ""),
        ("long", "", ""),
    ]
    assert {row["folder"] for row in found} == {str(tmp_path)}
