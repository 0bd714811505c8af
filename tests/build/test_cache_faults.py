"""Build caches at impossible places, on full and on read-only disks: told in plain words, and nothing half-written."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from build import cache
from build.errors import EnvironmentCannot, of_system

VERBS = (sys.executable, "-P", str(cache.REPOSITORY / "build" / "setup" / "program.py"), "alone", "--search-root")


@pytest.mark.parametrize("name", ["a$HOME", "a\nb", "a\x7f", "a'b", 'a"b', "a`b", "a:b", "a\\b", "a\udcff"])
def test_a_path_that_compilers_do_not_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / name))
    with pytest.raises(EnvironmentCannot, match="cannot lie at") as told:
        cache.root()
    str(told.value).encode()  # can be printed
    assert "DEEPINFER_BUILD_CACHE" in told.value.next_step and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a b", "ünïcödé", "a,b", "a;b", "(a)", "a&b", "-a", "~a", "a*"])
def test_odd_paths_that_are_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / name))
    assert cache.folder("downloads").parent == tmp_path / name
    assert (tmp_path / name / "CACHEDIR.TAG").read_text() == cache.CACHEDIR_TAG


def test_a_file_a_loop_and_a_name_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("file", "file/below", "loop", "x" * 300):
        monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / name))
        with pytest.raises(EnvironmentCannot, match="cannot be written") as told:
            cache.root()
        assert len(told.value.what) < 300


def test_somebodys_own_folder_does_not_become_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Backups pass over a folder with a CACHEDIR.TAG, and `clean --cache` would take `downloads` in it."""
    home = tmp_path / "a home"
    (home / "downloads").mkdir(parents=True)
    (home / "thesis\udcff.tex").touch()
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(home))
    with pytest.raises(EnvironmentCannot, match="is no build cache: it holds thesis") as told:
        cache.root()
    str(told.value).encode()  # can be printed
    assert f"'{home}/deepinfer-build'" in told.value.next_step
    assert {path.name for path in home.iterdir()} == {"downloads", "thesis\udcff.tex"}
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", "/")
    with pytest.raises(EnvironmentCannot, match="is no build cache"):
        cache.root()


@pytest.mark.parametrize("there", [(), ("lost+found",), (".part-x-CACHEDIR.TAG", "locks"), ("downloads", "rootfs")])
def test_what_a_cache_may_hold_before_it_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: tuple[str, ...]
) -> None:
    for name in there:
        (tmp_path / "cache" / name).mkdir(parents=True)
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "cache"))
    assert (cache.root() / "CACHEDIR.TAG").is_file()


def test_builds_that_begin_at_once_make_one_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other's tag appears after this build found none, and before it looks at what the folder holds."""
    plain = Path.mkdir

    def mkdir_beside_another(path: Path, *args: Any, **options: Any) -> None:
        plain(path, *args, **options)
        (path / "CACHEDIR.TAG").write_text(cache.CACHEDIR_TAG)

    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "cache"))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", mkdir_beside_another)
        assert cache.root() == tmp_path / "cache"
    for number in range(50):
        monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / f"cache-{number}"))
        together = threading.Barrier(8)

        def begin(together: threading.Barrier = together) -> Path:
            together.wait()
            return cache.folder("locks")

        with ThreadPoolExecutor(8) as pool:
            assert {begun.result() for begun in [pool.submit(begin) for _ in range(8)]} == {cache.root() / "locks"}


def test_a_pipe_and_a_folder_keep_their_names(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for place in (tmp_path / "pipe", tmp_path / "folder"):
        with pytest.raises(FileExistsError, match="no file"):
            cache.atomic_write(place, "text")
    assert (tmp_path / "pipe").is_fifo() and not list(tmp_path.glob(".part-*"))
    cache.atomic_write(tmp_path / "file", "first")
    cache.atomic_write(tmp_path / "file", "second")
    assert (tmp_path / "file").read_text() == "second"


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk with no room for a single block."""
    if os.geteuid() != 0:
        pytest.skip("a small disk can be mounted by root alone")
    place = tmp_path / "full"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(place)], check=True)
    try:
        (place / ".part-filler").write_bytes(b"x" * 4096)
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_leaves_no_half_tag(full_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(full_disk))
    with pytest.raises(EnvironmentCannot, match="No space left") as told:
        cache.root()
    assert "a disk with room" in told.value.next_step
    assert [path.name for path in full_disk.iterdir()] == [".part-filler"]
    (full_disk / ".part-filler").unlink()
    assert (cache.root() / "CACHEDIR.TAG").read_text() == cache.CACHEDIR_TAG


@pytest.mark.parametrize(
    ("number", "help"),
    [
        (errno.ENOSPC, "free space"),
        (errno.EDQUOT, "free space"),
        (errno.EROFS, "can write"),
        (errno.EIO, "./run doctor"),
    ],
)
def test_what_the_system_refuses_is_told_with_what_helps(number: int, help: str) -> None:
    told = of_system(OSError(number, os.strerror(number), "/some/file"))
    assert told.exit_code == 4 and "/some/file" in told.what and help in told.next_step


def test_a_verb_tells_what_the_system_refuses(full_disk: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "DEEPINFER_BUILD_CACHE": str(full_disk), "DOCKER_HOST": "unix:///nonexistent"}
    done = subprocess.run(
        [*VERBS, str(cache.REPOSITORY), "clean"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 4 and done.stderr.startswith("error: ") and "Traceback" not in done.stderr


def test_a_lock_is_taken_at_once_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "cache"))
    with cache.held_at_once("image-some") as held, cache.held_at_once("image-some") as again:
        assert held and not again and cache.is_locked("image-some")
        assert (cache.root() / "locks" / "image-some.lock").read_text() == f"{os.getpid()}\n", "who waits is told"
    assert not cache.is_locked("image-some")
