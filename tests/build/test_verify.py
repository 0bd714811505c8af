"""What `verify` finds: every kind of fact that can be edited, replaced or lost, each named."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from build.attest.artefacts import artefact_rows
from build.attest.facts import manifest_facts
from build.attest.provenance import Layers, make_provenance
from build.attest.verify import content_rows, look_inside, manifest_rows
from build.container import RunResult
from build.containers import LABEL, Engine
from build.errors import GateFailed
from build.manifest import document_sha256
from build.matrix.load import load_matrix
from tests.build.verify_ground import (
    BASE,
    GEMM,
    HELD,
    IMAGE,
    Edit,
    Ground,
    all_rows,
    make_ground,
    sha256,
    wrong,
)
from tests.image_stand_ins import base_facts


@pytest.fixture
def ground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ground:
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "cache"))
    return make_ground(tmp_path)


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


@pytest.mark.parametrize(
    "content",
    [
        {"components": 3},
        {"components": ["x"]},
        {"components": [{"type": "file", "name": "/x", "hashes": [{}]}]},
        {"components": [{"type": "file", "name": 7, "properties": [{"name": "deepinfer:link", "value": "/y"}]}]},
        {"components": [{"type": "library"}]},
        {"components": [{"type": "library", "bom-ref": 7}]},
    ],
)
def test_a_list_of_contents_that_was_edited_into_another_shape_is_told_and_no_traceback(
    ground: Ground, content: dict[str, Any]
) -> None:
    (ground.folder / "x.cdx.json").write_text(json.dumps(content))
    rows = all_rows(ground, ground.evidence())
    assert wrong(rows) == ["sbom x.cdx.json"]
    assert [row.fact for row in rows if row.state == "not checked"] == ["files"]


@pytest.mark.parametrize(
    "held",
    [
        {},
        {"files": []},
        {"files": {"/opt/deepinfer/image.json": 3}},
        {"files": {"/x": {"sha256": "0" * 64}}, "distributions": [], "debian": [], "system": {}},
        {"files": {}, "distributions": [{}], "debian": [], "system": {}},
        {"files": {}, "distributions": [], "debian": ["x"], "system": {}},
    ],
)
def test_an_image_whose_python_lists_nonsense_is_told_and_no_traceback(ground: Ground, held: dict[str, Any]) -> None:
    rows = content_rows(ground.evidence(), held, ground.labels, "")
    assert wrong(rows) == ["what the image holds"] and "lacks a part" in rows[0].found


def test_what_a_bases_start_up_prints_is_not_taken_for_the_answer(ground: Ground) -> None:
    class Greets:
        def run(self, image: str, argv: list[str], **_: Any) -> RunResult:
            return RunResult(0, 'welcome to the vendor\'s image\n{"files": {}}\n', "")

    assert look_inside(cast(Engine, Greets()), IMAGE, ground.evidence()) == ({"files": {}}, "")


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


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
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


def test_manifest_facts_are_named_as_people_would(ground: Ground) -> None:
    assert "cells[flagtree/deep_gemm].artefact.sha256" in manifest_facts(ground.evidence().manifest)
