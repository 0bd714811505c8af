"""A folder that is written whole or not at all: beside its name, or in the empty one that is there."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from deepinfer.cli import main
from deepinfer.errors import UsageError
from deepinfer.loading import tiny
from deepinfer.loading.write import new_folder


def fill(aside: Path) -> None:
    for name in ("z", "index", "a"):
        (aside / name).write_text(name)


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_an_empty_folder_that_is_there_stays_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a mount point has to, and the folder that a shell stands in."""
    folder = tmp_path / "empty"
    folder.mkdir(mode=0o750)
    before = folder.stat()
    monkeypatch.chdir(folder)
    with new_folder(Path(), last="index") as aside:
        assert aside.parent == folder and aside.name.startswith(".")
        fill(aside)
    after = folder.stat()
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)
    assert names(folder) == ["a", "index", "z"] and Path("z").read_text() == "z"
    with pytest.raises(UsageError, match=r"is not empty: it has a, index, z\n"), new_folder(folder, last="index"):
        pass


def test_the_index_is_the_last_to_take_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    replace = Path.replace
    monkeypatch.setattr(Path, "replace", lambda self, to: (order.append(self.name), replace(self, to)))
    with new_folder(tmp_path, last="index") as aside:
        fill(aside)
    assert order == ["a", "z", "index"]


@pytest.mark.parametrize("there", [True, False])
def test_links_lead_to_the_folder(tmp_path: Path, there: bool) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    if there:
        target.mkdir()
    link.symlink_to(target)
    with new_folder(link, last="index") as aside:
        fill(aside)
    assert link.is_symlink() and names(target) == ["a", "index", "z"]


def test_a_link_that_leads_to_itself_is_no_name(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    refused = pytest.raises(UsageError, match="loop cannot be written: Too many levels")
    with refused, new_folder(tmp_path / "loop", last="index"):
        pass
    assert names(tmp_path) == ["loop"]


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_what_ends_early_leaves_nothing(tmp_path: Path, there: bool, error: type[BaseException]) -> None:
    folder = tmp_path / "folder"
    if there:
        folder.mkdir()
    with pytest.raises(error), new_folder(folder, last="index") as aside:
        fill(aside)
        raise error
    assert names(tmp_path) == ["folder"] * there and not (there and names(folder))


@pytest.mark.parametrize("there", [True, False])
def test_of_two_at_once_the_second_is_told_and_takes_nothing_away(tmp_path: Path, there: bool) -> None:
    folder = tmp_path / "folder"
    if there:
        folder.mkdir()
    with pytest.raises(UsageError, match="is not empty any more") as told, new_folder(folder, last="index") as aside:
        fill(aside)
        folder.mkdir(exist_ok=True)
        (folder / "index").write_text("of the other")
    assert "another process" in told.value.cause and told.value.exit_code == 1
    assert names(folder) == ["index"] and (folder / "index").read_text() == "of the other"
    assert names(tmp_path) == ["folder"]


@pytest.mark.parametrize("there", [True, False])
def test_files_that_another_thread_makes_meanwhile_are_not_everybodys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    """The umask is the whole process's: who sets it to know it sets it for every thread."""
    plain, folder, other = os.umask, tmp_path / "folder", tmp_path / "of another thread"
    if there:
        folder.mkdir()

    def umask(mask: int) -> int:
        before = plain(mask)
        other.touch()
        return before

    before = plain(0o027)
    monkeypatch.setattr(os, "umask", umask)
    try:
        with new_folder(folder, last="index") as aside:
            fill(aside)
        other.touch()
    finally:
        plain(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (other, *folder.iterdir())}
    assert modes == {"of another thread": 0o640, "a": 0o640, "index": 0o640, "z": 0o640}
    assert there or folder.stat().st_mode & 0o777 == 0o750


def test_an_empty_folder_that_goes_away_meanwhile_is_not_called_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, plain = tmp_path / "folder", Path.exists
    folder.mkdir()

    def exists(path: Path) -> bool:
        found = plain(path)
        if path == folder and found:
            folder.rmdir()
        return found

    monkeypatch.setattr(Path, "exists", exists)
    refused = pytest.raises(UsageError, match="cannot be written: No such file")
    with refused, new_folder(folder, last="index"):
        pass


def test_termination_leaves_nothing_of_the_tiny_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ended(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

    monkeypatch.setattr(tiny, "write_shards", ended)
    assert main(["tiny", str(tmp_path / "tiny")]) == 143 and capsys.readouterr().err == "stopped\n"
    assert not names(tmp_path)


def test_a_name_whose_bytes_are_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path / "m") + b"\xff"))
    assert main(["tiny", str(folder)]) == 1 and "m\\udcff' is no UTF-8" in capsys.readouterr().err
    folder.mkdir()
    assert main(["ask", "--model", str(folder), "--device", "cpu", "x"]) == 2
    assert "m\\udcff' is no UTF-8, and its files cannot be opened" in capsys.readouterr().err
