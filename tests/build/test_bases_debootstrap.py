"""debootstrap, which takes no path with a space, in caches that have one."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from build.bases import rootfs
from build.errors import EnvironmentCannot

STAND_IN = """#!/bin/sh
set -eu
[ "$1" = --variant=minbase ]
case "$3" in *" "*) echo "it fails as the real one does" >&2; exit 1 ;; esac
mkdir -p "$3/etc"
echo "$2 of $4" > "$3/etc/made"
"""


class NoRegistry:
    """An engine that is never asked."""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "programs"
    folder.mkdir()
    (folder / "debootstrap").write_text(STAND_IN)
    (folder / "debootstrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


@pytest.fixture
def no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    class Answer:
        digest = None

    monkeypatch.setattr(rootfs, "ask", lambda engine, reference: Answer())


@pytest.mark.skipif(os.geteuid() != 0, reason="debootstrap is started by root alone")
@pytest.mark.usefixtures("programs", "no_answer")
@pytest.mark.parametrize("name", ["plain", "with a space"])
def test_a_root_file_system_below_any_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0:
        pytest.skip("no mount points of one's own can be made here")
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / name))
    engine: Any = NoRegistry()
    made = rootfs.rootfs(engine, "bookworm")
    with tarfile.open(made) as archive:
        content = archive.extractfile("etc/made")
        assert content is not None and content.read().startswith(b"bookworm of http")
    assert made.is_relative_to(tmp_path / name) and [made] == list(made.parent.iterdir())
    assert not list(Path("/tmp").glob("deepinfer-rootfs-*"))


@pytest.mark.skipif(os.geteuid() != 0, reason="debootstrap is started by root alone")
@pytest.mark.usefixtures("no_answer")
def test_without_mount_points_of_its_own_the_space_is_told(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "a b"))
    engine: Any = NoRegistry()
    with pytest.raises(EnvironmentCannot, match="takes no path with a space") as told:
        rootfs.rootfs(engine, "bookworm")
    assert "DEEPINFER_BUILD_CACHE" in told.value.next_step
