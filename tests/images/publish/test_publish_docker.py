"""Images pushed to a real registry and pulled back: what goes where under which names."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from build import cache
from build.attest.evidence import find_evidence
from build.attest.fetch import fetch_evidence
from build.call import call
from build.containers import LABEL, Engine
from build.errors import EnvironmentCannot, GateFailed, UsageError
from build.manifest import document_sha256
from build.matrix.load import load_matrix
from build.matrix.model import Matrix
from build.plan import Cell, TargetPlan
from build.publish import verb
from build.publish.connection import RegistryCannot
from build.publish.location import IMAGES, Location
from build.publish.push import Published, publish_image
from build.publish.registry import Registry
from build.publish.release import Release, find_release, release_of
from build.publish.wheels import components_of, push_wheels
from build.wheels.compile import compile_cells
from build.wheels.wheelhouse import Wheelhouse
from tests.images.publish.releases import ALIASES, FILES, NAME, digests, documented, made, publish
from tests.publish_stand_ins import RegistryProgram, files_of, tiny_image
from tests.tiny_build import tiny

pytestmark = pytest.mark.docker


def test_what_is_pulled_by_digest_is_what_was_built_file_by_file(engine: Engine, registry: RegistryProgram) -> None:
    release = made(engine, "first", size=100_000)
    before = files_of(engine, release.image_id)
    done = publish(engine, release, registry.host)
    assert done.pushed and dict(done.aliases) == dict.fromkeys(ALIASES, "moved")
    assert digests(registry.host, release.tag, *ALIASES) == [done.digest] * 3
    engine.client.images.remove(release.image_id, force=True)
    assert engine.image_id(release.image_id) is None
    pulled = f"{registry.host}/team/deepinfer@{done.digest}"
    call("docker", "pull", pulled)
    after = files_of(engine, pulled)
    assert {"payload", "etc/words", "opt/deepinfer/image.json"} <= after.keys() and after == before
    assert engine.image_id(pulled) == release.image_id


def test_a_layer_that_rots_in_the_registry_is_found_by_reading_it_back(
    engine: Engine, registry: RegistryProgram
) -> None:
    release = made(engine, "rots", size=100_000)
    where = Location.parse(f"{registry.host}/team")
    done = publish_image(engine, release, where, patience=30, whole=True)
    assert done.read_back is not None and done.read_back.layers == 1 and done.read_back.bytes > 100_000
    (layer,) = json.loads(_manifest(registry.host, done.digest))["layers"]
    (stored,) = registry.storage.rglob(f"{layer['digest'].removeprefix('sha256:')}/data")
    data = stored.read_bytes()
    stored.write_bytes(data[:-50_000] + bytes([data[-50_000] ^ 1]) + data[-49_999:])
    with pytest.raises(RegistryCannot) as rotten:
        publish_image(engine, release, where, patience=30, whole=True)
    assert rotten.value.exit_code == 4 and not done.aliases.keys() - set(ALIASES)


def _manifest(host: str, digest: str) -> bytes:
    found = Registry.open(Location.parse(f"{host}/team"), IMAGES).manifest(digest)
    assert found is not None
    return found.body


def test_who_only_pulls_gets_what_is_told_of_the_image(
    engine: Engine, registry: RegistryProgram, tmp_path: Path
) -> None:
    release = documented(engine, made(engine, "told"), tmp_path / "made")
    done = publish(engine, release, registry.host)
    assert dict(done.documents) == dict.fromkeys(("manifest", "sbom", "provenance"), "attached")
    assert digests(registry.host, release.tag, *ALIASES) == [done.digest] * 3, "what is attached moves no tag"
    engine.client.images.remove(release.image_id, force=True)
    pulled = f"{registry.host}/team/deepinfer@{done.digest}"
    with pytest.raises(EnvironmentCannot, match="there is no image"):
        fetch_evidence(engine, pulled)
    call("docker", "pull", pulled)
    fetched = fetch_evidence(engine, pulled)
    brought = {path.name.partition(".")[2]: path.read_bytes() for path in fetched.folder.iterdir()}
    assert brought == {path.name.partition(".")[2]: path.read_bytes() for path in (tmp_path / "made").iterdir()}
    found = find_evidence(pulled, engine.labels(pulled), fetched.folder)
    assert found.sbom is not None and found.sbom.found == found.sbom.recorded and fetched.row.state == "ok"
    again = publish(engine, release_of_pulled(engine, pulled, release), registry.host)
    assert not again.pushed and set(again.documents.values()) == {"there"}
    with pytest.raises(UsageError, match="not named as it was pulled"):
        fetch_evidence(engine, f"deepinfer:{NAME}")


def release_of_pulled(engine: Engine, pulled: str, release: Release) -> Release:
    engine.tag(pulled, f"deepinfer:{release.tag}")
    return release


def test_documents_that_cannot_be_read_leave_the_aliases(
    engine: Engine, registry: RegistryProgram, tmp_path: Path
) -> None:
    old = publish(engine, made(engine, "old"), registry.host)
    release = documented(engine, made(engine, "new"), tmp_path / "made")
    release.documents[1].path.unlink()
    with pytest.raises(OSError, match="No such file"):
        publish(engine, release, registry.host)
    assert digests(registry.host, *ALIASES) == [old.digest] * 2
    done = publish(engine, documented(engine, release, tmp_path / "made"), registry.host)
    assert not done.pushed and digests(registry.host, *ALIASES) == [done.digest] * 2


def test_of_several_images_those_that_can_be_are_published_and_all_are_listed(
    engine: Engine, registry: RegistryProgram, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cpu = load_matrix().targets["cpu"]
    names = [f"{NAME}-{letter}" for letter in "abc"]
    targets = {name: dataclasses.replace(cpu, name=name) for name in names}
    monkeypatch.setattr(verb, "load_matrix", lambda: Matrix(load_matrix().components, targets))
    ids = []
    try:
        for name in names:
            ids.append(tiny_image(engine, name, FILES, key=hashlib.sha256(name.encode()).hexdigest()))
            engine.tag(ids[-1], f"deepinfer:{name}")
        (immutable,) = [tag for tag in engine.image_config(ids[1])["RepoTags"] if tag != f"deepinfer:{names[1]}"]
        engine.client.images.remove(immutable)  # one that nobody can name
        request = verb.Request(image="*", registry=f"{registry.host}/team", anyway=True)
        given: list[list[dict[str, Any]]] = []
        assert verb.run(request, given.append) == 4
        out = capsys.readouterr()
        (told,) = given
        assert [row["image"] for row in told] == names and told[1]["exit_code"] == 4
        assert "does not bear the immutable tag" in told[1]["error"] and told[2]["pushed"] is True
        assert digests(registry.host, *(f"{name}-replica" for name in names)) == [
            told[0]["digest"], None, told[2]["digest"],
        ]  # fmt: skip
        table = out.err.strip().splitlines()[-3:]
        states = [("done", "deepinfer:"), ("failed (4)", "immutable"), ("done", "deepinfer:")]
        assert [line.startswith(name) for line, name in zip(table, names, strict=True)] == [True] * 3
        assert all(state in line and word in line for line, (state, word) in zip(table, states, strict=True)), table
    finally:
        for image in ids:
            engine.client.images.remove(image, force=True)


def test_a_second_publish_changes_nothing_and_leaves_no_name_behind(engine: Engine, registry: RegistryProgram) -> None:
    release = made(engine, "twice", base="vendor")
    assert release.aliases == (f"1.2.3-{NAME}", NAME), "a vendor's base needs no -replica"
    first = publish(engine, release, registry.host)
    requests = registry.log().count('"PUT ')
    second = publish(engine, release, registry.host)
    assert not second.pushed and second.digest == first.digest
    assert dict(second.aliases) == dict.fromkeys(release.aliases, "unchanged")
    assert registry.log().count('"PUT ') == requests
    names = engine.image_config(release.image_id)["RepoTags"]
    assert names == [f"deepinfer:{release.tag}"]


def test_an_immutable_tag_is_never_given_to_another_content(engine: Engine, registry: RegistryProgram) -> None:
    first = made(engine, "same key")
    published = publish(engine, first, registry.host)
    other_id = tiny_image(engine, NAME, {"other": b"content"}, key=hashlib.sha256(b"same key").hexdigest())
    other = release_of(NAME, other_id, engine.image_config(other_id))
    assert other.tag == first.tag and other.image_id != first.image_id
    with pytest.raises(RegistryCannot, match="exists in the registry with another content") as refused:
        publish(engine, other, registry.host)
    assert refused.value.exit_code == 4 and "docker pull" in refused.value.next_step
    assert digests(registry.host, first.tag, *ALIASES) == [published.digest] * 3


def test_two_at_once_both_stand_and_the_aliases_agree(engine: Engine, registry: RegistryProgram) -> None:
    releases = [made(engine, f"racer {number}", size=200_000) for number in range(2)]
    done: dict[int, Published] = {}

    def go(number: int) -> None:
        done[number] = publish(engine, releases[number], registry.host)

    threads = [threading.Thread(target=go, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert digests(registry.host, *(release.tag for release in releases)) == [done[0].digest, done[1].digest]
    first, second = digests(registry.host, *ALIASES)
    assert first == second and first in (done[0].digest, done[1].digest)


def test_only_what_passed_its_gates_and_is_current_is_published(
    engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    matrix = load_matrix()
    target = dataclasses.replace(matrix.targets["cpu"], name=NAME)
    with pytest.raises(EnvironmentCannot, match="there is no image"):
        find_release(engine, matrix, target)
    document = {"image": NAME}
    key = hashlib.sha256(b"gates").hexdigest()
    plain = tiny_image(engine, NAME, FILES, key=key)
    image_id = _labelled(engine, plain, key, document_sha256(document))
    with pytest.raises(GateFailed, match="no record here"):
        find_release(engine, matrix, target)
    record = {
        "image_id": image_id, "passed": False, "gates": [{"name": "library_path", "ok": False}],
        "document": document, "document_sha256": document_sha256(document),
    }  # fmt: skip
    path = cache.folder(f"manifests/{NAME}") / f"{key[:12]}.json"
    path.write_text(json.dumps(record))
    with pytest.raises(GateFailed, match="library_path") as failed:
        find_release(engine, matrix, target)
    assert failed.value.exit_code == 5
    path.write_text(json.dumps({**record, "passed": True}))
    with pytest.raises(EnvironmentCannot, match="is not what a build would make now") as stale:
        find_release(engine, matrix, target)
    assert "--anyway" in stale.value.next_step
    assert find_release(engine, matrix, target, anyway=True).image_id == image_id
    assert "as asked" in capsys.readouterr().err


def _labelled(engine: Engine, image_id: str, key: str, manifest: str) -> str:
    """The same image under the same names, with the label that a build gives it for its manifest."""
    raw = engine.client.containers.create(image_id)
    tag = engine.image_config(image_id)["RepoTags"][0]
    changed = raw.commit(*tag.split(":"), changes=f'LABEL "{LABEL}.manifest"="{manifest}"')
    raw.remove()
    engine.tag(changed.id, f"deepinfer:{NAME}")
    return str(changed.id)


def test_a_build_takes_components_that_another_machine_pushed(
    engine: Engine, registry: RegistryProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = hashlib.sha256(b"pushed elsewhere").hexdigest()
    wheel = tmp_path / "tiny-1.0-py3-none-any.whl"
    wheel.write_bytes(b"compiled elsewhere")
    Wheelhouse(cache.root() / "wheelhouse").put(key, wheel, {"cell": "cpu/tiny"})
    where = Location.parse(f"{registry.host}/team")
    assert push_wheels(components_of(where, engine), [key]) == {key: "pushed"}
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "another machine"))
    component = tiny("tiny", tmp_path)
    target = dataclasses.replace(load_matrix().targets["cpu"], components=("tiny",))
    plan = TargetPlan(target, None, "replica", (Cell("cpu", component, "build", key),), image_key="")
    (result,) = compile_cells(
        engine, plan, matrix=Matrix({"tiny": component}, {"cpu": target}), wheels_from=where,
        inspection=None, base_reference="",  # type: ignore[arg-type]  # nothing is compiled: nobody looks at them
    )  # fmt: skip
    assert result.status == "cached" and result.artefact is not None
    assert result.artefact.read_bytes() == b"compiled elsewhere"
