"""Images pushed to a real registry and pulled back; and what a registry, or the engine, can do in the middle of it."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from build import cache
from build.attest.evidence import find_evidence, read_evidence
from build.attest.fetch import fetch_evidence
from build.call import call
from build.containers import LABEL, Engine
from build.errors import EnvironmentCannot, GateFailed, UsageError
from build.manifest import document_sha256
from build.matrix.load import load_matrix
from build.matrix.model import Matrix
from build.plan import Cell, TargetPlan
from build.publish import registry as registry_module
from build.publish import verb
from build.publish.archive import load_archive, write_archive
from build.publish.artefacts import documents_of
from build.publish.credentials import PASSWORD_FILE
from build.publish.credentials import USER as USER_VARIABLE
from build.publish.location import IMAGES, Location
from build.publish.push import Published, publish_image
from build.publish.registry import Registry, RegistryCannot
from build.publish.release import Release, find_release, release_of
from build.publish.wheels import components_of, push_wheels
from build.wheels.compile import compile_cells
from build.wheels.wheelhouse import Wheelhouse
from tests.publish_stand_ins import (
    HTPASSWD,
    PASSWORD,
    USER,
    RegistryProgram,
    evidence_files,
    files_of,
    program,
    relayed,
    running,
    tiny_image,
)
from tests.tiny_build import tiny

pytestmark = pytest.mark.docker

NAME = "publish-test"
FILES = {"etc/words": b"a file\n", "opt/deepinfer/image.json": b"{}\n"}
ALIASES = (f"1.2.3-{NAME}-replica", f"{NAME}-replica")


@pytest.fixture
def engine() -> Iterator[Engine]:
    found = Engine.connect()
    yield found
    for image in found.client.images.list(filters={"label": f"{LABEL}.image={NAME}"}):
        found.client.images.remove(image.id, force=True)


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache and a Docker configuration of the test's own, and short pauses."""
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.setattr(registry_module, "PAUSES", (0.05, 0.1))


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[RegistryProgram]:
    with running(tmp_path / "registry") as found:
        yield found


def made(engine: Engine, text: str, *, size: int = 0, base: str = "replica") -> Release:
    """A release of a tiny image whose content and key follow from a word."""
    files = {**FILES, "payload": random.Random(text).randbytes(size), "word": text.encode()}
    image_id = tiny_image(engine, NAME, files, key=hashlib.sha256(text.encode()).hexdigest(), base=base)
    return release_of(NAME, image_id, engine.image_config(image_id))


def publish(engine: Engine, release: Release, host: str, *, patience: float = 30.0) -> Published:
    return publish_image(engine, release, Location.parse(f"{host}/team"), patience=patience)


def digests(host: str, *tags: str) -> list[str | None]:
    """What tags name in the registry."""
    api = Registry.open(Location.parse(f"{host}/team"), IMAGES)
    return [found.digest if (found := api.manifest(tag)) else None for tag in tags]


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


def documented(engine: Engine, release: Release, folder: Path) -> Release:
    """The release with a manifest, an SBOM and a provenance."""
    key = engine.labels(release.image_id)[f"{LABEL}.key"]
    path = evidence_files(folder, NAME, key=key, image_id=release.image_id)
    return dataclasses.replace(release, documents=documents_of(read_evidence(path)))


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
        request = verb.Request(image="*", registry=f"{registry.host}/team", anyway=True, as_json=True)
        assert verb.run(request) == 4
        out = capsys.readouterr()
        told = json.loads(out.out)
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


def test_a_registry_that_is_down_is_told_and_nothing_moves(engine: Engine, registry: RegistryProgram) -> None:
    publish(engine, made(engine, "old"), registry.host)
    before = digests(registry.host, *ALIASES)
    registry.stop()
    with pytest.raises(RegistryCannot, match="failed 3 times") as down:
        publish(engine, made(engine, "new"), registry.host)
    assert down.value.exit_code == 4 and "refused" in down.value.cause
    registry.start()
    assert digests(registry.host, *ALIASES) == before


