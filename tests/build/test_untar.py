"""Tar archives of others: a link that leads outside is refused itself, whatever way it takes to get there."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from build.untar import Refused, extract


def archive(*members: tuple[str, str]) -> tarfile.TarFile:
    """An archive of links (name -> goal) and, where the goal is empty, folders."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as made:
        for name, goal in members:
            info = tarfile.TarInfo(name)
            info.type = tarfile.SYMTYPE if goal else tarfile.DIRTYPE
            info.linkname = goal
            made.addfile(info)
    buffer.seek(0)
    return tarfile.open(fileobj=buffer)


@pytest.mark.parametrize(
    "members",
    [
        [("a/b", ""), ("a/b/top", "../.."), ("a/b/top/out", "../../..")],
        [("here", "."), ("too", "."), ("out", "here/too/..")],
        [("out", "later/on/.."), ("later", "."), ("on", ".")],
        [("out", "..")],
        [("a/out", "../../x")],
    ],
)
def test_a_link_that_leads_outside_is_refused(tmp_path: Path, members: list[tuple[str, str]]) -> None:
    with archive(*members) as given, pytest.raises(Refused, match="outside"):
        extract(given, tmp_path / "tree")
    for link in (path for path in (tmp_path / "tree").rglob("*") if path.is_symlink()):
        assert link.resolve().is_relative_to(tmp_path / "tree")


def test_links_that_stay_inside_are_kept(tmp_path: Path) -> None:
    links = [("a/b/up", "../.."), ("a/b/up/beside", "a"), ("a/other", "b/up"), ("a/b/same", "../b"), ("top", ".")]
    with archive(("a/b", ""), *links) as given:
        extract(given, tmp_path)
    assert {path.relative_to(tmp_path).as_posix() for path in (tmp_path / "top" / "a" / "other").iterdir()} == {
        "top/a/other/a", "top/a/other/beside", "top/a/other/top",
    }  # fmt: skip


def test_links_in_a_circle_are_no_traceback(tmp_path: Path) -> None:
    with archive(("a", "b"), ("b", "a"), ("a/x", "")) as given, pytest.raises((Refused, OSError)):
        extract(given, tmp_path)
