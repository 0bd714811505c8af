"""`check`: an image is held against the very base that it was made from, whatever bears its name now."""

from __future__ import annotations

from typing import Any

import pytest

from build import pipeline
from build.containers import LABEL
from build.errors import EnvironmentCannot
from build.matrix.load import load_matrix

NAME = "org.opencontainers.image.base.name"
IMAGE, BASE, OTHER = ("sha256:" + digit * 64 for digit in "123")


class Holds:
    """An engine that has deepinfer:cpu and these other images, by name and id."""

    def __init__(self, labels: dict[str, str], **images: str) -> None:
        self._labels = labels
        self.images = {"deepinfer:cpu": IMAGE, **images, **{one: one for one in images.values()}}

    def image_id(self, reference: str) -> str | None:
        return self.images.get(reference)

    def labels(self, reference: str) -> dict[str, str]:
        return self._labels


def check(monkeypatch: pytest.MonkeyPatch, engine: Holds) -> list[Any]:
    """What was looked into as the base."""
    asked: list[Any] = []

    def look(engine: Any, reference: str) -> Any:
        asked.append(reference)
        raise EnvironmentCannot("far enough")

    monkeypatch.setattr(pipeline.Engine, "connect", lambda: engine)
    monkeypatch.setattr(pipeline, "inspect_base", look)
    matrix = load_matrix()
    with pytest.raises(EnvironmentCannot) as ended:
        pipeline.check_image(matrix, matrix.targets["cpu"], gpus=0)
    return asked or [ended.value.what]


def test_the_base_is_known_by_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = {NAME: "base:1", f"{LABEL}.base.id": BASE}
    assert check(monkeypatch, Holds(labels, **{"base:1": BASE})) == [BASE]
    assert check(monkeypatch, Holds(labels, **{"base:1": OTHER, "base:old": BASE})) == [BASE]


def test_a_base_that_went_is_told_though_another_bears_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = {NAME: "base:1", f"{LABEL}.base.id": BASE}
    (told,) = check(monkeypatch, Holds(labels, **{"base:1": OTHER}))
    assert told == "deepinfer:cpu cannot be checked: its base base:1 is not here any more"
    (told,) = check(monkeypatch, Holds({}))
    assert "no label of it names its base" in told
