"""Which versions of xgrammar fit, and how `deepinfer env` tells of one that does not."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from deepinfer.environment import children, report
from deepinfer.environment.requirements import RANGES, XGRAMMAR

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "version", ["0.2.9", "0.2.10", "0.2.9.post1", "0.2.9+cu130", "0.2.99.1", "v0.2.11", "0.2.12rc1"]
)
def test_versions_that_fit(version: str) -> None:
    assert XGRAMMAR.problem(version) == ""


@pytest.mark.parametrize("version", ["0.2.8", "0.2", "0", "0.1.25", "0.2.9rc1", "0.2.9.dev3", "0.2.9a0", "0.2.8.post9"])
def test_older_versions_do_not(version: str) -> None:
    assert XGRAMMAR.problem(version) == XGRAMMAR.too_old


@pytest.mark.parametrize("version", ["0.3", "0.3.0", "0.3.0rc1", "0.10.0", "1.0", "2026.1", "1!0.2.9"])
def test_newer_versions_do_not(version: str) -> None:
    assert XGRAMMAR.problem(version) == XGRAMMAR.too_new


def test_what_is_no_version_is_told() -> None:
    assert XGRAMMAR.problem("unknown") == "'unknown' is no version" and XGRAMMAR.problem("") == "'' is no version"


def test_the_rule_is_that_of_the_engines_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["structured"] == [f"{XGRAMMAR.package}{XGRAMMAR}"]
    assert XGRAMMAR.install == "pip install 'xgrammar>=0.2.9,<0.3'" and RANGES["xgrammar"] is XGRAMMAR
    assert XGRAMMAR.install in (ROOT / "docs" / "structured-output.md").read_text()


@pytest.mark.parametrize(("version", "fits"), [("0.2.9", True), ("0.1.25", False)])
def test_the_report_tells_whether_it_fits(
    version: str, fits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "xgrammar.py").write_text(f"__version__ = {version!r}")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    row = children.examine("xgrammar", 60)
    assert row["status"] == "present" and row["version"] == version
    assert row["details"] == {"needed": ">=0.2.9,<0.3", "unfit": "" if fits else XGRAMMAR.too_old}
    others: list[dict[str, Any]] = [
        {"name": name, "status": "present", "version": "", "reason": "", "details": {"cuda": None}}
        for name in ("gpu", "torch", "toolchain")
    ]
    notices = list(report._part_notices([*others, row]))
    assert [f"xgrammar {version} is here, and >=0.2.9,<0.3 is needed" in one for one in notices] == [True] * (not fits)
    assert list(report._details(row)) == [f"{'fits' if fits else 'does not fit'}: >=0.2.9,<0.3 is needed"]
