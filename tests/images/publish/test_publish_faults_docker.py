"""What a registry, the engine, or whoever publishes can do in the middle of a push."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from build import cache
from build.call import call
from build.containers import Engine
from build.errors import EnvironmentCannot
from build.publish.connection import RegistryCannot
from build.publish.credentials import PASSWORD_FILE
from build.publish.credentials import USER as USER_VARIABLE
from tests.images.publish.releases import ALIASES, NAME, digests, documented, made, publish
from tests.publish_stand_ins import HTPASSWD, PASSWORD, USER, RegistryProgram, relayed, running

pytestmark = pytest.mark.docker
PATIENCE = 5
"""Seconds without progress in which a push is not slow, on a busy machine either, but stands still."""


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
        assert relay.stall.wait(300), "the push never got there"
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
            publish(engine, release, relay.host, patience=PATIENCE)
        assert relay.stall.is_set() and f"{PATIENCE} s" in slow.value.cause
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
            relay.stall.wait(300)
            time.sleep(1.5 * PATIENCE)
            relay.stall.clear()

        threading.Thread(target=let_go, daemon=True).start()
        assert publish(engine, release, relay.host, patience=PATIENCE).pushed
    assert f"stood still for {PATIENCE} s; again" in capsys.readouterr().err


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
        assert relay.stall.wait(300), "the push never got there"
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert digests(registry.host, new.tag, *ALIASES) == [None, old.digest, old.digest]
        relay.stall.clear()
        done = publish(engine, new, relay.host)
    assert done.pushed and digests(registry.host, *ALIASES) == [done.digest] * 2
