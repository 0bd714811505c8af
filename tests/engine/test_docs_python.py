"""What documents show of Python is what runs: their examples, in order, beside a tiny model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("page", ["engine.md", "model.md", "structured-output.md"])
def test_examples_run(
    page: str, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if page == "structured-output.md":
        pytest.importorskip("xgrammar", reason="xgrammar is absent: structured output cannot be tried")
    blocks = re.findall(r"^```python\n(.*?)^```$", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert blocks
    (tmp_path / "tiny-model").symlink_to(tiny_folder)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{page}, example {number + 1}", "exec"), names)
    assert capsys.readouterr().out


def test_every_example_of_python_is_run() -> None:
    pages = {path.name for path in DOCS.glob("*.md") if "```python" in path.read_text(encoding="utf-8")}
    assert pages == {"engine.md", "model.md", "structured-output.md"}