def test_a_registry_killed_in_the_middle_of_a_push_leaves_the_aliases(
    engine: Engine, registry: RegistryProgram
) -> None:
    old = publish(engine, made(engine, "old"), registry.host)
    new = made(engine, "new", size=8_000_000)
    with relayed(registry.port) as relay:
        relay.stall_after = 2_000_000
        failures: list[Exception] = []

        def go() -> None:
            try:
                publish(engine, new, relay.host, patience=3)
            except EnvironmentCannot as problem:
                failures.append(problem)

        pusher = threading.Thread(target=go)
        pusher.start()
        assert relay.stall.wait(30), "the push never got there"
        registry.stop()
        relay.close()
        pusher.join(120)
    assert failures and isinstance(failures[0], RegistryCannot), failures
    registry.start()
    assert digests(registry.host, new.tag, *ALIASES) == [None, old.digest, old.digest]
    done = publish(engine, new, registry.host)
    assert done.pushed and digests(registry.host, *ALIASES) == [done.digest] * 2


def test_a_registry_that_stalls_is_tried_again_then_given_up(engine: Engine, registry: RegistryProgram) -> None:
    release = made(engine, "slow", size=8_000_000)
    with relayed(registry.port) as relay:
        relay.stall_after = 2_000_000
        with pytest.raises(RegistryCannot) as slow:
            publish(engine, release, relay.host, patience=1)
        assert relay.stall.is_set() and "1 s" in slow.value.cause
        assert digests(registry.host, release.tag, *ALIASES) == [None] * 3
        relay.stall.clear()
        assert publish(engine, release, relay.host).pushed, "the same command again ends it"


def test_a_stall_that_passes_is_waited_out(
    engine: Engine, registry: RegistryProgram, capsys: pytest.CaptureFixture[str]
) -> None:
    release = made(engine, "hiccup", size=8_000_000)
    with relayed(registry.port) as relay:
        relay.stall_after = 2_000_000

        def let_go() -> None:
            relay.stall.wait(30)
            time.sleep(1.5)
            relay.stall.clear()

        threading.Thread(target=let_go, daemon=True).start()
        assert publish(engine, release, relay.host, patience=1).pushed
    assert "stood still for 1 s; again" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="a full disk is a small file system, which only root can mount")
def test_a_full_registry_is_told_and_nothing_moves(engine: Engine, tmp_path: Path) -> None:
    with small_disk(tmp_path / "small") as small, running(tmp_path / "registry", storage=small) as registry:
        old = publish(engine, made(engine, "old"), registry.host)
        new = made(engine, "too large", size=8_000_000)
        with pytest.raises(RegistryCannot, match="beginning an upload failed") as full:
            publish(engine, new, registry.host, patience=2)
        assert full.value.exit_code == 4 and "no space is left in the registry" in full.value.cause
        assert digests(registry.host, new.tag, *ALIASES) == [None, old.digest, old.digest]


