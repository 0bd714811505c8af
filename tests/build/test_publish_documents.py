"""What goes with an image: attached in a registry, found again by who has the image alone."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from build import cache
from build.attest import fetch
from build.attest.evidence import read_evidence
from build.attest.fetch import fetch_from
from build.errors import EnvironmentCannot, GateFailed
from build.publish.artefacts import CREATED, TITLE, TYPES, documents_of, read_artefact
from build.publish.connection import Damaged
from build.publish.location import IMAGES, Location
from build.publish.manifests import OCI_INDEX, OCI_MANIFEST, Manifest, sha256
from build.publish.referrers import attach, fallback_tag, find_attached, listed
from build.publish.registry import Registry
from tests.publish_layouts import CONFIG, KEY, documents_in, evidence_in, image_manifest
from tests.publish_stand_ins import Answers, RegistryProgram, running


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryProgram]:
    with running(tmp_path_factory.mktemp("registry")) as found:
        yield found


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))


@pytest.fixture
def registry(program: RegistryProgram, tmp_path: Path) -> Registry:
    """A repository of its own for every test."""
    return opened(program.host, tmp_path.name.lower().strip("_"))


def opened(host: str, path: str = "team") -> Registry:
    return Registry(Location(host, path), IMAGES, plain=True, pauses=(0.01,), patience=120.0)


def image_in(registry: Registry, tag: str = "tag") -> Manifest:
    registry.put_blob(CONFIG, sha256(CONFIG))
    registry.put_manifest(tag, image_manifest())
    return image_manifest()


def texts(folder: Path) -> Mapping[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_what_was_attached_comes_back_byte_for_byte(registry: Registry, tmp_path: Path) -> None:
    image = image_in(registry)
    documents = documents_in(tmp_path / "here")
    (tmp_path / "here" / f"{KEY[:12]}.sigstore.json").write_text('{"signature": 1}')
    documents = documents_of(read_evidence(documents[0].path))
    assert [document.kind for document in documents] == ["manifest", "sbom", "provenance", "signature"]
    assert attach(registry, image, documents) == dict.fromkeys(TYPES, "attached")
    for name in (image.digest, "tag"):
        fetched = fetch_from(registry, name, image_id=image.config, key=KEY)
        assert texts(fetched.folder) == texts(tmp_path / "here") and fetched.row.state == "ok"
    other = fetch_from(registry, "tag", image_id="sha256:another", key=KEY)
    assert (other.row.state, other.row.recorded, other.row.found) == ("differs", image.config, "sha256:another")


def test_other_programs_find_it_as_the_standard_says(registry: Registry, tmp_path: Path) -> None:
    image = image_in(registry)
    attach(registry, image, documents_in(tmp_path / "here"))
    index = registry.manifest(image.digest.replace(":", "-"))
    assert index is not None and index.media_type == OCI_INDEX, "the tag that oras and cosign look under"
    entries = index.document["manifests"]
    assert {entry["artifactType"] for entry in entries} == {TYPES[kind] for kind in ("manifest", "sbom", "provenance")}
    for entry in entries:
        artefact = registry.manifest(entry["digest"])
        assert artefact is not None and entry["size"] == len(artefact.body) and CREATED in entry["annotations"]
        subject = artefact.document["subject"]
        assert subject == {"mediaType": image.media_type, "digest": image.digest, "size": len(image.body)}
        (layer,) = artefact.document["layers"]
        assert (tmp_path / "here" / layer["annotations"][TITLE]).stat().st_size == layer["size"]


def test_attaching_again_writes_nothing_and_a_newer_build_of_the_record_is_taken(
    program: RegistryProgram, registry: Registry, tmp_path: Path
) -> None:
    image = image_in(registry)
    old = documents_in(tmp_path / "old")
    attach(registry, image, old)
    before = program.log().count('"PUT ')
    assert attach(registry, image, old) == dict.fromkeys(("manifest", "sbom", "provenance"), "there")
    assert program.log().count('"PUT ') == before
    attach(registry, image, documents_in(tmp_path / "new", created="2026-12-01T10:00:00Z"))
    assert len(listed(registry, image.digest)) == 6, "what was attached before stays"
    assert texts(fetch_from(registry, "tag", image_id=image.config, key=KEY).folder) == texts(tmp_path / "new")


def test_who_reads_what_was_fetched_while_it_is_fetched_again_finds_it_whole(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two checks of one image at once: the second one fetches while the first one reads."""
    image = image_in(registry)
    attach(registry, image, documents_in(tmp_path / "here"))
    folder = fetch_from(registry, "tag", image_id=image.config, key=KEY).folder
    (folder / "of an older publication").touch()
    plain, seen = fetch._take, []

    def take(*arguments: Any) -> None:
        plain(*arguments)
        seen.append({name: data for name, data in texts(folder).items() if name != "of an older publication"})

    monkeypatch.setattr(fetch, "_take", take)
    assert fetch_from(registry, "tag", image_id=image.config, key=KEY).folder == folder
    assert seen and all(held == texts(tmp_path / "here") for held in [*seen, texts(folder)])


