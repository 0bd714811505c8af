"""--registry: vendors' images under their usual paths in another registry."""

from __future__ import annotations

import dataclasses

import pytest

from build.bases.mirror import repository_path, with_registry
from build.errors import UsageError
from build.matrix.model import Matrix
from tests.image_stand_ins import plan_of


def matrix_of(*vendors: str | None) -> Matrix:
    target = plan_of().target
    targets = {f"t{number}": dataclasses.replace(target, vendor=vendor) for number, vendor in enumerate(vendors)}
    return Matrix({}, targets)


def test_only_the_host_is_replaced() -> None:
    given = matrix_of("vllm/vllm-openai:v0.32.0", "harbor.example.org/a/b/c:1", None, f"localhost/x@sha256:{'a' * 64}")
    found = with_registry(given, "127.0.0.1:5000").targets.values()
    assert [target.vendor for target in found] == [
        "127.0.0.1:5000/vllm/vllm-openai:v0.32.0",
        "127.0.0.1:5000/a/b/c:1",
        None,
        f"127.0.0.1:5000/x@sha256:{'a' * 64}",
    ]
    assert with_registry(given, "") is given


def test_names_that_docker_hub_shortens_are_written_out() -> None:
    assert repository_path("debian:12") == repository_path("docker.io/debian:12") == "library/debian:12"
    assert repository_path("docker.io/vllm/vllm-openai") == "vllm/vllm-openai"


@pytest.mark.parametrize("good", ["localhost", "localhost:5000", "mirror.example.org", "[::1]:5000", "10.0.0.1:443"])
def test_registries(good: str) -> None:
    assert with_registry(matrix_of("a/b:1"), good).targets["t0"].vendor == f"{good}/a/b:1"


def test_a_password_in_an_address_is_not_repeated() -> None:
    for text in ("me:hunter2@x.org:5000", "https://me:hunter2@x.org"):
        with pytest.raises(UsageError, match="no user, password or digest") as told:
            with_registry(matrix_of("a/b:1"), text)
        assert "hunter2" not in str(told.value)


@pytest.mark.parametrize(
    "bad",
    ["https://x.org", "x.org/", "x.org/path", "mirror", "x.org:0", "x.org:99999", "x.org:", "a b:1", "-x.org", "é.org"],
)
def test_what_is_no_registry_is_a_mistake_in_use(bad: str) -> None:
    with pytest.raises(UsageError, match="--registry"):
        with_registry(matrix_of("a/b:1"), bad)
