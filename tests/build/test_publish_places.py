"""Where images are published and with which password: what is taken, what is refused, what is never shown."""

from __future__ import annotations

import base64
import json
import os
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from build.errors import BuildError, EnvironmentCannot, UsageError
from build.publish.credentials import PASSWORD, PASSWORD_FILE, USER, Credentials, find_credentials
from build.publish.location import Location
from build.publish.release import aliases, release_of
from build.publish.verb import PATIENCE, Request, patience, run


@pytest.mark.parametrize(
    ("text", "host", "repository"),
    [
        ("registry.example.org/team", "registry.example.org", "team/deepinfer"),
        ("127.0.0.1:5000", "127.0.0.1:5000", "deepinfer"),
        ("localhost/a/b-c/d_e/", "localhost", "a/b-c/d_e/deepinfer"),
        ("docker.io/acme", "docker.io", "acme/deepinfer"),
    ],
)
def test_a_registry_with_a_path(text: str, host: str, repository: str) -> None:
    where = Location.parse(text)
    assert (where.host, where.repository("deepinfer")) == (host, repository)
    assert where.reference("deepinfer") == f"{host}/{repository}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no host and port"),
        ("acme/deepinfer", "begins with no host"),
        ("https://registry.example.org/team", "is a URL"),
        ("registry.example.org/Team", "'Team' cannot be part"),
        ("registry.example.org/team:latest", "'team:latest' cannot be part"),
        ("registry.example.org//team", "'' cannot be part"),
        ("registry.example.org:99999/team", "is no host and port"),
        ("registry.example.org/../etc", "'..' cannot be part"),
        ("-x.example.org/team", "is no host and port"),
    ],
)
def test_what_is_no_registry_is_told(text: str, said: str) -> None:
    with pytest.raises(UsageError, match="--wheels-from") as refused:
        Location.parse(text, flag="wheels-from")
    assert said in refused.value.what and refused.value.next_step


def test_a_password_in_the_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(UsageError) as refused:
        Location.parse("deploy:hunter2@registry.example.org/team")
    assert "hunter2" not in str(refused.value) and "docker login" in refused.value.next_step


@given(st.text(max_size=40))
def test_any_text_is_a_place_or_a_usage_error(text: str) -> None:
    try:
        where = Location.parse(text)
    except UsageError:
        return
    assert where.host and "@" not in where.reference("deepinfer") and " " not in where.reference("deepinfer")


def test_plain_http_only_on_this_machine_or_where_the_engine_says_so() -> None:
    assert Location.parse("127.0.0.1:5000").may_be_plain() and Location.parse("localhost:5000").may_be_plain()
    assert not Location.parse("registry.example.org").may_be_plain()
    assert not Location.parse("10.0.0.7:5000").may_be_plain()
    allowed = {
        "RegistryConfig": {
            "InsecureRegistryCIDRs": ["127.0.0.0/8", "10.0.0.0/8"],
            "IndexConfigs": {"inside.example.org:5000": {"Secure": False}, "docker.io": {"Secure": True}},
        }
    }
    assert Location.parse("10.0.0.7:5000").may_be_plain(allowed)
    assert Location.parse("inside.example.org:5000").may_be_plain(allowed)
    assert not Location.parse("docker.io/acme").may_be_plain(allowed)


@pytest.fixture
def docker_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Docker's configuration of this test, empty at first; no variables."""
    folder = tmp_path / "docker"
    folder.mkdir()
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))
    for name in (USER, PASSWORD, PASSWORD_FILE):
        monkeypatch.delenv(name, raising=False)
    return folder / "config.json"


def test_the_password_of_docker_login(docker_config: Path) -> None:
    assert find_credentials("registry.example.org") is None
    pair = base64.b64encode(b"deploy:hunter2").decode()
    docker_config.write_text(json.dumps({"auths": {"registry.example.org": {"auth": pair}}}))
    found = find_credentials("registry.example.org")
    assert found == Credentials("deploy", "hunter2") and "hunter2" not in repr(found)
    assert find_credentials("other.example.org") is None


