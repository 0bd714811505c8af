"""What `verify` finds: every kind of fact that can be edited, replaced or lost, each named."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from build.attest import command
from build.attest.artefacts import artefact_rows
from build.attest.evidence import Evidence, find_evidence, read_evidence
from build.attest.facts import manifest_facts
from build.attest.provenance import PREDICATE, Layers, make_provenance
from build.attest.record import subject_of
from build.attest.rows import Report, Row, as_text
from build.attest.sbom import make_sbom
from build.attest.signing import bundle_of, sign, signature_row
from build.attest.verify import content_rows, image_rows, manifest_rows
from build.containers import LABEL
from build.errors import EnvironmentCannot, GateFailed, NothingSelected, UsageError
from build.manifest import document_sha256
from build.matrix.load import load_matrix
from tests.image_stand_ins import base_facts, make_wheel

IMAGE = "sha256:" + "b" * 64
BASE = "sha256:" + "a" * 64
GEMM, HELD = "cells[flagtree/deep_gemm]", "inspection.distributions"
Edit = Callable[[dict[str, Any]], object]


def digest(inputs: dict[str, str]) -> str:
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclasses.dataclass
class Ground:
    """A manifest with its files in a folder, the cache that made it, and what its image holds."""

    folder: Path
    cache: Path
    held: dict[str, Any]
    labels: dict[str, str]

    @property
    def path(self) -> Path:
        return self.folder / "manifest.json"

    def evidence(self) -> Evidence:
        return read_evidence(self.path)

    def edit(self, change: Edit) -> Evidence:
        made = json.loads(self.path.read_text())
        change(made)
        self.path.write_text(json.dumps(made))
        return self.evidence()


@pytest.fixture
def ground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ground:
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "cache"))
    inputs, gemm = {"base": BASE}, {"torch": "2.11.0+cu130"}
    key = digest(gemm)
    wheel = make_wheel(
        tmp_path / "cache" / "wheelhouse" / key, "deep_gemm", "2.8.2", {"deep_gemm/__init__.py": b"x = 1\n"}
    )
    document = {"schema": 1, "components": {"deep_gemm": {"key": key}}}
    text = (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()
    labels = {
        f"{LABEL}.image": "flagtree", f"{LABEL}.key": digest(inputs), f"{LABEL}.manifest": document_sha256(document),
        "org.opencontainers.image.created": "2026-11-30T08:39:02Z",
    }  # fmt: skip
    held = {
        "files": {
            "/opt/deepinfer/image.json": {"sha256": sha256(text), "bytes": len(text), "mode": "0644"},
            "/opt/deepinfer/site/deep_gemm/__init__.py": {"sha256": sha256(b"x = 1\n"), "bytes": 6, "mode": "0644"},
            "/opt/deepinfer/site/other/__init__.py": {"sha256": "7" * 64, "bytes": 6, "mode": "0644"},
        },
        "distributions": [{"name": "torch", "version": "2.11.0", "folder": "/x", "expression": "", "licence": ""}],
        "debian": [{"package": "libc6", "version": "2.41", "architecture": "amd64", "source": ""}],
        "system": {"ID": "debian", "VERSION_ID": "13"},
    }
    manifest = {
        "schema": 1, "image": "flagtree", "title": "FlagTree", "created": "2026-11-30T08:39:19Z", "image_id": IMAGE,
        "image_key": digest(inputs), "image_inputs": inputs, "tags": ["deepinfer:x", "deepinfer:flagtree"],
        "labels": labels, "document": document, "document_sha256": document_sha256(document),
        "base": {"kind": "replica", "reference": "here:x", "image_id": BASE, "digest": BASE},
        "inspection": base_facts().to_json(), "passed": True, "times": {"compile": 1.5},
        "cells": [{
            "cell": "flagtree/deep_gemm", "status": "built", "key": key, "inputs": gemm,
            "source": {"pypi": "deepinfer-gemm", "version": "2.8.2", "sha256": "d" * 64},
            "artefact": {"name": wheel.name, "bytes": wheel.stat().st_size, "sha256": sha256(wheel.read_bytes())},
        }],
    }  # fmt: skip
    folder = tmp_path / "manifests"
    folder.mkdir()
    sbom = make_sbom(subject_of(manifest), held)
    (folder / "x.cdx.json").write_text(sbom)
    told = {"name": "x.cdx.json", "sha256": sha256(sbom.encode()), "format": "CycloneDX 1.6"}
    statement = json.dumps(
        make_provenance(
            manifest, target=load_matrix().targets["flagtree"], inspection=base_facts(), sbom=told, engine="20.10",
            layers=Layers(("sha256:1", "sha256:2"), 1),
        )
    )  # fmt: skip
    (folder / "x.provenance.json").write_text(statement)
    beside = {"name": "x.provenance.json", "sha256": sha256(statement.encode()), "format": PREDICATE}
    (folder / "manifest.json").write_text(
        json.dumps({**manifest, "attestations": {"sbom": told, "provenance": beside}})
    )
    return Ground(folder, tmp_path / "cache", held, labels)


def all_rows(ground: Ground, evidence: Evidence) -> list[Row]:
    from build.attest.sbom import files_of

    listed = files_of(evidence.sbom.content) if evidence.sbom and evidence.sbom.content else {}
    return [
        *manifest_rows(evidence),
        *image_rows(evidence.manifest, IMAGE, ground.labels),
        *content_rows(evidence, ground.held, ground.labels, ""),
        *artefact_rows(evidence.manifest, listed),
    ]


def wrong(rows: list[Row]) -> list[str]:
    return [row.fact for row in rows if row.state == "differs"]


def test_nothing_differs_of_what_nobody_touched(ground: Ground) -> None:
    rows = all_rows(ground, ground.evidence())
    assert wrong(rows) == []
    assert {row.group for row in rows} == {"manifest", "image", "files", "artefacts"}
    assert all(row.state == "ok" and row.note for row in rows)


@pytest.mark.parametrize(
    ("edit", "facts"),
    [
        (lambda m: m.update(title="Other"), {"manifest title"}),
        (lambda m: m.update(passed=False), {"manifest passed"}),
        (lambda m: m["times"].update(compile=0.1), {"manifest times.compile"}),
        (lambda m: m["base"].update(kind="vendor"), {"manifest base.kind"}),
        (lambda m: m["base"].update(digest=IMAGE), {"manifest base.digest"}),
        (lambda m: m.update(image_id=BASE), {"manifest image_id", "image id"}),
        (lambda m: m["cells"][0]["source"].update(sha256="e" * 64), {f"manifest {GEMM}.source.sha256"}),
        (lambda m: m["cells"][0].pop("status"), {"manifest cells[flagtree/deep_gemm].status"}),
        (lambda m: m["cells"][0].update(more=1), {"manifest cells[flagtree/deep_gemm].more"}),
        (lambda m: m["inspection"]["distributions"].update(torch="2.12.0"), {f"manifest {HELD}.torch"}),
        (lambda m: m["tags"].append("deepinfer:y"), {"manifest tags[2]"}),
    ],
)  # fmt: skip
def test_a_manifest_that_is_edited_by_hand_is_named_by_its_fact(ground: Ground, edit: Edit, facts: set[str]) -> None:
    assert set(wrong(all_rows(ground, ground.edit(edit)))) == facts


def test_a_key_is_held_against_its_inputs_too(ground: Ground) -> None:
    found = wrong(all_rows(ground, ground.edit(lambda m: m["cells"][0]["inputs"].update(torch="2.12.0"))))
    assert "manifest cells[flagtree/deep_gemm].inputs.torch" in found
    assert "manifest cells[flagtree/deep_gemm].key, of its inputs" in found


def test_a_manifest_and_its_provenance_edited_alike_still_differ_from_the_image(ground: Ground) -> None:
    """Whoever writes both anew with sums that fit is found by what the image and its labels say."""
    made = json.loads(ground.path.read_text())
    made["document"]["components"]["deep_gemm"]["version"] = "9"
    made["document_sha256"] = document_sha256(made["document"])
    made["labels"]["org.opencontainers.image.created"] = "2027-01-01T00:00:00Z"
    statement = json.dumps(
        make_provenance(
            made, target=load_matrix().targets["flagtree"], inspection=base_facts(), sbom=made["attestations"]["sbom"],
            engine="", layers=Layers((), 0),
        )
    )  # fmt: skip
    (ground.folder / "x.provenance.json").write_text(statement)
    made["attestations"]["provenance"]["sha256"] = sha256(statement.encode())
    ground.path.write_text(json.dumps(made))
    found = wrong(all_rows(ground, ground.evidence()))
    assert found == [
        "label org.opencontainers.image.created",
        f"label {LABEL}.manifest, by document_sha256",
    ]


@pytest.mark.parametrize("what", ["sbom", "provenance"])
def test_a_file_beside_the_manifest_that_was_changed_or_lost(ground: Ground, what: str) -> None:
    told = ground.evidence().manifest["attestations"][what]["name"]
    path = ground.folder / told
    whole = path.read_text()
    path.write_text(whole + " ")
    assert wrong(manifest_rows(ground.evidence())) == [f"{what} {told}"]
    path.write_text(whole[: len(whole) // 2])
    assert f"{what} {told}" in wrong(manifest_rows(ground.evidence()))
    path.unlink()
    assert f"{what} {told}" in wrong(manifest_rows(ground.evidence()))


def test_a_manifest_from_which_the_files_beside_it_are_struck_out(ground: Ground) -> None:
    found = wrong(all_rows(ground, ground.edit(lambda m: m.pop("attestations"))))
    assert {"manifest attestations.sbom", "manifest attestations.provenance"} <= set(found)


def test_a_name_that_leads_elsewhere_is_looked_for_beside_the_manifest(ground: Ground) -> None:
    evidence = ground.edit(lambda m: m["attestations"]["sbom"].update(name="../../../../etc/passwd"))
    assert evidence.sbom is not None and evidence.sbom.path == ground.folder / "passwd"


def test_files_that_were_changed_lost_and_added_are_named(ground: Ground) -> None:
    site = "/opt/deepinfer/site"
    ground.held["files"][f"{site}/deep_gemm/__init__.py"]["sha256"] = "0" * 64
    del ground.held["files"][f"{site}/other/__init__.py"]
    ground.held["files"]["/opt/deepinfer/lib/extra.so"] = {"link": "/tmp/x"}
    rows = content_rows(ground.evidence(), ground.held, ground.labels, "")
    differing = {row.fact: (row.recorded[:7], row.found[:9]) for row in rows if row.state == "differs"}
    assert differing == {
        f"{site}/deep_gemm/__init__.py": ("sha256 " + "", "sha256 00"),
        f"{site}/other/__init__.py": ("sha256 ", ""),
        "/opt/deepinfer/lib/extra.so": ("", "a link to"),
    }


def test_packages_that_came_and_went_are_named(ground: Ground) -> None:
    ground.held["distributions"][0]["version"] = "2.12.0"
    ground.held["debian"] = []
    found = wrong(content_rows(ground.evidence(), ground.held, ground.labels, ""))
    assert [name.partition("?")[0] for name in found] == [
        "package pkg:deb/debian/libc6@2.41", "package pkg:pypi/torch@2.11.0", "package pkg:pypi/torch@2.12.0",
    ]  # fmt: skip


def test_another_image_json_than_the_label_says(ground: Ground) -> None:
    labels = {**ground.labels, f"{LABEL}.manifest": "sha256:" + "0" * 64}
    assert wrong(content_rows(ground.evidence(), ground.held, labels, ""))[0] == "image.json, by the label"


def test_an_image_that_cannot_be_looked_into(ground: Ground) -> None:
    rows = content_rows(ground.evidence(), None, ground.labels, "python3 does not start")
    assert [(row.state, row.found) for row in rows] == [("differs", "python3 does not start")]


def test_a_component_in_the_wheelhouse_with_one_byte_changed(ground: Ground) -> None:
    wheel = next((ground.cache / "wheelhouse").glob("*/*.whl"))
    data = bytearray(wheel.read_bytes())
    data[100] ^= 1
    wheel.write_bytes(data)
    found = wrong(all_rows(ground, ground.evidence()))
    assert found == ["cells[flagtree/deep_gemm].artefact.sha256"]
    assert wheel.is_file(), "a check removes nothing"


def test_a_component_whose_file_is_another_in_the_image(ground: Ground) -> None:
    evidence = ground.evidence()
    listed = {"/opt/deepinfer/site/deep_gemm/__init__.py": {"sha256": "0" * 64}}
    rows = artefact_rows(evidence.manifest, listed)
    assert wrong(rows) == ["flagtree/deep_gemm: /opt/deepinfer/site/deep_gemm/__init__.py"]
    assert wrong(artefact_rows(evidence.manifest, {"/opt/x": {"sha256": "0" * 64}})) == [
        "flagtree/deep_gemm: files in the image"
    ]


def test_a_component_that_is_not_here_is_told_and_no_fault(ground: Ground) -> None:
    shutil.rmtree(ground.cache / "wheelhouse")
    rows = artefact_rows(ground.evidence().manifest, {})
    assert [(row.state, row.note) for row in rows] == [("not checked", "the wheelhouse here does not have it")]


def test_metadata_that_installers_write_anew_is_not_compared(ground: Ground) -> None:
    wheel = next((ground.cache / "wheelhouse").glob("*/*.whl"))
    names = zipfile.ZipFile(wheel).namelist()
    assert any(".dist-info/" in name for name in names)
    listed = {"/opt/deepinfer/site/deep_gemm/__init__.py": {"sha256": sha256(b"x = 1\n")}}
    listed |= {f"/opt/deepinfer/site/{name}": {"sha256": "0" * 64} for name in names if ".dist-info/" in name}
    assert wrong(artefact_rows(ground.evidence().manifest, listed)) == []


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"image_id": 1, "labels": {}, "cells": [], "inspection": 1}'])
def test_a_file_that_is_no_manifest(tmp_path: Path, text: str) -> None:
    path = tmp_path / "m.json"
    path.write_text(text)
    with pytest.raises(GateFailed, match="is no manifest"):
        read_evidence(path)


@pytest.mark.parametrize("labels", [{}, {f"{LABEL}.image": "../x", f"{LABEL}.key": "c" * 64}, {f"{LABEL}.image": "x"}])
def test_an_image_of_somebody_elses(labels: dict[str, str]) -> None:
    with pytest.raises(EnvironmentCannot, match="does not say that it is an image of this project"):
        find_evidence("debian:13", labels, None)


def test_an_image_from_another_machine_says_which_file_to_bring(ground: Ground, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentCannot) as caught:
        find_evidence("deepinfer:flagtree", ground.labels, None)
    assert ground.labels[f"{LABEL}.key"][:12] in caught.value.next_step and "--manifest" in caught.value.next_step
    assert find_evidence("x", ground.labels, ground.path).path == ground.path
    shutil.copy(ground.path, ground.folder / f"{ground.labels[f'{LABEL}.key'][:12]}.json")
    assert find_evidence("x", ground.labels, ground.folder).manifest["image"] == "flagtree"


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_edit_is_refused_or_found_and_never_a_traceback(ground: Ground, data: st.DataObject) -> None:
    whole = ground.path.read_text()
    made = json.loads(whole)
    place: Any = made
    while True:
        keys = sorted(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if not (isinstance(place[key], (dict, list)) and place[key] and data.draw(st.booleans())):
            break
        place = place[key]
    value = data.draw(st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just([]) | st.just({}))
    same = json.dumps(place[key], sort_keys=True) == json.dumps(value, sort_keys=True)
    place[key] = value
    ground.path.write_text(json.dumps(made))
    try:
        found = wrong(all_rows(ground, ground.evidence()))
    except GateFailed:
        found = ["refused"]
    finally:
        ground.path.write_text(whole)
    assert bool(found) is not same


def test_names_are_images_of_the_matrix_and_everything_else_dockers() -> None:
    assert command.references("cpu") == ["deepinfer:cpu"]
    assert command.references("fla*") == ["deepinfer:flagtree", "deepinfer:flagos"]
    assert command.references("registry.example.org/deepinfer:x") == ["registry.example.org/deepinfer:x"]
    assert command.references(IMAGE) == [IMAGE]
    with pytest.raises(NothingSelected, match="flagtree"):
        command.references("flagtre")
    with pytest.raises(UsageError, match="of one image"):
        command.run("fla*", manifest=Path("/x"), key="", sign=False, as_json=False)


def test_the_report_names_values_and_what_to_do_and_does_not_flood() -> None:
    rows = [Row("files", f"/opt/{n}", "differs", "sha256 a", "") for n in range(50)]
    text = as_text(Report("deepinfer:x", IMAGE, "/m.json", (*rows, Row("image", "image id", "ok", note="as recorded"))))
    assert "/opt/0: recorded sha256 a, found nothing" in text
    assert "and 30 more" in text and "/opt/20:" not in text
    assert "next step: files of the image were changed" in text and text.endswith("50 facts differ")
    report = Report("x", IMAGE, "/m.json", tuple(rows))
    assert len(report.to_json()["facts"]) == 50 and report.to_json()["ok"] is False


def test_without_cosign_nothing_is_signed_and_no_signature_believed(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert signature_row(ground.path, "").state == "not checked"
    assert signature_row(ground.path, "cosign.pub").state == "differs", "a key is named and there is no signature"
    with pytest.raises(UsageError, match="private key"):
        sign(ground.path, "")
    with pytest.raises(EnvironmentCannot, match="cosign is not installed, so nothing is signed"):
        sign(ground.path, "cosign.key")
    bundle_of(ground.path).write_text("{}")
    assert "there is one" in signature_row(ground.path, "").note
    with pytest.raises(EnvironmentCannot, match="cannot be checked"):
        signature_row(ground.path, "cosign.pub")


def test_manifest_facts_are_named_as_people_would(ground: Ground) -> None:
    assert "cells[flagtree/deep_gemm].artefact.sha256" in manifest_facts(ground.evidence().manifest)


def test_what_is_fetched_from_a_registry_is_neither_named_nor_signed(tmp_path: Path) -> None:
    name = "registry.example.org/team/deepinfer@sha256:" + "0" * 64
    for manifest, sign_it in ((tmp_path, False), (None, True)):
        with pytest.raises(UsageError, match="--registry fetches"):
            command.run(name, manifest=manifest, key="", sign=sign_it, as_json=False, registry=True)
