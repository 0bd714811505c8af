"""The verb `verify`: which image is meant, where what is told of it is found, its report and its signature."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from build.attest import command
from build.attest.evidence import find_evidence, read_evidence
from build.attest.rows import Report, Row, as_text
from build.attest.signing import bundle_of, sign, signature_row
from build.containers import LABEL
from build.errors import EnvironmentCannot, GateFailed, NothingSelected, UsageError
from tests.build.verify_ground import (
    IMAGE,
    Ground,
    make_ground,
)


@pytest.fixture
def ground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ground:
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "cache"))
    return make_ground(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        pytest.param("[" * 100_000, id="deep"),
        "[]",
        "{}",
        '{"image_id": 1, "labels": {}, "cells": [], "inspection": 1}',
    ],
)
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


def test_names_are_images_of_the_matrix_and_everything_else_dockers() -> None:
    assert command.references("cpu") == ["deepinfer:cpu"]
    assert command.references("fla*") == ["deepinfer:flagtree", "deepinfer:flagos"]
    assert command.references("registry.example.org/deepinfer:x") == ["registry.example.org/deepinfer:x"]
    assert command.references(IMAGE) == [IMAGE]
    assert command.references(IMAGE.removeprefix("sha256:")[:12]) == ["b" * 12], "an id as `docker images` shows it"
    whole = f"[::1]:5000/a/b__c:1.0_x@{IMAGE}"
    assert command.references(whole) == [whole]
    with pytest.raises(NothingSelected, match="flagtree"):
        command.references("flagtre")
    with pytest.raises(UsageError, match="of one image"):
        command.run("fla*", manifest=Path("/x"), key="", sign=False, as_json=False)


@pytest.mark.parametrize(
    "image",
    [
        "a b:c",
        "UPPER:c",
        "x/UPPER",
        "a\udcff:b",
        "a:b,c:d",
        "deepinfer:cpu@sha256:00",
        ":",
        "/",
        "a:",
        "a::b",
        "a\n:b",
        "a:b\n",
    ],
)
def test_what_can_be_no_images_name_is_told_as_that(image: str) -> None:
    with pytest.raises(UsageError, match="cannot be the name of an image") as told:
        command.references(image)
    str(told.value).encode()  # can be printed


def test_the_report_names_values_and_what_to_do_and_does_not_flood() -> None:
    rows = [Row("files", f"/opt/{n}", "differs", "sha256 a", "") for n in range(50)]
    text = as_text(Report("deepinfer:x", IMAGE, "/m.json", (*rows, Row("image", "image id", "ok", note="as recorded"))))
    assert "/opt/0: recorded sha256 a, found nothing" in text
    assert "and 30 more" in text and "/opt/20:" not in text
    assert "next step: files of the image were changed" in text and text.endswith("50 facts differ")
    assert as_text(Report("x", IMAGE, "/m.json", (rows[0],))).endswith("x: 1 fact differs")
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


def test_what_is_fetched_from_a_registry_is_neither_named_nor_signed(tmp_path: Path) -> None:
    name = "registry.example.org/team/deepinfer@sha256:" + "0" * 64
    for manifest, sign_it in ((tmp_path, False), (None, True)):
        with pytest.raises(UsageError, match="--registry fetches"):
            command.run(name, manifest=manifest, key="", sign=sign_it, as_json=False, registry=True)
