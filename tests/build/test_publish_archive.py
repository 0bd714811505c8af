"""Archives without an engine: what lies in one, and names under which none is written or read."""

from __future__ import annotations

import dataclasses
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from build.errors import EnvironmentCannot, UsageError
from build.publish.archive import _alone, write_archive
from build.publish.layout import add_documents, read_attached, read_layout
from build.publish.manifests import sha256
from tests.publish_layouts import archive_of, documents_in, image_manifest


def test_an_archive_holds_the_documents_beside_the_image(tmp_path: Path) -> None:
    image = image_manifest()
    file = archive_of(tmp_path / "image.tar", image)
    plain = read_layout(file)
    documents = documents_in(tmp_path / "here")
    add_documents(file, image, documents)
    content = read_layout(file)
    assert dataclasses.replace(content, attached=()) == plain and content.tag == "1.0-cpu"
    kept = {found.kind: read_attached(file, found) for found in content.attached}
    assert kept == {document.kind: document.path.read_bytes() for document in documents}
    with tarfile.open(file) as archive:
        names = archive.getnames()
        assert len(names) == len(set(names)) and {"index.json", "oci-layout"} <= set(names)
        for name in names:
            if name.startswith("blobs/"):
                data = archive.extractfile(name).read()  # type: ignore[union-attr]
                assert sha256(data) == name.removeprefix("blobs/").replace("/", ":")


def test_a_document_that_rots_in_an_archive_is_told(tmp_path: Path) -> None:
    file = archive_of(tmp_path / "image.tar", image_manifest())
    documents = documents_in(tmp_path / "here")
    add_documents(file, image_manifest(), documents)
    data = file.read_bytes()
    text = documents[1].path.read_bytes()
    file.write_bytes(data.replace(text, b"X" * len(text)))
    (sbom,) = [found for found in read_layout(file).attached if found.kind == "sbom"]
    with pytest.raises(EnvironmentCannot, match="does not have its digest"):
        read_attached(file, sbom)
    created = json.dumps(documents[0].created).encode()
    file.write_bytes(data.replace(created + b'}, "artifactType"', b'"1026-11-30T10:00:00Z"}, "artifactType"'))
    assert file.read_bytes() != data and read_layout(file).attached == (), (
        "artefacts that were altered are none of ours"
    )


def test_an_archive_takes_the_place_of_a_file_alone(tmp_path: Path) -> None:
    nobody: Any = None  # the name is looked at before the engine or the image
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name, said in (("pipe", "no file"), ("link", "no file"), (".", "no file"), ("absent/x.tar", "does not exist")):
        with pytest.raises(UsageError, match=said):
            write_archive(nobody, nobody, tmp_path / name)
    assert (tmp_path / "pipe").is_fifo()
    assert {entry.name for entry in tmp_path.iterdir()} == {"pipe", "link"}


def test_only_what_was_left_of_this_very_file_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "cache"))
    names = {
        "x[1].tar": ".part-abcdefgh-x[1].tar",
        "my-x[1].tar": ".part-abcdefgh-my-x[1].tar",
        "x1.tar": ".part-abcdefgh-x1.tar",
    }
    for part in names.values():
        (tmp_path / part).touch()
    with _alone(tmp_path / "x[1].tar"):
        left = {path.name for path in tmp_path.glob(".part-*")}
    assert left == set(names.values()) - {names["x[1].tar"]}


def test_what_is_no_file_is_not_read_as_an_archive(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(UsageError, match="is no file"):
            read_layout(place)
