"""Two processes at once: what the other does comes exactly between a look and the step that trusts it."""

from __future__ import annotations

import fcntl
import io
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from build import cache
from build.clean import folders, verb
from build.clean.images import clean_images, remove_unused_os_layers
from build.errors import EnvironmentCannot
from build.host import compile as host_compile
from build.publish import archive
from build.setup import docker_engine, dockerd, packs
from build.wheels import cell as cells
from build.wheels import wheelhouse

KEY = "ab" * 32
SCRATCH = KEY[:12]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "cache"))
    return cache.root()


class NoContainers:
    """An engine in which nobody left anything."""

    def owners(self, prefix: str) -> set[str]:
        return set()


def sweep_of_images() -> None:
    cells.sweep_abandoned(NoContainers())  # type: ignore[arg-type]


SWEEPS = pytest.mark.parametrize("sweep", [sweep_of_images, host_compile._sweep], ids=["images", "host"])


@contextmanager
def begun_after_the_look(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Somebody takes the lock `name` when others have just been told that nobody holds it."""
    with cache.locked(name), monkeypatch.context() as patch:
        patch.setattr(cache, "is_locked", lambda name: False)
        yield


def at_once(step: Callable[[], Any]) -> None:
    """Do what must not wait for another process; what it raises is raised here."""
    problems: list[BaseException] = []

    def run() -> None:
        try:
            step()
        except BaseException as problem:
            problems.append(problem)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive(), "it waits"
    if problems:
        raise problems[0]


@SWEEPS
def test_a_sweep_of_compiles_leaves_what_a_publisher_is_writing(sweep: Callable[[], None]) -> None:
    left = cache.folder(f"work/{SCRATCH}")
    with archive._scratch() as scratch:
        (scratch / "engine.tar").touch()
        sweep()
        assert (scratch / "engine.tar").exists() and not left.exists()


@SWEEPS
def test_a_sweep_passes_over_a_compile_that_begins_meanwhile(
    sweep: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = cache.folder(f"work/{SCRATCH}")
    with begun_after_the_look(cells.lock_name(KEY), monkeypatch):
        at_once(sweep)
    assert scratch.exists()


def test_the_host_stays_when_its_build_begins_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = cache.folder("host/prefix")
    with begun_after_the_look("host", monkeypatch), pytest.raises(EnvironmentCannot, match="the host is being built"):
        at_once(lambda: verb.run(host=True))
    assert prefix.exists()


def test_a_build_that_begins_while_the_cache_is_removed_makes_it_anew(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It waits for the end of the removal, and says so: else its lock and its files would be removed under it."""
    began, checked = threading.Event(), threading.Event()

    def build() -> None:
        with cache.locked("image-cpu"):
            cache.folder("parts/cpu")
            began.set()
            checked.wait(60)

    builds = [threading.Thread(target=build)]
    plain = folders.remove

    def remove_beside_a_build(path: Path) -> None:
        if builds and not builds[0].ident:
            builds[0].start()
            began.wait(0.3)  # time to do harm, if it may
        plain(path)

    monkeypatch.setattr(folders, "remove", remove_beside_a_build)
    cache.folder("wheelhouse")
    folders.remove_cache(own_cache)
    try:
        assert began.wait(60)
        assert cache.is_locked("image-cpu") and (own_cache / "parts" / "cpu").is_dir()
        assert capsys.readouterr().err.startswith("waiting for another ./run, which is cleaning up\n")
        assert not (own_cache / "wheelhouse").exists()
    finally:
        checked.set()
        builds[0].join()


def test_a_cache_whose_folder_goes_while_it_is_made_is_made_all_the_same(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a `clean` that has given up its lock, and removes the folder last."""
    plain, looks = cache._refuse_somebodys_own, list[Path]()

    def gone_at_first(path: Path) -> None:
        if not looks:
            path.rmdir()
        looks.append(path)
        plain(path)

    monkeypatch.setattr(cache, "_refuse_somebodys_own", gone_at_first)
    (own_cache / "CACHEDIR.TAG").unlink()
    with cache.locked("image-cpu"):
        assert (own_cache / "CACHEDIR.TAG").is_file() and len(looks) == 2


def test_a_build_of_an_older_checkout_keeps_the_cache(own_cache: Path) -> None:
    """It shares the cache, and knows no lock but that of its image."""
    with (cache.folder("locks") / "image-cpu.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(EnvironmentCannot, match="a build is using the cache"):
            folders.remove_cache(own_cache)
    folders.remove_cache(own_cache)
    assert not own_cache.exists()


def test_unfinished_files_of_a_build_that_begins_meanwhile_stay(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    part = cache.folder("downloads") / ".part-wheel"
    part.touch()
    monkeypatch.setattr(cache, "any_locked", lambda: False)
    with cache.locked("image-cpu"):
        verb.clean_leftovers()
    assert part.exists() and "a build is running" in capsys.readouterr().err


def test_dockerd_goes_on_for_a_build_that_begins_meanwhile(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped: list[int] = []
    monkeypatch.setattr(cache, "any_locked", lambda: False)
    monkeypatch.setattr(dockerd, "started_by_us", lambda: 1)
    monkeypatch.setattr(dockerd, "stop", lambda: stopped.append(1) or 1)
    with cache.locked("image-cpu"), pytest.raises(EnvironmentCannot, match="a build is using the engine"):
        verb.run(docker=True, yes=True)
    monkeypatch.setattr(docker_engine, "ensure", lambda **_: True)
    with ExitStack() as other:
        with docker_engine.running(may_install=False):
            other.enter_context(cache.locked("image-cpu"))
        assert stopped == [] and "a build is using it; `./run clean --docker`" in capsys.readouterr().err
    with docker_engine.running(may_install=False):
        pass
    assert stopped == [1]
    monkeypatch.setattr(dockerd, "stop", lambda: None)  # as after a `clean --docker` from elsewhere
    capsys.readouterr()
    with docker_engine.running(may_install=False):
        pass
    told = capsys.readouterr().err
    assert "gone already" in told and "None" not in told


def test_the_record_of_a_dockerd_that_is_being_started_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """`clean --docker` finds none, and the other process writes down the one that it has just started."""
    record = cache.folder("docker") / "dockerd.json"
    with cache.locked("dockerd"):
        record.write_text("{}")
        assert verb.run(docker=True) == 0
        assert record.exists()


def test_who_asks_about_a_lock_is_not_taken_for_its_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    with cache.locked("image-cpu"):
        pass
    plain, tried, answers = fcntl.flock, threading.Event(), []

    def take() -> None:
        with cache.held_at_once("image-cpu") as held:
            answers.append(held)

    taker = threading.Thread(target=take)

    def flock(handle: Any, kind: int) -> None:
        if threading.current_thread() is taker:
            try:
                plain(handle, kind)
            finally:
                if kind & fcntl.LOCK_EX:
                    tried.set()
            return
        plain(handle, kind)
        monkeypatch.setattr(fcntl, "flock", plain)
        answers.append(cache.is_locked("image-cpu"))
        monkeypatch.setattr(fcntl, "flock", flock)
        taker.start()
        assert tried.wait(60)

    monkeypatch.setattr(fcntl, "flock", flock)
    assert not cache.is_locked("image-cpu")
    taker.join(60)
    assert answers == [False, True]


def test_an_entry_that_another_has_made_whole_again_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    artefact = tmp_path / "thing.whl"
    artefact.write_bytes(b"whole")
    house, other = wheelhouse.Wheelhouse(tmp_path / "house"), wheelhouse.Wheelhouse(tmp_path / "house")
    kept = house.put(KEY, artefact, {"run": 1})
    kept.unlink()
    plain = wheelhouse._verified

    def verified_beside_another(folder: Path) -> wheelhouse.Entry:
        try:
            return plain(folder)
        except wheelhouse.DAMAGE:
            monkeypatch.setattr(wheelhouse, "_verified", plain)
            assert other.find(KEY) is None
            other.put(KEY, artefact, {"run": 2})
            raise

    monkeypatch.setattr(wheelhouse, "_verified", verified_beside_another)
    found = house.entry(KEY)
    assert found is not None and found.meta["run"] == 2 and found.artefact.read_bytes() == b"whole"
    assert capsys.readouterr().err.count("is damaged") == 1


def test_a_compiler_cache_that_goes_away_meanwhile_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    cell: Any = SimpleNamespace(component=SimpleNamespace(name="thing"))
    kept = cells.ccache_archive(cell)
    with tarfile.open(kept, "w"):
        pass
    plain, given = tarfile.is_tarfile, []

    def is_tarfile(name: Any) -> bool:
        kept.unlink(missing_ok=True)
        return plain(name)

    monkeypatch.setattr(tarfile, "is_tarfile", is_tarfile)
    container: Any = SimpleNamespace(put_tar=lambda path, data: given.append(data))
    cells._restore_ccache(cell, container)
    assert [tarfile.is_tarfile(io.BytesIO(data)) for data in given] == [True]
    cells._restore_ccache(cell, container)
    assert len(given) == 1, "there is none any more"


def test_packs_that_are_being_unpacked_are_no_leftovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / "alpha-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as made:
        made.writestr("alpha.py", "")
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    plain = zipfile.ZipFile.extractall

    def extract_beside_clean(self: zipfile.ZipFile, path: Path) -> None:
        plain(self, path)
        verb.clean_leftovers()

    monkeypatch.setattr(zipfile.ZipFile, "extractall", extract_beside_clean)
    assert (packs.unpacked({"alpha": wheel}) / "alpha.py").is_file()


class Images:
    """An engine with images of ours; `begun` is called when it is asked for them the second time."""

    def __init__(self, *names: str, begun: Callable[[], object] = lambda: None) -> None:
        self.names, self.begun, self.asked = list(names), begun, 0
        self.client = SimpleNamespace(images=SimpleNamespace(remove=self.names.remove), containers=self)

    def list(self, **_: object) -> list[Any]:
        return []

    def images(self, **_: object) -> list[Any]:
        self.asked += 1
        if self.asked == 2:
            self.begun()
        return [
            SimpleNamespace(id=name, tags=[name], labels={}, attrs={"Size": 1, "RootFS": {"Layers": [name]}})
            for name in self.names
        ]


def test_what_a_build_has_begun_since_clean_has_looked_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, base = "deepinfer-base:os-trixie-0123", "deepinfer-base:some-replica"
    engine: Any = Images(base, begun=lambda: engine.names.append(layer))
    assert [image.id for image in clean_images(engine, "some,os-*")] == [base] and engine.names == [layer]
    with cache.locked("replica"):
        clean_images(engine, "os-*")
        assert engine.names == [layer], "a replica is being built, and may stand on it"
    with begun_after_the_look("replica", monkeypatch):
        assert remove_unused_os_layers(engine) == []
    clean_images(engine, "os-*")
    assert engine.names == []
