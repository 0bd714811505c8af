"""What of a Python is closed to users: found by its modes, and opened as far as is needed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from build.bases.probe.access import closed_to_users
from build.image.lay import open_to_users


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A private home with a Python behind a link, one private file in it and one private folder."""
    for folder in (tmp_path, *list(tmp_path.parents)[:-2]):
        if folder.stat().st_uid == os.getuid():
            folder.chmod(folder.stat().st_mode | 0o11)  # pytest's own folders are private
    site = tmp_path / "home/python/site"
    site.mkdir(parents=True)
    for name in ("public.py", "private.py"):
        (site / name).write_text("x = 1\n")
        (site / name).chmod(0o644)
    (site / "private.py").chmod(0o600)
    (site / "folder").mkdir(mode=0o700)
    (site / "broken").symlink_to("nowhere")
    (tmp_path / "link").symlink_to("home/python")
    (tmp_path / "home").chmod(0o700)
    yield tmp_path
    (tmp_path / "home").chmod(0o755)


def below(home: Path, found: dict[str, object]) -> dict[str, object]:
    """The facts without the folders above the test's own."""
    paths = {name: [path for path in found[name] if path.startswith(str(home))] for name in ("closed", "unreadable")}  # type: ignore[attr-defined]
    return {**found, **paths}


def test_folders_on_the_way_through_links_and_private_files_are_found(home: Path) -> None:
    found = below(home, closed_to_users([home / "link/site"], [home / "link/site/public.py"]))
    assert found["closed"] == [f"{home}/home"]
    assert found["unreadable"] == [f"{home}/home/python/site/folder", f"{home}/home/python/site/private.py"]
    assert found["unreadable_bytes"] == len("x = 1\n")


def test_a_group_without_the_right_counts_as_others_do(home: Path) -> None:
    (home / "home").chmod(0o705)
    (home / "home/python/site/private.py").chmod(0o604)
    found = below(home, closed_to_users([home / "link/site"], []))
    assert found["closed"] == [f"{home}/home"]
    assert f"{home}/home/python/site/private.py" in found["unreadable"]  # type: ignore[operator]


def test_opening_gives_no_more_than_is_needed(home: Path) -> None:
    found = below(home, closed_to_users([home / "link/site"], []))
    open_to_users({"pass": found["closed"], "read": found["unreadable"]})  # type: ignore[dict-item]
    assert (home / "home").stat().st_mode & 0o777 == 0o711
    assert (home / "home/python/site/private.py").stat().st_mode & 0o777 == 0o644
    assert (home / "home/python/site/folder").stat().st_mode & 0o777 == 0o755
    after = below(home, closed_to_users([home / "link/site"], []))
    assert (after["closed"], after["unreadable"], after["unreadable_bytes"]) == ([], [], 0)


def test_what_is_gone_is_an_error(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        open_to_users({"pass": [f"{home}/gone"]})
    assert "inspect it again" in capsys.readouterr().err
