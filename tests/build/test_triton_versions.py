"""Pinned Tritons: the lock is read strictly, and a folder in the cache is whole or absent."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from build import triton_versions
from build.errors import EnvironmentCannot, MatrixError, UsageError


def _lock(folder: Path, text: str) -> Path:
    path = folder / "triton.lock"
    path.write_text(text)
    return path


def test_the_three_versions_are_pinned_for_every_python() -> None:
    for tag in ("cp311", "cp312", "cp313"):
        assert triton_versions.versions(python_tag=tag) == ["3.5.1", "3.6.0", "3.7.1"]


@pytest.mark.parametrize("line", ["3.7.1 cp311", "3.7.1 cp311 abc", f"3.7.1 cp311 {'g' * 64}", f"3.7.1 {'0' * 64}"])
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    with pytest.raises(MatrixError, match=r"triton\.lock:2: not a line") as caught:
        triton_versions.read_lock(_lock(tmp_path, f"# a comment\n{line}\n"))
    assert "next step" in str(caught.value)


def test_an_unpinned_version_is_refused_before_any_download(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path))
    with pytest.raises(UsageError, match=r"no Triton 1\.2\.3 is pinned") as caught:
        triton_versions.triton_dir("1.2.3")
    assert "3.5.1, 3.6.0, 3.7.1" in str(caught.value)


def test_a_wrong_hash_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "cache"))
    lock = _lock(tmp_path, f"3.6.0 {triton_versions.THIS_PYTHON} {'0' * 64}\n")
    with pytest.raises(EnvironmentCannot) as caught:
        triton_versions.triton_dir("3.6.0", lock=lock)
    assert "sha256 is not the one" in str(caught.value)
    assert list((tmp_path / "cache" / "triton" / "3.6.0").iterdir()) == []


def _fetch(version: str) -> str:
    return str(triton_versions.triton_dir(version))


def test_two_at_once_get_one_whole_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path))
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        first, second = pool.map(_fetch, ["3.5.1", "3.5.1"], chunksize=1)
    assert first == second
    assert Path(first, "triton", "_C").is_dir()
    assert [entry.name for entry in Path(first).parent.iterdir()] == [triton_versions.THIS_PYTHON]