def test_a_newer_record_of_another_image_is_passed_over(registry: Registry, tmp_path: Path) -> None:
    """Whoever may write there can attach anything to anything."""
    image = image_in(registry)
    attach(registry, image, documents_in(tmp_path / "ours"))
    attach(registry, image, documents_in(tmp_path / "theirs", created="2030-01-01T00:00:00Z", image_id="sha256:x"))
    assert texts(fetch_from(registry, "tag", image_id=image.config, key=KEY).folder) == texts(tmp_path / "ours")


def test_two_that_attach_at_once_are_both_listed(program: RegistryProgram, tmp_path: Path) -> None:
    image = image_in(opened(program.host, "race"))
    parties = [documents_in(tmp_path / str(number), created=f"2026-11-30T10:00:0{number}Z") for number in range(3)]
    threads = [
        threading.Thread(target=attach, args=(opened(program.host, "race"), image, documents)) for documents in parties
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(find_attached(opened(program.host, "race"), image.digest)) == 9


def test_what_is_attached_of_others_is_left_alone(registry: Registry, tmp_path: Path) -> None:
    image = image_in(registry)
    registry.put_blob(b"{}", sha256(b"{}"))
    document = json.loads(image_manifest(b"{}").body) | {"artifactType": "application/vnd.example", "layers": []}
    theirs = Manifest(json.dumps(document).encode(), OCI_MANIFEST)
    registry.put_manifest(theirs.digest, theirs)
    entry = {"mediaType": OCI_MANIFEST, "digest": theirs.digest, "size": len(theirs.body)}
    index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [entry]}
    registry.put_manifest(fallback_tag(image.digest), Manifest(json.dumps(index).encode(), OCI_INDEX))
    attach(registry, image, documents_in(tmp_path / "ours"))
    assert listed(registry, image.digest)[0] == entry and len(find_attached(registry, image.digest)) == 3


@pytest.mark.parametrize(
    "entry",
    [
        {"mediaType": OCI_MANIFEST, "digest": "../tags/list"},
        {"mediaType": OCI_MANIFEST, "digest": "sha256:" + "0" * 64},
        {"mediaType": OCI_MANIFEST, "digest": None},
        {"mediaType": "application/vnd.example", "digest": "sha256:" + "0" * 64},
        "no descriptor",
    ],
)
def test_a_list_that_somebody_wrote_by_hand(entry: object) -> None:
    asked: list[str] = []

    def answer(method: str, path: str, authorization: str) -> tuple[int, dict[str, str], bytes]:
        asked.append(path)
        body = json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode()
        return (200, {"Content-Type": OCI_INDEX}, body) if "/referrers/" in path else (404, {}, b"")

    assert find_attached(opened(Answers(answer).host), image_manifest().digest) == []
    assert not any("tags" in path for path in asked)


