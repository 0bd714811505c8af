"""Where nothing more can be written: told in words, with what to do, and not passed over."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from deepinfer.errors import DeepInferError
from deepinfer.loading import tiny_tokenizer
from deepinfer.loading.tiny import write_tiny

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "words", [("--help",), ("--version",), ("ask", "--help"), ("env", "--timeout", "60")], ids=lambda words: words[0]
)
def test_a_full_disk_behind_stdout_is_told(words: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "deepinfer", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, env=environment, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 4, done.stderr
    assert done.stderr == (
        "error: the output cannot be written: No space left on device\n"
        "  likely cause: the file system is full, or a quota is reached\n"
        "  next step: make room and run the same command again\n"
    )


@pytest.mark.parametrize("limit", [8_000, 1_000_000], ids=["tokenizer", "weights"])
def test_a_checkpoint_that_does_not_fit_leaves_nothing(limit: int, tmp_path: Path) -> None:
    # A limit of the process stands for the disk's: the libraries raise the system's error in the same way.
    def of_child() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "deepinfer", "tiny", str(tmp_path / "tiny")]
    done = subprocess.run(
        command, env=environment, preexec_fn=of_child, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 4 and "tiny cannot be written: File too large" in done.stderr, done.stderr
    assert "next step: make room" in done.stderr and not any(tmp_path.iterdir())


def test_other_errors_of_the_library_are_not_taken_for_the_disks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiny_tokenizer, "_TEXT", "too short")
    with pytest.raises(ValueError, match="the text has pairs for"):
        write_tiny(tmp_path / "tiny")
    with pytest.raises(DeepInferError, match="cannot be written"):
        write_tiny(Path("/proc/tiny"))
