"""Unpacking a wheel into a tree: its files, its commands, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest

from build.errors import BuildError, EnvironmentCannot
from build.locks import install_wheel
from tests.build.small_wheels import make_wheel

COMMANDS = {"alpha-1.0.dist-info/entry_points.txt": "[console_scripts]\nalpha = alpha:main\n"}
SCRIPT = {"alpha-1.0.data/scripts/tool": "#!python\nprint('tool')\n", "alpha-1.0.data/data/share/alpha.txt": "x\n"}


def test_a_wheel_is_unpacked_with_its_commands(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, files={**COMMANDS, **SCRIPT})
    tree = tmp_path / "tree"
    install_wheel(
        wheel, PurePosixPath("/opt/x/site"), tree, scripts=PurePosixPath("/opt/x/bin"), python="/usr/bin/python3"
    )
    assert (tree / "opt/x/site/alpha/__init__.py").read_text() == "VERSION = '1.0'\n"
    for name in ("alpha", "tool"):
        command = tree / "opt/x/bin" / name
        assert command.read_text().splitlines()[0] == "#!/usr/bin/python3"
        assert command.stat().st_mode & 0o111
    assert (tree / "opt/x/share/alpha.txt").exists()
    found = subprocess.run(
        [sys.executable, "-c", "import importlib.metadata as m; print(m.version('alpha'))"],
        env={"PYTHONPATH": str(tree / "opt/x/site")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == "1.0\n"


def test_without_a_folder_for_commands_none_is_written_nor_recorded(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, files={**COMMANDS, **SCRIPT})
    tree = tmp_path / "tree"
    install_wheel(wheel, PurePosixPath("/opt/x/site"), tree, scripts=None, python="/usr/bin/python3")
    assert not (tree / "opt/x/bin").exists()
    record = (tree / "opt/x/site/alpha-1.0.dist-info/RECORD").read_text()
    assert "bin/" not in record and "tool" not in record
    assert "alpha/__init__.py,sha256=" in record


def test_a_second_wheel_with_the_same_file_and_a_damaged_wheel_are_refused(tmp_path: Path) -> None:
    site, tree = PurePosixPath("/opt/x/site"), tmp_path / "tree"
    install_wheel(make_wheel(tmp_path), site, tree, scripts=None, python="/usr/bin/python3")
    clash = make_wheel(tmp_path, "beta", files={"alpha/__init__.py": "VERSION = 'mine'\n"})
    with pytest.raises(EnvironmentCannot, match=r"beta-1\.0"):
        install_wheel(clash, site, tree, scripts=None, python="/usr/bin/python3")
    damaged = tmp_path / "gamma-1.0-py3-none-any.whl"
    damaged.write_bytes(clash.read_bytes()[:100])
    with pytest.raises(BuildError, match="gamma"):
        install_wheel(damaged, site, tree, scripts=None, python="/usr/bin/python3")


def test_a_wheel_cannot_write_outside_its_folders(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, files={"../../../escaped.py": "x = 1\n"})
    with pytest.raises(EnvironmentCannot):
        install_wheel(wheel, PurePosixPath("/opt/x/site"), tmp_path / "tree", scripts=None, python="/usr/bin/python3")
    assert not list(tmp_path.rglob("escaped.py"))
