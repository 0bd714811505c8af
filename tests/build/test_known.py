"""The last inspection of a base, kept for plans."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from build import known
from tests.image_stand_ins import base_facts


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_what_was_remembered_is_recalled_whole_by_image_and_kind(folder: Path) -> None:
    known.remember("one", "replica", base_facts())
    known.remember("one", "vendor", base_facts(torch="2.12.0"))
    assert known.recall("one", "replica") == base_facts()
    assert known.recall("one", "vendor") == base_facts(torch="2.12.0")
    assert known.recall("two", "replica") is None
    assert (folder / "CACHEDIR.TAG").is_file()


def test_the_last_one_counts_and_the_same_again_writes_nothing(folder: Path) -> None:
    known.remember("one", "replica", base_facts())
    known.remember("one", "replica", base_facts(gcc="15"))
    recalled = known.recall("one", "replica")
    assert recalled is not None and recalled.gcc == "15"
    (file,) = (folder / "inspections").iterdir()
    before = file.stat().st_ino
    known.remember("one", "replica", base_facts(gcc="15"))
    assert file.stat().st_ino == before


def test_recalling_makes_nothing(folder: Path) -> None:
    assert known.recall("one", "replica") is None
    assert not folder.exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "7",
        '{"torch": "2.0"}',
        '{"a key of another version": 1}',
        '{"nccl": [{"way": 1}]}',
        "\xff",
    ],
)
def test_what_another_version_or_a_full_disk_left_counts_as_nothing(folder: Path, text: str) -> None:
    known.remember("one", "replica", base_facts())
    (file,) = (folder / "inspections").iterdir()
    file.write_bytes(text.encode("latin-1"))
    assert known.recall("one", "replica") is None
    known.remember("one", "replica", base_facts())
    assert known.recall("one", "replica") == base_facts()


def test_a_key_too_many_counts_as_nothing(folder: Path) -> None:
    known.remember("one", "replica", base_facts())
    (file,) = (folder / "inspections").iterdir()
    file.write_text(json.dumps({**json.loads(file.read_text()), "later": "invention"}))
    assert known.recall("one", "replica") is None
