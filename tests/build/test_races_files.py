"""Files, logs and names that another process changes between a look and the step that trusts it."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from build import cache, doctor, locks
from build.call import CallFailed, call
from build.containers import LABEL
from build.errors import BuildError, CellFailed, EnvironmentCannot, GateFailed
from build.host import compile as host_compile
from build.image import collect, warm
from build.image.package import pack_engine
from build.image.parts import Contents
from build.plan import Cell
from build.publish import archive
from build.setup import install
from build.setup.environment import Environment
from build.sources import files_digest
from build.wheels.unpack import unpack_cell
from tests.image_stand_ins import base_facts
from tests.tiny_build import tiny, write_source

KEY = "ab" * 32


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "cache"))


def test_a_compile_of_a_folder_that_was_edited_meanwhile_is_refused(tmp_path: Path) -> None:
    """Its product would be kept under the key of what the folder held before."""
    source = write_source(tmp_path / "tiny")
    planned = {"source": f"files:{files_digest(source, ('.',))}"}
    cell = Cell("host", tiny("tiny", source), "build", KEY, inputs=planned)
    assert (unpack_cell(cell, source, tmp_path / "before") / "setup.py").is_file()
    (source / "setup.py").write_text("# edited\n")
    with pytest.raises(CellFailed, match="changed after the build had begun") as told:
        unpack_cell(cell, source, tmp_path / "after")
    assert str(source) in told.value.cause


def test_an_engine_that_was_edited_while_it_was_packed_is_no_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = ["as planned"]
    made = object.__new__(collect._Maker)
    made.cells, made.folder, made.package = {}, tmp_path, "as planned"
    made.plan = made.inspection = SimpleNamespace(target=SimpleNamespace(name="some"))  # type: ignore[assignment]
    monkeypatch.setattr(made, "part", lambda name, inputs, make: make(tmp_path))
    monkeypatch.setattr(collect, "package_digest", lambda repository: digests[-1])
    monkeypatch.setattr(collect, "pack_engine", lambda *_, **__: digests.append("edited"))
    monkeypatch.setattr(collect, "lay_engine", lambda *_: Contents())
    with pytest.raises(BuildError, match="sources changed while the image was being made"):
        made.deepinfer(b"{}")


def test_targets_that_are_packed_at_once_have_logs_of_their_own(tmp_path: Path) -> None:
    logs = []
    for target in ("one", "other"):
        with pytest.raises(BuildError, match="could not be packed") as told:
            pack_engine(tmp_path / "no sources", None, base_facts(), tmp_path, target=target)
        logs.append(told.value.log)
    assert [log.name for log in logs if log is not None and "setup.py" in log.read_text()] == [
        "package-one.log", "package-other.log",
    ]  # fmt: skip


def test_the_end_of_a_log_is_read_although_another_has_taken_its_name(tmp_path: Path) -> None:
    log = tmp_path / "log"
    done = call("sh", "-c", f"echo mine; rm {log}", log=log)
    assert done.stdout.splitlines()[-1] == "mine"
    with pytest.raises(CallFailed) as told:
        call("sh", "-c", f"echo mine; echo theirs > {tmp_path}/new; mv {tmp_path}/new {log}; exit 3", log=log)
    assert told.value.tail.splitlines()[-1] == "mine" and log.read_text() == "theirs\n"


def test_a_wheel_that_another_fetch_has_made_whole_again_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"a whole wheel"
    digest = hashlib.sha256(data).hexdigest()
    wheel = cache.folder(f"downloads/wheels/{digest}") / "alpha-1.0-py3-none-any.whl"
    wheel.write_bytes(b"damaged")
    pin: Any = SimpleNamespace(hashes=(digest,))
    plain = locks.file_sha256

    def sha256_before_another(path: Path) -> str:
        found = plain(path)
        wheel.write_bytes(data)
        return found

    monkeypatch.setattr(locks, "file_sha256", sha256_before_another)
    assert locks._stored(wheel.parents[1], pin, "3.13") == wheel
    wheel.unlink()
    monkeypatch.setattr(locks, "_candidates", lambda *_: [wheel])
    monkeypatch.setattr(locks, "file_sha256", plain)
    assert locks._stored(wheel.parents[1], pin, "3.13") is None, "one that another took away is none"


def test_an_install_that_is_under_way_is_not_called_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who believed it would remove `.venv` under the installer."""
    environment = Environment(tmp_path)
    (tmp_path / ".venv").mkdir()
    (tmp_path / "locks").mkdir()
    for name in ("build", "test"):
        (tmp_path / "locks" / f"{name}.lock").touch()
    environment.write_record(busy=True)
    with environment.locked(), pytest.raises(EnvironmentCannot, match="is being set up by another start") as told:
        assert doctor._environment(environment).status == "ok"
        install.ensure(environment, ("build",), may_install=False)
    assert "rm -rf" not in told.value.next_step
    with pytest.raises(EnvironmentCannot, match="lacks build") as told:
        install.ensure(environment, ("build",), may_install=False)
    assert "interrupted" in told.value.cause and "rm -rf" in told.value.next_step

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(EnvironmentCannot, match="lacks build"):  # a file system without locks
        install.ensure(environment, ("build",), may_install=False)


