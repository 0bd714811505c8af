"""The registry's API: what passes is waited out, what is refused is told, what is damaged is not believed; wheels."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from build import cache
from build.call import call
from build.publish.connection import Damaged, RegistryCannot
from build.publish.credentials import Credentials
from build.publish.location import COMPONENTS, Location
from build.publish.manifests import OCI_MANIFEST, Manifest, sha256
from build.publish.push import move_aliases
from build.publish.read_back import Unpacked
from build.publish.registry import Registry
from build.publish.wheels import WheelRefused, pull_missing, pull_wheel, push_wheels
from build.wheels.wheelhouse import Wheelhouse
from tests.publish_stand_ins import Answers, RegistryProgram, relayed, running

KEY = hashlib.sha256(b"a cell").hexdigest()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryProgram]:
    with running(tmp_path_factory.mktemp("registry")) as found:
        yield found


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))


@pytest.fixture
def components(program: RegistryProgram, tmp_path: Path) -> Registry:
    """A repository of its own for every test."""
    return _open(program.host, tmp_path.name.lower().strip("_"))


def _open(host: str, path: str = "team", **options: object) -> Registry:
    options = {"plain": True, "pauses": (0.01, 0.01), "patience": 120.0, **options}
    return Registry(Location(host, path), COMPONENTS, **options)  # type: ignore[arg-type]


def _house(folder: Path, key: str = KEY, content: bytes = b"compiled\n" * 1000) -> Wheelhouse:
    house = Wheelhouse(folder / "wheelhouse")
    wheel = folder / "thing-1.0-py3-none-any.whl"
    folder.mkdir(exist_ok=True)
    wheel.write_bytes(content)
    house.put(key, wheel, {"cell": "cpu/thing", "seconds": 12.5})
    return house


def test_a_component_travels_by_its_key(components: Registry, tmp_path: Path) -> None:
    here, there = _house(tmp_path / "here"), Wheelhouse(tmp_path / "there")
    other = hashlib.sha256(b"never compiled").hexdigest()
    assert push_wheels(components, [KEY, other], here) == {KEY: "pushed", other: "absent"}
    assert push_wheels(components, [KEY], here) == {KEY: "there"}
    found = pull_wheel(components, KEY, there)
    assert found is not None and found.name == "thing-1.0-py3-none-any.whl"
    assert found.read_bytes() == b"compiled\n" * 1000
    entry = there.entry(KEY)
    assert entry is not None and entry.meta["cell"] == "cpu/thing" and entry.meta["seconds"] == 12.5
    assert pull_wheel(components, other, there) is None
    assert not list((cache.root() / "work").iterdir())


def test_a_build_takes_what_is_there_and_leaves_the_rest(
    program: RegistryProgram, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = Location(program.host, "shared")
    push_wheels(_open(program.host, "shared"), [KEY], _house(tmp_path / "here"))
    there = Wheelhouse(tmp_path / "there")
    assert pull_missing(where, [KEY, "f" * 64], there) == [KEY]
    assert there.find(KEY) is not None and "fetched component" in capsys.readouterr().err
    assert pull_missing(where, [KEY], there) == [], "what is here is not asked for"


@pytest.mark.parametrize(
    ("name", "record", "blob"),
    [
        ("another key", {"key": "0" * 64}, None),
        ("another hash", {"sha256": "0" * 64}, None),
        ("another size", {"size": 1}, None),
        ("a path for a name", {"artefact": "../../escape.whl"}, None),
        ("a hidden name", {"artefact": ".record"}, None),
        ("no hash", {"sha256": None}, None),
        ("another file under the record's name", {}, b"something else"),
    ],
)
def test_what_does_not_fit_its_record_is_refused(
    components: Registry, tmp_path: Path, name: str, record: dict[str, object], blob: bytes | None
) -> None:
    content = b"compiled"
    kept = {"key": KEY, "artefact": "a.whl", "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    config = json.dumps({**kept, **record}).encode()
    layer = content if blob is None else blob
    for data in (config, layer):
        components.put_blob(data, sha256(data))
    document = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": {
            "mediaType": "application/vnd.deepinfer.component.record.v1+json",
            "digest": sha256(config), "size": len(config),
        },
        "layers": [
            {"mediaType": "application/vnd.deepinfer.component.v1", "digest": sha256(layer), "size": len(layer)}
        ],
    }  # fmt: skip
    components.put_manifest(KEY, Manifest(json.dumps(document).encode(), OCI_MANIFEST))
    house = Wheelhouse(tmp_path / "wheelhouse")
    with pytest.raises(WheelRefused) as refused:
        pull_wheel(components, KEY, house)
    assert refused.value.exit_code == 4 and house.find(KEY) is None and not list(tmp_path.rglob("escape.whl"))


def test_an_image_under_a_key_is_refused(components: Registry, tmp_path: Path) -> None:
    components.put_blob(b"{}", sha256(b"{}"))
    body = {
        "schemaVersion": 2, "mediaType": OCI_MANIFEST, "layers": [],
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": sha256(b"{}"), "size": 2},
    }  # fmt: skip
    components.put_manifest(KEY, Manifest(json.dumps(body).encode(), OCI_MANIFEST))
    with pytest.raises(WheelRefused):
        pull_wheel(components, KEY, Wheelhouse(tmp_path / "wheelhouse"))


def test_a_file_that_changed_on_the_registrys_disk_is_refused_and_compiled_instead(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(tmp_path / "registry") as program:
        push_wheels(_open(program.host), [KEY], _house(tmp_path / "here"))
        wheel = hashlib.sha256(b"compiled\n" * 1000).hexdigest()
        (stored,) = program.storage.rglob(f"{wheel}/data")
        stored.write_bytes(b"tampered\n" * 1000)
        there = Wheelhouse(tmp_path / "there")
        with pytest.raises(WheelRefused, match="does not have that digest"):
            pull_wheel(_open(program.host), KEY, there)
        assert pull_missing(Location(program.host, "team"), [KEY], there) == []
    assert there.find(KEY) is None and "compiled here instead" in capsys.readouterr().err


def test_a_registry_that_is_down_stalls_or_breaks_off_is_told(program: RegistryProgram, tmp_path: Path) -> None:
    house = _house(tmp_path / "here", content=bytes(3_000_000))
    with relayed(program.port) as relay:
        relay.stall_after = 1_000_000
        with pytest.raises(RegistryCannot, match="failed 3 times") as stalled:
            push_wheels(_open(relay.host, "faults", patience=0.3), [KEY], house)
        assert "0.3 s" in stalled.value.cause
        relay.stall.clear()
        relay.cut_after = relay.seen + 1_000_000
        with pytest.raises(RegistryCannot) as broken:
            push_wheels(_open(relay.host, "faults"), [KEY], house)
        assert broken.value.exit_code == 4
    fresh = _open(program.host, "faults")
    assert fresh.manifest(KEY) is None, "the key appears with the whole of it only"
    assert push_wheels(fresh, [KEY], house) == {KEY: "pushed"}


def test_no_proxy_stands_before_this_machine(components: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert components.manifest("absent") is None


def test_a_certificate_that_nobody_here_vouches_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here to make a certificate with; apt-get install openssl")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    name = ("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1")
    files = ("-keyout", str(key), "-out", str(certificate), "-days", "2")
    call("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *files, *name)
    tls = f"  tls:\n    certificate: {certificate}\n    key: {key}\n"
    with running(tmp_path / "registry", http=tls) as program:
        with pytest.raises(RegistryCannot, match="certificate is not trusted") as untrusted:
            _open(program.host).manifest("tag")
        assert f"/etc/docker/certs.d/{program.host}/ca.crt" in untrusted.value.next_step
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
        assert _open(program.host).manifest("tag") is None


BODY = json.dumps({"schemaVersion": 2, "config": {"digest": "sha256:c"}, "layers": []}).encode()


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_a_layer_is_hashed_as_it_is_unpacked(step: int) -> None:
    content = b"one file after the other " * 4000
    members = gzip.compress(content[:50_000]) + gzip.compress(content[50_000:])
    for packed, data in ((True, gzip.compress(content)), (True, members), (False, content)):
        seen = Unpacked(packed=packed)
        for at in range(0, len(data), step):
            seen.take(data[at : at + step])
        assert seen.digest() == sha256(content)
    cut = Unpacked(packed=True)
    cut.take(gzip.compress(content)[:-9])
    with pytest.raises(ValueError, match="ends in the middle"):
        cut.digest()


def test_a_token_service_gets_the_password_and_the_registry_the_token() -> None:
    def answer(method: str, path: str, authorization: str) -> tuple[int, dict[str, str], bytes]:
        if path.startswith("/token"):
            expected = "Basic " + base64.b64encode(b"deploy:hunter2").decode()
            return (200, {}, b'{"token": "t0ken"}') if authorization == expected else (401, {}, b"")
        if authorization != "Bearer t0ken":
            scope = "repository:team/x:pull,push"
            realm = f'Bearer realm="http://{server.host}/token",service="registry",scope="{scope}"'
            return 401, {"WWW-Authenticate": realm}, b""
        return 200, {"Content-Type": OCI_MANIFEST}, BODY

    server = Answers(answer)
    found = _open(server.host, credentials=Credentials("deploy", "hunter2")).manifest("tag")
    assert found is not None and found.digest == sha256(BODY) and found.config == "sha256:c"
    (asked,) = [path for _, path, _ in server.seen if path.startswith("/token")]
    assert "service=registry" in asked and "pull%2Cpush" in asked and "hunter2" not in asked
    assert not any("hunter2" in header for _, path, header in server.seen if not path.startswith("/token"))
    with pytest.raises(RegistryCannot, match="access is refused") as wrong:
        _open(server.host, credentials=Credentials("deploy", "guessed")).manifest("tag")
    assert "guessed" not in str(wrong.value) and "docker login" in wrong.value.next_step


def test_no_password_for_a_token_service_in_the_clear() -> None:
    def answer(method: str, path: str, authorization: str) -> tuple[int, dict[str, str], bytes]:
        return 401, {"WWW-Authenticate": 'Bearer realm="ftp://elsewhere.example.org/token"'}, b""

    server = Answers(answer)
    with pytest.raises(RegistryCannot, match="in the clear"):
        _open(server.host, credentials=Credentials("deploy", "hunter2")).manifest("tag")
    assert all(header == "" for _, _, header in server.seen)


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504, 507])
def test_what_may_pass_is_asked_again(status: int, capsys: pytest.CaptureFixture[str]) -> None:
    left = [status, status]

    def answer(method: str, path: str, authorization: str) -> tuple[int, dict[str, str], bytes]:
        return (left.pop(), {}, b"") if left else (200, {"Content-Type": OCI_MANIFEST}, BODY)

    found = _open(Answers(answer).host).manifest("tag")
    assert found is not None and found.body == BODY
    assert capsys.readouterr().err.count("again in") == 2


@pytest.mark.parametrize("status", [400, 403, 405, 416])
def test_what_will_not_pass_is_asked_once(status: int) -> None:
    said = json.dumps({"errors": [{"code": "DENIED", "message": "not for you"}]}).encode()
    server = Answers(lambda *_: (status, {}, said))
    with pytest.raises(RegistryCannot, match="not for you"):
        _open(server.host).manifest("tag")
    assert sum("/manifests/" in path for _, path, _ in server.seen) == 1


def test_a_manifest_without_its_digest_is_not_believed() -> None:
    lied = {"Content-Type": OCI_MANIFEST, "Docker-Content-Digest": sha256(b"another")}
    with pytest.raises(Damaged):
        _open(Answers(lambda *_: (200, lied, BODY)).host).manifest("tag")
    with pytest.raises(Damaged):
        _open(Answers(lambda *_: (200, {}, BODY)).host).manifest(sha256(b"another"))


def test_an_alias_that_cannot_be_moved_takes_the_other_back() -> None:
    tags: dict[str, bytes] = {"1-cpu": b'{"old": 1}', "cpu": b'{"old": 1}'}
    new = Manifest(BODY, OCI_MANIFEST)

    def answer(method: str, path: str, authorization: str) -> tuple[int, dict[str, str], bytes]:
        tag = path.rpartition("/")[2]
        if method == "PUT" and tag == "cpu":
            return 403, {}, b'{"errors": [{"code": "DENIED", "message": "this tag is locked"}]}'
        if method == "PUT":
            moves.append(tag)
            tags[tag] = BODY if len(moves) == 1 else b'{"old": 1}'
            return 201, {}, b""
        return (200, {"Content-Type": OCI_MANIFEST}, tags[tag]) if tag in tags else (404, {}, b"")

    moves: list[str] = []
    with pytest.raises(RegistryCannot, match="no alias was moved") as failed:
        move_aliases(_open(Answers(answer).host), new, ["1-cpu", "cpu"])
    assert "this tag is locked" in failed.value.what and moves == ["1-cpu", "1-cpu"]
    assert tags == {"1-cpu": b'{"old": 1}', "cpu": b'{"old": 1}'}


def test_aliases_that_another_publisher_mixes_come_to_rest(program: RegistryProgram, tmp_path: Path) -> None:
    registry = _open(program.host, "race")
    registry.put_blob(b"{}", sha256(b"{}"))
    manifests = []
    for number in range(2):
        config = {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": sha256(b"{}"), "size": 2}
        body = {"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": config, "layers": [],
                "annotations": {"number": str(number)}}  # fmt: skip
        manifests.append(Manifest(json.dumps(body).encode(), OCI_MANIFEST))
    for _ in range(5):
        threads = [
            threading.Thread(target=move_aliases, args=(_open(program.host, "race"), manifest, names))
            for manifest, names in zip(manifests, (["a", "b"], ["b", "a"]), strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        ends = {found.digest for tag in "ab" if (found := registry.manifest(tag)) is not None}
        assert len(ends) == 1 and ends <= {manifest.digest for manifest in manifests}
