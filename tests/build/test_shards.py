"""pytest in several processes: every file is run once, and one status stands for all."""

from __future__ import annotations

from pathlib import Path

import pytest

from build.shards import run, status_of
from build.shards import test_files as every_file

QUIET = ("-q", "-p", "no:cacheprovider")


def _files(folder: Path, *bodies: str) -> list[Path]:
    files = [folder / f"test_{index}.py" for index in range(len(bodies))]
    for file, body in zip(files, bodies, strict=True):
        file.write_text(f"from pathlib import Path\n{body}\n")
    return files


def _marks(folder: Path, index: int) -> str:
    return f"def test_it():\n    with open({str(folder / 'ran')!r}, 'a') as out: out.write('{index} ')"


def test_every_file_is_run_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files = _files(tmp_path, *(_marks(tmp_path, index) for index in range(9)))
    assert run(files, ["--rootdir", str(tmp_path), *QUIET], workers=2) == 0
    assert sorted((tmp_path / "ran").read_text().split()) == [str(index) for index in range(9)]
    assert capfd.readouterr().out.count(" passed in ") == 6


def test_a_failure_anywhere_is_the_status_of_all(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files = _files(tmp_path, "def test_good(): pass", "def test_bad(): assert 'this' == 'that'", "")
    words = ["--rootdir", str(tmp_path), *QUIET]
    assert run(files, words, workers=2) == 1
    out = capfd.readouterr().out
    assert "test_1.py" in out and "'this' == 'that'" in out
    assert run([files[0], files[2]], words, workers=1) == 0
    assert run([files[2]], words, workers=1) == 5
    assert run([files[0]], [*words, "--no-such-option"], workers=1) == 4


@pytest.mark.parametrize(
    ("statuses", "whole"), [([0, 5], 0), ([5, 5], 5), ([0, 1], 1), ([1, 3, 0], 3), ([1, -9], -9), ([], 5)]
)
def test_one_status_for_several(statuses: list[int], whole: int) -> None:
    assert status_of(statuses) == whole


def test_all_folders_of_tests_are_looked_into() -> None:
    assert {"build", "engine", "images", "ops"} <= {path.parent.name for path in every_file()}