def test_an_environment_is_not_removed_under_what_runs_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a `git pull` in the middle of a build: a start finds that the locks have changed."""
    monkeypatch.setattr(install, "missing_packages", lambda *_: [])
    environment = Environment(tmp_path)
    (tmp_path / ".venv").mkdir()
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / "build.lock").touch()
    code = (
        "import os, pathlib, sys; from build.setup.environment import Environment; "
        "assert Environment(pathlib.Path(sys.argv[1])).use(); "
        "os.execvp('sh', ['sh', '-c', 'echo runs; exec sleep 600'])"
    )
    argv = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(argv, cwd=cache.REPOSITORY, stdout=subprocess.PIPE) as running:
        try:
            assert running.stdout is not None and running.stdout.readline() == b"runs\n"
            environment.write_record(busy=True)
            with pytest.raises(EnvironmentCannot, match=r"another \./run has started is still using it") as told:
                install.ensure(environment, ("build",), may_install=True)
            assert "interrupted" in told.value.cause and (tmp_path / ".venv").is_dir()
        finally:
            running.kill()
    with environment.unused() as unused:
        assert unused


def test_who_begins_while_the_environment_is_removed_takes_the_new_one(tmp_path: Path) -> None:
    environment = Environment(tmp_path)
    assert not environment.use(), "there is none"
    (tmp_path / ".venv").mkdir()
    answers: list[bool] = []
    other = threading.Thread(target=lambda: answers.append(environment.use()))
    with environment.unused():
        other.start()
        other.join(0.2)
        (tmp_path / ".venv").rename(tmp_path / "removed")
        (tmp_path / ".venv").mkdir()
    other.join(60)
    assert answers == [False]


def test_who_begins_while_the_new_environment_is_filled_does_not_run_in_half_of_it(tmp_path: Path) -> None:
    environment = Environment(tmp_path)
    (tmp_path / ".venv").mkdir()
    environment.write_record(busy=True)
    assert not environment.use()
    with environment.unused() as unused:
        assert unused, "who gave up holds nothing"
    environment.write_record()
    assert environment.use()


def test_an_archive_that_is_written_anew_is_read_when_it_is_whole_and_named_before_a_build_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[bool] = []
    labels = {LABEL: "1", f"{LABEL}.image": "cpu", f"{LABEL}.key": KEY}
    content: Any = SimpleNamespace(
        labels=labels, tag="1.0-cpu", attached=(), config_digest="sha256:x", layers=[], digest="sha256:y"
    )
    file = tmp_path / "image.tar"
    file.touch()

    def read(path: Path) -> Any:
        held.append(any(cache.is_locked(lock.stem) for lock in cache.folder("locks").glob("image-archive-*.lock")))
        return content

    def tag(*_: str) -> None:
        held.append(cache.is_locked("image-cpu"))

    engine: Any = SimpleNamespace(
        tag=tag, image_id=lambda name: None, image_config=lambda name: {"RootFS": {"Layers": []}}
    )
    monkeypatch.setattr(archive, "read_layout", read)
    monkeypatch.setattr(archive, "_skopeo", lambda: "skopeo")
    monkeypatch.setattr(archive, "_translate", lambda *_: None)
    monkeypatch.setattr(archive, "_load", lambda engine, given: "sha256:x")
    assert archive.load_archive(engine, file).names == ("deepinfer:1.0-cpu", "deepinfer:cpu")
    assert held == [True, True, True]


def test_a_compile_that_ends_while_it_is_killed_is_no_error(tmp_path: Path) -> None:
    """Another thread, which waits for it, sees its end between the two steps; others are still to be killed."""
    process = host_compile.Process(["true"], {}, tmp_path / "log")
    with subprocess.Popen(["true"], start_new_session=True) as ended:
        pass
    process.raw = SimpleNamespace(pid=ended.pid, poll=lambda: None)  # type: ignore[assignment]
    process.kill()


def test_the_log_of_warm_caches_that_fail_is_there_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine tells the end of a program before the end of what it printed."""
    ended = threading.Event()

    def follow(log: Path) -> None:
        ended.wait(60)
        threading.Event().wait(0.2)
        log.write_text("the last words")

    container = SimpleNamespace(
        start=lambda: None, follow=follow, output=lambda: ("", "bad"), wait=lambda limit: ended.set() or 3
    )
    engine: Any = SimpleNamespace(container=lambda *_, **__: nullcontext(container))
    with pytest.raises(GateFailed, match="ended with status 3") as told:
        warm._compile(engine, "image", "cpu", b"", Path("unused"))
    assert told.value.log is not None and told.value.log.read_text() == "the last words"