def test_the_password_of_a_helper(docker_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helper = tmp_path / "docker-credential-kept"
    answer = '{"Username": "<token>", "Secret": "opaque"}'
    helper.write_text(f"#!/bin/sh\nread host\n[ \"$host\" = registry.example.org ] && echo '{answer}'\n")
    helper.chmod(helper.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    docker_config.write_text(json.dumps({"credHelpers": {"registry.example.org": "kept"}}))
    found = find_credentials("registry.example.org")
    assert found is not None and found.for_engine() == {"identitytoken": "opaque"}
    docker_config.write_text(json.dumps({"credHelpers": {"registry.example.org": "absent"}}))
    with pytest.raises(EnvironmentCannot, match="cannot be had from Docker's configuration"):
        find_credentials("registry.example.org")


@pytest.mark.parametrize(
    "text", ['{"credsStore": 3}', '{"credHelpers": 3}', '{"auths": 3}', "[]", pytest.param("[" * 100_000, id="deep")]
)
def test_a_configuration_of_dockers_that_it_did_not_write(docker_config: Path, text: str) -> None:
    docker_config.write_text(text)
    with pytest.raises(EnvironmentCannot, match="cannot be had from Docker's configuration") as told:
        find_credentials("registry.example.org", {})
    assert "docker login" in told.value.next_step


def test_a_password_through_a_pipe_can_be_asked_for_twice(docker_config: Path, tmp_path: Path) -> None:
    del docker_config
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=("hunter2\n",))
    writer.start()
    variables = {USER: "deploy", PASSWORD_FILE: str(tmp_path / "pipe")}
    assert [find_credentials("a.example", variables) for _ in range(2)] == [Credentials("deploy", "hunter2")] * 2
    writer.join()


@pytest.mark.parametrize("content", [b"\xff\xfe", b"x" * 70_000, b""], ids=["no text", "long", "empty"])
def test_what_is_no_password(docker_config: Path, tmp_path: Path, content: bytes) -> None:
    del docker_config
    (tmp_path / "file").write_bytes(content)
    for place in (str(tmp_path / "file"), "/dev/zero", "~nobody-of-this-name/x", "nul\0byte"):
        with pytest.raises(EnvironmentCannot, match="PASSWORD_FILE"):
            find_credentials("a.example", {USER: "deploy", PASSWORD_FILE: place})


def test_variables_go_before_docker_and_must_agree(docker_config: Path, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("hunter2\n")
    host = "registry.example.org"
    assert find_credentials(host, {USER: "u", PASSWORD: "p"}) == Credentials("u", "p")
    assert find_credentials(host, {USER: "u", PASSWORD_FILE: str(file)}) == Credentials("u", "hunter2")
    for wrong in ({USER: "u"}, {PASSWORD: "secret-p"}, {USER: "u", PASSWORD: "secret-p", PASSWORD_FILE: str(file)}):
        with pytest.raises(UsageError) as refused:
            find_credentials(host, wrong)
        assert "secret-p" not in str(refused.value)
    file.write_text("")
    for unusable in (str(file), str(tmp_path / "absent"), str(tmp_path)):
        with pytest.raises(EnvironmentCannot) as unread:
            find_credentials(host, {USER: "u", PASSWORD_FILE: unusable})
        assert unusable in unread.value.what


def test_a_replicas_aliases_say_so() -> None:
    assert aliases("flagtree", "0.1.0", replica=False) == ("0.1.0-flagtree", "flagtree")
    assert aliases("flagtree", "0.1.0", replica=True) == ("0.1.0-flagtree-replica", "flagtree-replica")
    assert aliases("cpu", "0.1.0+local", replica=False)[0] == "0.1.0.local-cpu"


def test_an_image_that_was_tagged_by_hand_is_not_released() -> None:
    labels = {
        "io.deepinfer.hopper.image": "cpu", "io.deepinfer.hopper.key": "a" * 64, "io.deepinfer.hopper.base": "vendor",
        "org.opencontainers.image.version": "0.1.0",
    }  # fmt: skip
    tag = f"0.1.0-cpu-torch2.13.0-cpu-py311-{'a' * 12}"
    image = {"Config": {"Labels": labels}, "RepoTags": ["deepinfer:cpu", f"deepinfer:{tag}"]}
    assert release_of("cpu", "sha256:0", image).tag == tag
    for wrong in (
        {"Config": {"Labels": None}, "RepoTags": ["deepinfer:cpu"]},
        {"Config": {"Labels": labels}, "RepoTags": ["deepinfer:cpu"]},
        {"Config": {"Labels": {**labels, "io.deepinfer.hopper.image": "vllm"}}, "RepoTags": image["RepoTags"]},
        {"Config": {"Labels": labels}, "RepoTags": [f"example.org/{tag}"]},
    ):
        with pytest.raises(EnvironmentCannot, match="does not bear"):
            release_of("cpu", "sha256:0", wrong)


@pytest.mark.parametrize(
    "request_",
    [
        Request(),
        Request(registry="registry.example.org", archive=Path("/nowhere/x.tar")),
        Request(source=Path("/nowhere/x.tar"), archive=Path("/nowhere/y.tar")),
        Request(archive=Path("/nowhere/x.tar"), wheels=True),
        Request(source=Path("/nowhere/x.tar"), image="cpu"),
    ],
)
def test_what_does_not_go_together_is_told_before_anything_is_done(request_: Request) -> None:
    given: list[object] = []
    with pytest.raises(BuildError) as refused:
        run(request_, given.append)
    assert refused.value.exit_code == 1 and refused.value.next_step


def test_patience_is_a_number_of_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PATIENCE, raising=False)
    assert patience() == 300
    monkeypatch.setenv(PATIENCE, "12.5")
    assert patience() == 12.5
    for wrong in ("soon", "0", "-1", "nan", "inf"):
        monkeypatch.setenv(PATIENCE, wrong)
        with pytest.raises(UsageError, match=PATIENCE):
            patience()