@pytest.mark.skipif(os.geteuid() != 0, reason="a full disk is a small file system, which only root can mount")
def test_a_registry_without_room_for_what_goes_with_an_image(engine: Engine, tmp_path: Path) -> None:
    with small_disk(tmp_path / "small") as small, running(tmp_path / "registry", storage=small) as registry:
        old = publish(engine, made(engine, "old"), registry.host)
        new = documented(engine, made(engine, "new"), tmp_path / "made")
        (sbom,) = [document.path for document in new.documents if document.kind == "sbom"]
        sbom.write_text(json.dumps({"long": random.Random(1).randbytes(4_000_000).hex()}))
        with pytest.raises(RegistryCannot, match="sending a blob failed") as full:
            publish(engine, new, registry.host)
        assert full.value.exit_code == 4 and "no space is left in the registry" in full.value.cause
        there, *aliases = digests(registry.host, new.tag, *ALIASES)
        assert there is not None and aliases == [old.digest] * 2, "the image stands under its immutable name alone"


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of 3 MB."""
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_the_password_is_taken_from_a_file_and_shown_nowhere(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    release = made(engine, "secret")
    with running(tmp_path / "registry", htpasswd=HTPASSWD) as registry:
        with pytest.raises(RegistryCannot, match="access is refused") as without:
            publish(engine, release, registry.host)
        assert "docker login" in without.value.next_step
        (tmp_path / "wrong").write_text("guessed-wrong\n")
        monkeypatch.setenv(USER_VARIABLE, USER)
        monkeypatch.setenv(PASSWORD_FILE, str(tmp_path / "wrong"))
        with pytest.raises(RegistryCannot, match="access is refused") as wrong:
            publish(engine, release, registry.host)
        assert wrong.value.exit_code == 4 and "guessed-wrong" not in f"{wrong.value}{wrong.value.__cause__!r}"
        (tmp_path / "right").write_text(f"{PASSWORD}\n")
        monkeypatch.setenv(PASSWORD_FILE, str(tmp_path / "right"))
        assert publish(engine, release, registry.host).pushed
        log = registry.log()
    out, err = capfd.readouterr()
    written = [path.read_text(errors="replace") for path in cache.root().rglob("*") if path.is_file()]
    labels = json.dumps(engine.image_config(release.image_id)["Config"])
    for secret in (PASSWORD, "guessed-wrong"):
        assert not any(secret in text for text in (out, err, log, labels, *written))


def test_dockers_own_login_is_used(engine: Engine, tmp_path: Path) -> None:
    with running(tmp_path / "registry", htpasswd=HTPASSWD) as registry:
        call("docker", "login", "--username", USER, "--password-stdin", registry.host, stdin=PASSWORD.encode())
        assert publish(engine, made(engine, "logged in"), registry.host).pushed


def test_an_engine_that_stops_in_the_middle_is_told(
    engine: Engine, registry: RegistryProgram, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    release = made(engine, "no engine", size=8_000_000)
    path = str(tmp_path / "engine.sock")
    with relayed("/var/run/docker.sock", listen=path) as way, relayed(registry.port) as relay:
        monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
        through = Engine.connect()
        relay.stall_after = 2_000_000

        def stop() -> None:
            relay.stall.wait(30)
            way.close()
            relay.stall.clear()

        threading.Thread(target=stop, daemon=True).start()
        with pytest.raises(EnvironmentCannot, match="engine went away") as gone:
            publish(through, release, relay.host)
        assert gone.value.exit_code == 4 and "again" in gone.value.next_step
    assert digests(registry.host, *ALIASES) == [None, None]
    assert publish(engine, release, registry.host).pushed


def test_a_publisher_killed_in_the_middle_leaves_what_the_next_one_ends(
    engine: Engine, registry: RegistryProgram
) -> None:
    old = publish(engine, made(engine, "old"), registry.host)
    new = made(engine, "killed", size=8_000_000)
    with relayed(registry.port) as relay:
        relay.stall_after = 2_000_000
        code = (
            "from build.containers import Engine; from build.publish.push import publish_image;"
            "from build.publish.location import Location; from build.publish.release import Release;"
            f"publish_image(Engine.connect(), Release({NAME!r}, {new.image_id!r}, {new.tag!r}, {new.aliases!r}),"
            f" Location.parse('{relay.host}/team'), patience=60)"
        )
        child = subprocess.Popen([sys.executable, "-c", code], cwd=cache.REPOSITORY)
        assert relay.stall.wait(30), "the push never got there"
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert digests(registry.host, new.tag, *ALIASES) == [None, old.digest, old.digest]
        relay.stall.clear()
        done = publish(engine, new, relay.host)
    assert done.pushed and digests(registry.host, *ALIASES) == [done.digest] * 2


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
