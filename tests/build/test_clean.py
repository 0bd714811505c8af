"""`clean` removes what is the project's, and nothing else."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from docker.errors import APIError

from build import cache
from build.clean.folders import remove_cache, remove_leftovers, size_of
from build.clean.images import clean_images, remove_unused_os_layers, require_known
from build.clean.verb import run
from build.command import as_build_error
from build.containers import CACHE_LABEL, LABEL, PROCESS_LABEL, Engine
from build.errors import EnvironmentCannot, NothingSelected, UsageError
from build.host.nccl import replace_nccl
from build.processes import identity, lives, own_mark


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "cache"))
    return cache.root()


def test_cache_goes_only_with_yes(own_cache: Path) -> None:
    (cache.folder("downloads") / "file").write_text("x")
    with pytest.raises(UsageError, match="would be removed"):
        run(cache=True)
    assert (own_cache / "downloads" / "file").exists()
    assert run(cache=True, yes=True) == 0
    assert not own_cache.exists()


def test_a_pattern_without_a_name_selects_nothing() -> None:
    nothing = SimpleNamespace(containers=SimpleNamespace(list=lambda **_: []))
    empty = cast(Engine, SimpleNamespace(images=lambda **_: [], client=nothing))
    for pattern in (",", " ", "flagtre"):
        with pytest.raises(NothingSelected):
            require_known(empty, pattern)
    require_known(empty, "fla*, cpu")


@pytest.mark.parametrize("tag", [None, "", "Signature: 0\n"])
def test_folder_without_the_signature_stays(own_cache: Path, tag: str | None) -> None:
    (own_cache / "CACHEDIR.TAG").unlink() if tag is None else (own_cache / "CACHEDIR.TAG").write_text(tag)
    (own_cache / "downloads").mkdir()
    with pytest.raises(EnvironmentCannot, match=r"no CACHEDIR\.TAG"):
        remove_cache(own_cache)
    assert (own_cache / "downloads").exists()


def test_link_to_a_cache_stays(own_cache: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(own_cache)
    with pytest.raises(EnvironmentCannot):
        remove_cache(tmp_path / "link")
    assert own_cache.exists()


def test_what_is_not_the_build_systems_stays_and_is_named(own_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache.folder("wheelhouse")
    (own_cache / "thesis.tex").write_text("x")
    remove_cache(own_cache)
    assert sorted(path.name for path in own_cache.iterdir()) == ["CACHEDIR.TAG", "thesis.tex"]
    assert "thesis.tex" in capsys.readouterr().err


def test_what_is_unfinished_is_removed_where_the_build_system_writes_and_nowhere_else(
    own_cache: Path, tmp_path: Path
) -> None:
    ours = [cache.folder("downloads/x") / ".part-1", cache.folder("work") / ".part-2", own_cache / ".part-tag"]
    theirs = [own_cache / "thesis" / ".part-3", tmp_path / "elsewhere" / ".part-4"]
    for path in (*ours, *theirs):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    (own_cache / "rootfs").symlink_to(tmp_path / "elsewhere")
    remove_leftovers()
    assert [path.exists() for path in ours] == [False] * 3 and [path.exists() for path in theirs] == [True] * 2


def test_links_in_the_cache_are_removed_and_not_followed(own_cache: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").touch()
    (cache.folder("work") / "link").symlink_to(tmp_path / "elsewhere")
    (own_cache / "rootfs").symlink_to(tmp_path / "elsewhere")
    locked = cache.folder("parts/readonly")
    (locked / "file").touch()
    locked.chmod(0o500)
    remove_cache(own_cache)
    assert not own_cache.exists() and (tmp_path / "elsewhere" / "file").exists()


def test_cache_in_use_or_needed_stays(own_cache: Path) -> None:
    with cache.locked("image-cpu"), pytest.raises(EnvironmentCannot, match="a build is using"):
        remove_cache(own_cache)
    (cache.folder("host") / "nccl-replaced.json").write_text("[]")
    with pytest.raises(EnvironmentCannot, match="cannot be put back") as told:
        remove_cache(own_cache)
    assert "clean --host" in told.value.next_step and own_cache.exists()


def test_every_folder_of_the_cache_is_known_to_clean() -> None:
    used = set()
    for path in (cache.REPOSITORY / "build").rglob("*.py"):
        text = path.read_text()
        used |= set(re.findall(r'\bfolder\(f?"([a-z]+)', text))
        used |= set(re.findall(r'cache\.root\(\) / "([a-z]+)"', text))
    assert used and used <= set(cache.FOLDERS)


def test_unfinished_files_go_and_whole_ones_stay(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    for name in ("downloads/.part-x/wheel.whl", "wheelhouse/.part-y", "wheelhouse/whole"):
        path = own_cache / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    with cache.locked("image-cpu"):
        run()
        assert (own_cache / "wheelhouse" / ".part-y").exists()
    run()
    left = sorted(str(path.relative_to(own_cache)) for path in own_cache.rglob("*") if path.is_file())
    assert left == ["CACHEDIR.TAG", "locks/all", "locks/image-cpu.lock", "wheelhouse/whole"]


def test_a_process_is_known_until_it_ends_and_no_other_is_taken_for_it() -> None:
    process = subprocess.Popen(["sleep", "300"])
    facts = identity(process.pid)
    mark = f"{facts['pid']}-{facts['started']}-{facts['boot']}"
    assert lives(mark) and lives(own_mark())
    assert not lives(f"{process.pid}-{int(facts['started']) + 1}-{facts['boot']}")
    process.kill()
    process.wait()
    assert not lives(mark)
    for text in ("", "-", "x-1-y", str(process.pid), "99999999999999999999-1-y"):
        assert not lives(text)


def test_host_puts_nccl_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loaded, new = tmp_path / "libnccl.so.2", tmp_path / "new.so"
    loaded.write_bytes(b"old")
    new.write_bytes(b"new")
    replace_nccl(loaded, new, "2.32.3")
    assert run(host=True) == 0
    assert loaded.read_bytes() == b"old" and f"clean: put the old {loaded} back" in capsys.readouterr().err


def test_the_host_is_left_alone_while_it_is_built(own_cache: Path) -> None:
    kept = cache.folder("host/prefix")
    with cache.locked("host"), pytest.raises(EnvironmentCannot, match="the host is being built"):
        run(host=True)
    assert kept.is_dir()
    assert run(host=True) == 0
    assert not kept.exists()


def test_host_removes_the_prefix_that_is_named_and_that_alone(tmp_path: Path, own_cache: Path) -> None:
    kept, prefix = cache.folder("host/prefix"), tmp_path / "prefix"
    prefix.mkdir()
    (prefix / "image.json").write_text('{"image": "host"}')
    with pytest.raises(UsageError, match="--prefix goes with --host"):
        run(prefix=prefix)
    assert run(host=True, prefix=prefix) == 0
    assert kept.is_dir() and not prefix.exists()


def test_sizes_count_a_file_once_and_follow_no_link(tmp_path: Path) -> None:
    folder = tmp_path / "sized"
    folder.mkdir()
    (folder / "file").write_bytes(b"x" * 100_000)
    once = size_of(folder)
    (folder / "again").hardlink_to(folder / "file")
    (folder / "loop").symlink_to(folder)
    assert 100_000 <= once <= size_of(folder) < 200_000


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = Engine.connect()
    yield engine
    for image in engine.client.images.list(filters={"label": f"{LABEL}.cleaning-test"}):
        engine.client.images.remove(str(image.id), force=True)


def _image(engine: Engine, folder: Path, tag: str, base: str = "scratch", **labels: str) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "Dockerfile").write_text(
        f"FROM {base}\nCOPY Dockerfile /{tag.replace(':', '-').replace('/', '-')}\nCMD ['/x']\n"
    )
    named = {f"{LABEL}.{name}": value for name, value in {"cleaning-test": "1", **labels}.items()}
    return engine.build(folder, tag=tag, labels=named, log=folder.parent / "log")


@pytest.mark.docker
def test_images_go_by_name_and_what_others_made_of_them_stays(engine: Engine, tmp_path: Path) -> None:
    context = tmp_path / "context"
    base = _image(engine, context, "deepinfer-base:cleaning-one-replica")
    _image(
        engine, context, "deepinfer-builder:cleaning-one-0", "deepinfer-base:cleaning-one-replica", image="cleaning-one"
    )
    final = _image(
        engine,
        context,
        "registry.example/team/deepinfer:1-x",
        "deepinfer-base:cleaning-one-replica",
        image="cleaning-one",
    )
    other = _image(engine, context, "deepinfer:cleaning-two", image="cleaning-two")
    derived = _image(engine, context, "somebody/service:cleaning", "registry.example/team/deepinfer:1-x")
    engine.client.images.get(other).tag("somebody/kept", "cleaning")
    gone = clean_images(engine, "cleaning-one, nothing-else")
    ids = {str(image.id) for image in engine.client.images.list(all=True)}
    # The user's image keeps the layers it was made from; the names of ours are gone all the same.
    assert {image.id for image in gone} >= {final} and derived in ids and other in ids
    for name in ("deepinfer-base:cleaning-one-replica", "registry.example/team/deepinfer:1-x"):
        assert engine.image_id(name) is None, name
    assert engine.image_id("deepinfer-builder:cleaning-one-0") is None and base
    clean_images(engine, "cleaning-t*", keep=[other])
    assert engine.image_id("deepinfer:cleaning-two") == other
    clean_images(engine, "cleaning-t*")
    assert engine.image_id("deepinfer:cleaning-two") is None and engine.image_id("somebody/kept:cleaning") == other


@pytest.mark.docker
def test_containers_of_ours_go_and_those_of_users_keep_their_image(engine: Engine, tmp_path: Path) -> None:
    image = _image(engine, tmp_path / "context", "deepinfer:cleaning-three", image="cleaning-three")
    named = {LABEL: "1", f"{LABEL}.owner": "cleaning-three/x"}
    ours = engine.client.containers.create(image, labels={**named, CACHE_LABEL: cache.identity()})
    theirs = engine.client.containers.create(image)
    try:
        assert theirs.labels[LABEL] == "1", "labels are inherited, so that they alone say little"
        assert clean_images(engine, "cleaning-three") == []
        left = {container.id for container in engine.client.containers.list(all=True)}
        assert ours.id not in left and theirs.id in left
        assert engine.image_id("deepinfer:cleaning-three") == image
    finally:
        theirs.remove()
    assert [image.id for image in clean_images(engine, "cleaning-three")] == [image]


@pytest.mark.docker
def test_containers_of_a_process_that_lives_stay(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = _image(engine, tmp_path / "context", "deepinfer:cleaning-four", image="cleaning-four")
    with engine.container(image, ["/x"], owner="cleaning-four/gates") as used:
        left = engine.client.containers.create(
            image, labels={**used.raw.labels, PROCESS_LABEL: own_mark().replace("-", "-1", 1)}
        )
        assert engine.sweep("cleaning-four/") == 1, "that of a process which has ended"
        run()
        clean_images(engine, "cleaning-four")
        there = {container.id for container in engine.client.containers.list(all=True, ignore_removed=True)}
        assert used.raw.id in there and left.id not in there
        assert "which started it, still runs" in capsys.readouterr().err
        used.raw.remove()
        with pytest.raises(APIError) as gone:
            used.start()
    told = as_build_error(gone.value)
    assert "something removed a container" in told.what and "run the command again" in told.next_step
    clean_images(engine, "cleaning-four")
    assert engine.image_id("deepinfer:cleaning-four") is None


@pytest.mark.docker
def test_a_name_that_nothing_has_is_told_and_an_image_that_is_not_built_is_not(engine: Engine) -> None:
    for name, hint in (("flagtre", "'flagtree'"), ("cpu,nope-at-all", "cpu")):
        with pytest.raises(NothingSelected) as told:
            run(images=name)
        assert told.value.exit_code == 3 and hint in told.value.next_step
    assert run(images="host") == 0, "known, and Docker has nothing of it"


@pytest.mark.docker
def test_os_layers_go_when_no_image_stands_on_them(engine: Engine, tmp_path: Path) -> None:
    used = _image(engine, tmp_path / "used", "deepinfer-base:os-cleaning-used")
    unused = _image(engine, tmp_path / "unused", "deepinfer-base:os-cleaning-unused")
    upper = _image(
        engine, tmp_path / "upper", "deepinfer-base:cleaning-five-replica", "deepinfer-base:os-cleaning-used"
    )
    with cache.locked("replica"):
        assert remove_unused_os_layers(engine) == []
    gone = {image.id for image in remove_unused_os_layers(engine)}
    assert unused in gone and used not in gone
    assert engine.image_id("deepinfer-base:os-cleaning-used") == used
    assert engine.image_id("deepinfer-base:cleaning-five-replica") == upper
