"""Which wheels of a folder of packs an interpreter takes, and how they reach the cache."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from build.errors import EnvironmentCannot
from build.setup import packs
from build.setup.lockfile import Pin
from tests.build.setup_project import pure_wheel

MINOR = sys.version_info.minor


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("a-1-py3-none-any.whl", True),
        ("a-1-py2.py3-none-any.whl", True),
        (f"a-1-cp3{MINOR}-cp3{MINOR}-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", True),
        ("a-1-cp38-abi3-manylinux_2_28_x86_64.whl", True),
        (f"a-1-cp3{MINOR + 1}-abi3-manylinux_2_28_x86_64.whl", False),
        (f"a-1-cp3{MINOR + 1}-cp3{MINOR + 1}-manylinux_2_28_x86_64.whl", False),
        ("a-1-py2-none-any.whl", False),
        (f"a-1-cp3{MINOR}-cp3{MINOR}-musllinux_1_2_x86_64.whl", False),
        (f"a-1-cp3{MINOR}-cp3{MINOR}-manylinux_2_28_aarch64.whl", False),
        (f"a-1-cp3{MINOR}-cp3{MINOR}t-manylinux_2_28_x86_64.whl", False),
        ("nonsense.whl", False),
    ],
)
def test_wheels_for_this_python(name: str, fits: bool) -> None:
    assert packs.fits(name) is fits


def _pin(wheel: Path) -> Pin:
    return Pin("one", "1", frozenset({hashlib.sha256(wheel.read_bytes()).hexdigest()}))


def test_unpacked_once_by_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "cache"))
    wheel = pure_wheel(tmp_path / "wheels", "one", "1")
    found = packs.matching_wheels(tmp_path, [_pin(wheel)])
    first = packs.unpacked(found)
    marker = first / "marker"
    marker.touch()
    assert packs.unpacked(found) == first and marker.exists()
    done = subprocess.run(
        [sys.executable, "-c", "import one; print(one.VERSION)"],
        env={"PYTHONPATH": str(first)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "1\n"
    other = packs.unpacked({"one": pure_wheel(tmp_path / "newer", "one", "2")})
    assert other != first and not list((tmp_path / "cache" / "packs").glob(".part-*"))


def test_damaged_archive_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "cache"))
    wheel = tmp_path / "one-1-py3-none-any.whl"
    wheel.write_bytes(b"not an archive")
    with pytest.raises(EnvironmentCannot, match="cannot be unpacked"):
        packs.unpacked({"one": wheel})
    assert list((tmp_path / "cache" / "packs").iterdir()) == []


def test_archive_cannot_write_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "cache"))
    wheel = tmp_path / "one-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("../../../escaped", "x")
    folder = packs.unpacked({"one": wheel})
    assert (folder / "escaped").exists() and not (tmp_path / "escaped").exists()


def test_the_command_that_fetches_can_be_typed_whatever_the_folder_is_called() -> None:
    step = packs._lacking(Path("/my packs"), [Pin("alpha", "1", frozenset())]).next_step
    assert "-d '/my packs/wheels'" in step


def test_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentCannot, match="is not a folder"):
        packs.matching_wheels(tmp_path / "absent", [])
