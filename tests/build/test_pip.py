"""What is said of a pip that could not fetch: the cause in pip's own words, and what helps against that cause."""

from __future__ import annotations

from pathlib import Path

import pytest

from build.locks import read_lock
from build.pip import _explain

PINS = "numpy==2.4.6 --hash=sha256:" + "0" * 64 + "\n"


@pytest.mark.parametrize(
    ("said", "cause", "step"),
    [
        ("ERROR: Could not install: [Errno 28] No space left on device", "is full", "free space"),
        ("/usr/bin/python3: No module named pip", "has no pip", "ensurepip"),
        ("ERROR: Could not find a version that satisfies the requirement numpy==2.4.6", "cannot be reached", "index"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES\n numpy==2.4.6", "damaged download", "compare"),
    ],
)
def test_every_cause_has_a_step_of_its_own(tmp_path: Path, said: str, cause: str, step: str) -> None:
    (tmp_path / "x.lock").write_text(PINS)
    lock = read_lock(tmp_path / "x.lock")
    told = _explain(lock, lock.pins, f"+ pip download\n{said}\n", tmp_path / "log")
    assert cause in told.cause and step in told.next_step and told.log == tmp_path / "log"
