"""Which base is taken, and the digest by which a vendor's image is recorded."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import pytest

from build.bases.resolve import resolve_base
from build.containers import Engine
from tests.image_stand_ins import plan_of

IMAGE, MANIFEST = "sha256:" + "1" * 64, "sha256:" + "2" * 64


class Holds:
    """An engine that has one image, with the digests under which registries know it."""

    def __init__(self, *digests: str) -> None:
        self.digests = list(digests)

    def image_id(self, reference: str) -> str:
        return IMAGE

    def image_config(self, reference: str) -> dict[str, Any]:
        return {"RepoDigests": self.digests}


@pytest.mark.parametrize(
    ("vendor", "digests", "recorded"),
    [
        ("vllm/vllm-openai:v1", [f"vllm/vllm-openai@{MANIFEST}"], MANIFEST),
        ("docker.io/vllm/vllm-openai:v1", [f"vllm/vllm-openai@{MANIFEST}"], MANIFEST),
        ("debian", [f"debian@{MANIFEST}"], MANIFEST),
        ("registry.example:5000/a/b", [f"registry.example:5000/a/b@{MANIFEST}"], MANIFEST),
        (f"registry.example:5000/a/b@{MANIFEST}", [f"registry.example:5000/a/b@{MANIFEST}"], MANIFEST),
        (f"vllm/vllm-openai:v1@{MANIFEST}", [f"vllm/vllm-openai@{MANIFEST}"], MANIFEST),
        ("vllm/vllm-openai:v1", [f"mirror.example/vllm/vllm-openai@{MANIFEST}"], IMAGE),
        ("vllm/vllm-openai:v1", [], IMAGE),
    ],
)
def test_a_vendors_image_is_recorded_by_the_digest_of_its_own_repository(
    vendor: str, digests: list[str], recorded: str
) -> None:
    target = dataclasses.replace(plan_of().target, vendor=vendor)
    base = resolve_base(cast(Engine, Holds(*digests)), target)
    assert (base.reference, base.image_id, base.digest) == (vendor, IMAGE, recorded)
