"""Images written into archives and loaded from them by a real engine."""

from __future__ import annotations

import hashlib
import json
import shutil
import tarfile
from pathlib import Path

import pytest

from build import cache
from build.containers import LABEL, Engine
from build.errors import EnvironmentCannot, UsageError
from build.publish.archive import load_archive, write_archive
from tests.images.publish.releases import NAME, documented, made
from tests.publish_stand_ins import files_of, program, tiny_image

pytestmark = pytest.mark.docker


def test_an_archive_holds_the_image_and_loads_where_nothing_is(engine: Engine, tmp_path: Path) -> None:
    program("skopeo", "skopeo")
    release = documented(engine, made(engine, "archived", size=100_000), tmp_path / "made")
    before = files_of(engine, release.image_id)
    file = tmp_path / "image.oci.tar"
    file.write_bytes(b"what was there before")
    written = write_archive(engine, release, file)
    with tarfile.open(file) as archive:
        names = archive.getnames()
        index = json.load(archive.extractfile("index.json"))  # type: ignore[arg-type]
    assert "oci-layout" in names and index["manifests"][0]["digest"] == written.digest
    engine.client.images.remove(release.image_id, force=True)
    loaded = load_archive(engine, file)
    assert loaded.digest == written.digest and loaded.names == (f"deepinfer:{release.tag}", f"deepinfer:{NAME}")
    assert files_of(engine, f"deepinfer:{NAME}") == before
    assert engine.labels(f"deepinfer:{NAME}")[f"{LABEL}.image"] == NAME
    folder = cache.folder(f"manifests/{NAME}")
    key = engine.labels(f"deepinfer:{NAME}")[f"{LABEL}.key"][:12]
    assert {path.name for path in folder.iterdir()} == {
        f"{key}.{end}" for end in ("json", "cdx.json", "provenance.json")
    }
    assert (folder / f"{key}.json").read_bytes() == release.documents[0].path.read_bytes(), "`verify` finds it there"
    again = load_archive(engine, file)
    assert again.names == loaded.names and set(again.documents.values()) == {"there"}
    assert not list(tmp_path.glob(".part-*")) and not list((cache.root() / "work").iterdir())


def test_a_loaded_archive_takes_no_immutable_name_from_another_image(engine: Engine, tmp_path: Path) -> None:
    program("skopeo", "skopeo")
    release = made(engine, "mine")
    file = tmp_path / "image.tar"
    write_archive(engine, release, file)
    kept = load_archive(engine, file)
    assert engine.image_id(kept.names[0]) == release.image_id, "the build keeps its name, and its HEALTHCHECK"
    engine.client.images.remove(release.image_id, force=True)
    other = tiny_image(engine, NAME, {"other": b""}, key=hashlib.sha256(b"mine").hexdigest())
    with pytest.raises(EnvironmentCannot, match="is another image here"):
        load_archive(engine, file)
    assert engine.image_id(kept.names[0]) == other and engine.image_id(f"deepinfer:{NAME}") is None
    load_archive(engine, file, anyway=True)
    assert files_of(engine, kept.names[0])["word"] == b"mine"


def test_a_damaged_archive_moves_no_name(engine: Engine, tmp_path: Path) -> None:
    program("skopeo", "skopeo")
    release = documented(engine, made(engine, "damaged", size=100_000), tmp_path / "made")
    text = release.documents[1].path.read_bytes()
    whole = tmp_path / "whole.tar"
    write_archive(engine, release, whole)
    engine.client.images.remove(release.image_id, force=True)
    data = whole.read_bytes()
    with tarfile.open(whole) as archive:
        largest = max(archive.getmembers(), key=lambda member: member.size)
    at = largest.offset_data + largest.size // 2
    for name, content in {
        "layer": data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :],
        "cut": data[: len(data) // 2],
        "document": data.replace(text, b"X" * len(text)),
        "text": b"not an archive at all",
    }.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(EnvironmentCannot):
            load_archive(engine, tmp_path / name)
        assert engine.image_id(f"deepinfer:{NAME}") is None, name
    with pytest.raises(UsageError, match="there is no file"):
        load_archive(engine, tmp_path / "absent.tar")


def test_without_skopeo_the_command_is_told(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = made(engine, "no skopeo")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("apt-get", "git"):
        if where := shutil.which(name):
            (programs / name).symlink_to(where)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.delenv("DEEPINFER_SETUP", raising=False)
    with pytest.raises(EnvironmentCannot, match="skopeo is missing") as missing:
        write_archive(engine, release, tmp_path / "image.tar")
    assert missing.value.exit_code == 4 and "apt-get install" in missing.value.next_step
    assert not (tmp_path / "image.tar").exists()
