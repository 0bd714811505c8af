"""Filling a folder of packs with the real pip, and what is said when that cannot be done."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from build.cache import REPOSITORY, location
from build.digests import file_sha256
from build.host import pack
from build.host.offline import OfflineFolder
from build.locks import fits, read_lock
from build.matrix.load import load_matrix


def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "build.host.pack", *words]
    environment = {**os.environ, **variables}
    return subprocess.run(argv, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def cache_with_downloads(tmp_path: Path) -> str:
    """A cache of the test's own that shares the downloads, so that a second run fetches nothing."""
    (location() / "downloads").mkdir(parents=True, exist_ok=True)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "downloads").symlink_to(location() / "downloads")
    return str(tmp_path / "cache")


def test_the_pack_of_the_engines_dependencies_holds_the_wheels_of_the_lock(
    tmp_path: Path, cache_with_downloads: str
) -> None:
    folder = tmp_path / "my packs"
    words = (str(folder), "runtime", "--python", "3.12")
    done = run(*words, DEEPINFER_BUILD_CACHE=cache_with_downloads)
    assert done.returncode == 0, done.stderr
    lock = load_matrix().targets["host"].runtime_lock
    assert lock is not None
    found = [
        OfflineFolder(folder).by_sha256(digest) for pin in read_lock(REPOSITORY / lock).pins for digest in pin.hashes
    ]
    wheels = {wheel for wheel in found if wheel is not None}
    assert len(wheels) == len(read_lock(REPOSITORY / lock).pins)
    assert all(fits(wheel.name, "3.12") for wheel in wheels)
    assert wheels == set((folder / "runtime").iterdir())

    before = {wheel: wheel.stat().st_mtime_ns for wheel in wheels}
    damaged = min(wheels, key=lambda wheel: wheel.stat().st_size)
    whole = file_sha256(damaged)
    damaged.write_bytes(bytes(damaged.stat().st_size))
    assert run(*words, DEEPINFER_BUILD_CACHE=cache_with_downloads).returncode == 0
    assert file_sha256(damaged) == whole
    assert all(wheel.stat().st_mtime_ns == before[wheel] for wheel in wheels - {damaged})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nonsense",), "unknown packs: nonsense; there are wheels, runtime"),
        (("triton", "--python", "three"), "is no version such as 3.12"),
        (("triton", "--pyhton", "3.12"), "has no option '--pyhton'; did you mean '--python'?"),
        (("triton", "--python", "3.9.1"), "is no version such as 3.12"),
    ],
)
def test_wrong_words_are_usage(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    done = run(str(tmp_path / "packs"), *words)
    assert done.returncode == 1 and said in done.stderr and "next step: " in done.stderr
    assert not (tmp_path / "packs").exists()


def test_a_python_without_a_pinned_triton_is_told(tmp_path: Path) -> None:
    done = run(str(tmp_path / "packs"), "triton", "--python", "3.40", DEEPINFER_BUILD_CACHE=str(tmp_path / "cache"))
    assert done.returncode == 1 and "no Triton for Python 3.40" in done.stderr and "Traceback" not in done.stderr


def test_a_failure_of_pip_is_told_with_what_it_said(tmp_path: Path) -> None:
    nowhere = {
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_RETRIES": "0",
        "PIP_FIND_LINKS": "",
        "PIP_CONFIG_FILE": os.devnull,
    }
    done = run(str(tmp_path / "packs"), "triton", DEEPINFER_BUILD_CACHE=str(tmp_path / "cache"), **nowhere)
    assert done.returncode == 4 and "Traceback" not in done.stderr
    assert "pip download" in done.stderr and "likely cause: " in done.stderr
    assert not list((tmp_path / "packs").iterdir())


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert pack.main([str(tmp_path / "file" / "packs"), "triton"]) == 4
    assert f"({tmp_path}/file/packs)" in capsys.readouterr().err


def test_the_home_of_nobody_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert pack.main(["~nobody-at-all/packs", "triton"]) == 1
    assert "~nobody-at-all" in capsys.readouterr().err


def test_headers_that_are_there_are_not_fetched_again(tmp_path: Path) -> None:
    (tmp_path / "packs" / "elfutils").mkdir(parents=True)
    assert pack.main([str(tmp_path / "packs"), "elfutils"]) == 0
    assert [path.name for path in (tmp_path / "packs").iterdir()] == ["elfutils"]
