"""Docker engines that are none, hang, or are shared with builds that have another cache."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from build import cache, containers, docker_client
from build.clean.images import clean_images
from build.containers import CACHE_LABEL, LABEL, Engine
from build.errors import EnvironmentCannot
from build.setup import engine_answer
from build.setup.endpoint import config_folder, endpoint


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    "host", ["tcp://[::1", "tcp://127.0.0.1:notaport", "tcp://127.0.0.1:9", "unix:///nonexistent/docker.sock"]
)
def test_an_address_where_no_engine_is(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setenv("DOCKER_HOST", host)
    assert engine_answer.refusal()
    with pytest.raises(EnvironmentCannot) as told:
        Engine.connect()
    assert host in told.value.what and told.value.cause and told.value.next_step


@pytest.mark.parametrize(
    "text",
    [
        "[]", "null", '{"auths": 3}', '{"auths": {"a.example": 3}}', '{"auths": {"a.example": {"auth": "!!!"}}}',
        '{"auths": {"a.example": {"auth": 5}}}', '{"proxies": 7}', '{"proxies": {"default": 3}}',
        pytest.param("[" * 100_000, id="deep"),
    ],
)  # fmt: skip
def test_a_configuration_of_dockers_that_it_did_not_write(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, silent: str, text: str
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", silent)
    monkeypatch.setattr(docker_client, "CONNECT_SECONDS", 0.3)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(EnvironmentCannot, match="is not as Docker writes it") as told:
        Engine.connect()
    assert "DOCKER_CONFIG" in told.value.next_step
    assert endpoint().host == silent
    monkeypatch.delenv("DOCKER_HOST")
    assert endpoint().host == "", "as Docker's command takes it"


def test_a_user_without_a_home_has_no_configuration_of_dockers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `docker run --user 12345` and clusters have it."""

    def unknown(number: int) -> None:
        raise KeyError(f"uid not found: {number}")

    for name in ("HOME", "DOCKER_HOST", "DOCKER_CONFIG", "DOCKER_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    assert endpoint().host == "" and not engine_answer.elsewhere()
    assert config_folder() == Path("/.docker")


def test_a_scheme_that_no_engine_is_reached_by(monkeypatch: pytest.MonkeyPatch) -> None:
    for host in ("fd://", "npipe:////./pipe"):
        monkeypatch.setenv("DOCKER_HOST", host)
        assert "and not with unix:, tcp: or ssh:" in engine_answer.refusal()


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[str]:
    """The address of a socket that accepts connections and never answers."""
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as listening:
        listening.bind(str(tmp_path / "silent.sock"))
        listening.listen(8)
        yield f"unix://{tmp_path}/silent.sock"


def test_an_engine_that_hangs_is_given_up_soon(monkeypatch: pytest.MonkeyPatch, silent: str) -> None:
    monkeypatch.setenv("DOCKER_HOST", silent)
    monkeypatch.setattr(docker_client, "CONNECT_SECONDS", 0.3)
    with pytest.raises(EnvironmentCannot, match="no Docker engine answers"):
        Engine.connect()


@pytest.mark.docker
def test_containers_of_another_cache_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = Engine.connect()
    assert engine.client.api.timeout == containers._ANSWER_SECONDS
    image = f"deepinfer-test:faults-{cache.identity()}"
    (tmp_path / "context").mkdir()
    (tmp_path / "context" / "Dockerfile").write_text("FROM scratch\nCOPY Dockerfile /\n")
    engine.build(tmp_path / "context", tag=image, log=tmp_path / "log")
    try:
        with engine.container(image, ["/none"], owner="faults/theirs") as theirs:
            monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "other"))
            ours = engine.client.containers.create(
                image, ["/none"], labels={LABEL: "1", f"{LABEL}.owner": "faults/ours", CACHE_LABEL: cache.identity()}
            )
            assert engine.owners("faults/") == {"faults/ours"}
            assert engine.sweep("faults/") == 1
            clean_images(engine, "faults")
            left = {raw.id for raw in engine.client.containers.list(all=True, ignore_removed=True)}
            assert theirs.raw.id in left and ours.id not in left
            assert "another build cache" in capsys.readouterr().err
    finally:
        engine.client.images.remove(image, force=True)
