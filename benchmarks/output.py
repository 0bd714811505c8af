"""The folder of a benchmark's results: results.json and table.md."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deepinfer.errors import unwritable


def make_folder(out: Path) -> None:
    """
    Raises:
        UsageError, DeepInferError: the folder cannot be made.
    """
    with _told(f"{out} cannot be made"):
        out.mkdir(parents=True, exist_ok=True)


def write(found: Mapping[str, Any], table: str, out: Path) -> None:
    """The document and its table, each in one step.

    Raises:
        UsageError, DeepInferError: the folder cannot be written.
    """
    for name, text in (("results.json", json.dumps(found, indent=1) + "\n"), ("table.md", table)):
        aside = out / f".{name}"
        with _told(f"{out / name} cannot be written"):
            aside.write_text(text, encoding="utf-8")
            aside.replace(out / name)


@contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise unwritable(what, problem) from problem