@pytest.mark.parametrize(
    "changes",
    [
        {"artifactType": "application/vnd.example"}, {"subject": {"digest": "sha256:x"}}, {"subject": None},
        {"layers": []}, {"layers": [{"digest": "../x", "size": 1}]}, {"layers": [{"digest": sha256(b""), "size": "1"}]},
        {"layers": [{"digest": sha256(b""), "size": 1 << 40}]}, {"layers": None}, {"annotations": 3},
    ],
)  # fmt: skip
def test_an_artefact_that_is_none_of_ours(tmp_path: Path, changes: dict[str, object]) -> None:
    image = image_manifest()
    subject = {"mediaType": image.media_type, "digest": image.digest, "size": len(image.body)}
    good = documents_in(tmp_path)[1].artefact(subject)
    assert read_artefact(good, image.digest) is not None
    changed = Manifest(json.dumps({**good.document, **changes}).encode(), OCI_MANIFEST)
    assert read_artefact(changed, image.digest) is None


def test_an_image_with_nothing_attached_is_told(registry: Registry) -> None:
    image = image_in(registry)
    with pytest.raises(EnvironmentCannot, match="nothing that says how this image was made") as bare:
        fetch_from(registry, "tag", image_id=image.config, key=KEY)
    assert "--manifest" in bare.value.next_step
    with pytest.raises(EnvironmentCannot, match="has no image absent"):
        fetch_from(registry, "absent", image_id=image.config, key=KEY)


def test_a_document_that_rots_in_the_registry_is_not_taken(tmp_path: Path) -> None:
    with running(tmp_path / "registry") as program:
        registry = opened(program.host)
        image = image_in(registry)
        documents = documents_in(tmp_path / "here")
        attach(registry, image, documents)
        digest = documents[1].layer()["digest"].removeprefix("sha256:")
        (stored,) = program.storage.rglob(f"{digest}/data")
        stored.write_bytes(stored.read_bytes().replace(b"sbom", b"SBOM"))
        with pytest.raises(Damaged):
            fetch_from(registry, "tag", image_id=image.config, key=KEY)
    assert not [path for path in cache.root().rglob("*.cdx.json") if path.is_file()]


def test_a_document_that_is_not_the_recorded_one_is_not_published(tmp_path: Path) -> None:
    path = evidence_in(tmp_path)
    (tmp_path / f"{KEY[:12]}.cdx.json").write_text("{}")
    with pytest.raises(GateFailed, match="is not the file that the manifest beside it names"):
        documents_of(read_evidence(path))


def test_a_registry_that_keeps_the_list_itself_gets_no_index(tmp_path: Path) -> None:
    """OCI 1.1: it says so in its answer, and gives the list in pages."""
    image = image_manifest()
    stored: dict[str, bytes] = {}

    def answer(method: str, path: str, authorization: str) -> tuple[int, dict[str, str], bytes]:
        name = path.rpartition("/")[2]
        if "/referrers/" in path:
            entries = [{"mediaType": OCI_MANIFEST, "digest": digest} for digest in sorted(stored)]
            at = int(path.partition("?at=")[2] or 0)
            more = {"Link": f'<{path.partition("?")[0]}?at={at + 1}>; rel="next"'} if at + 1 < len(entries) else {}
            body = json.dumps({"schemaVersion": 2, "manifests": entries[at : at + 1]}).encode()
            return 200, {"Content-Type": OCI_INDEX, **more}, body
        if method == "PUT" and "/manifests/" in path:
            stored[name] = bodies.pop()
            return 201, {"OCI-Subject": image.digest}, b""
        if method == "GET" and name in stored:
            return 200, {"Content-Type": OCI_MANIFEST}, stored[name]
        return {"HEAD": 200, "GET": 404}.get(method, 202), {}, b""

    documents = documents_in(tmp_path / "here")
    subject = {"mediaType": image.media_type, "digest": image.digest, "size": len(image.body)}
    bodies = [document.artefact(subject).body for document in reversed(documents)]
    registry = opened(Answers(answer).host)
    attach(registry, image, documents)
    assert len(stored) == 3 and fallback_tag(image.digest) not in stored
    assert {found.kind for found in find_attached(registry, image.digest)} == {"manifest", "sbom", "provenance"}


def test_a_signature_is_dated_by_its_file(tmp_path: Path) -> None:
    path = evidence_in(tmp_path)
    bundle = tmp_path / f"{KEY[:12]}.sigstore.json"
    bundle.write_text("{}")
    os.utime(bundle, (1_800_000_000, 1_800_000_000))
    assert documents_of(read_evidence(path))[-1].created == "2027-01-15T08:00:00Z"
