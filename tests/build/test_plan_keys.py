"""What the key of a component, and of an image, depends on and does not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.build.plan_ground import SEEN, SOURCES, cells, changed, plan, seen

KEY_CHANGES: dict[str, dict[str, Any]] = {
    "python": {"python_tag": "cp312"},
    "suffix": {"ext_suffix": ".cpython-313d-x86_64-linux-gnu.so"},
    "torch": {"torch": "2.11.1+cu130"},
    "another build of the same torch": {"torch_git": "ffff"},
    "cuda": {"cuda": "13.1"},
    "cuda headers": {"distributions": {"nvidia-cuda-runtime": "13.0.48"}},
    "a tool kit in the base": {"cuda_home": "/usr/local/cuda", "nvcc": "13.0.88"},
    "gcc patch level": {"gcc": "14.2.1"},
    "glibc": {"glibc": "2.42"},
}


@pytest.mark.parametrize("changes", KEY_CHANGES.values(), ids=KEY_CHANGES.keys())
def test_what_changes_a_binary_changes_its_key(changes: dict[str, Any]) -> None:
    before, after = cells(plan()), cells(plan(seen=seen(**changes)))
    for name in ("_C", "deep_gemm", "deep_ep"):
        assert before[name].key != after[name].key, name
    assert before["nccl"].key == after["nccl"].key, "an overlay is the same file everywhere"


@pytest.mark.parametrize(
    "changes",
    [
        {"base_id": "sha256:" + "b" * 64},
        {"reference": "other"},
        {"triton": "3.7.1"},
        {"distributions": {**SEEN.distributions, "numpy": "2.4.0", "nvidia-nccl-cu13": "2.29.0"}},
        {"python": "3.13.6"},
        {"environment": {"A": "b"}},
        {"site": "/elsewhere"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_cannot_change_a_binary_does_not_change_its_key(changes: dict[str, Any]) -> None:
    assert [cell.key for cell in plan(seen=seen(**changes)).cells] == [cell.key for cell in plan().cells]


def test_only_what_links_nccl_depends_on_it() -> None:
    moved = seen(nccl_loaded="/opt/nccl/lib/libnccl.so.2")
    before, after = cells(plan()), cells(plan(seen=moved))
    assert {name for name in before if before[name].key != after[name].key} == {"deep_ep"}
    newer = cells(plan(matrix=changed("nccl", version="2.33.0")))
    assert {name for name in before if before[name].key != newer[name].key} == {"nccl", "deep_ep"}


@pytest.mark.parametrize(
    ("digest", "affected"),
    [
        ("source:deep_gemm", {"deep_gemm"}),
        ("recipe:deep_ep", {"deep_ep"}),
        ("shims:deep_ep", {"deep_ep"}),
        ("source:nccl", {"nccl"}),
        ("builder", {"_C", "deep_gemm", "deep_ep"}),
        ("cuda:13.0", {"_C", "deep_gemm", "deep_ep"}),
        ("package", set()),
        ("lock:runtime", set()),
        ("lock:toolchain", set()),
        ("assembly", set()),
    ],
)
def test_each_digest_changes_its_own_cells_and_the_image(digest: str, affected: set[str]) -> None:
    matrix = changed("deep_ep", shims=("images/x/shim.h",), shims_where={"cuda": ">=13"})
    before = plan(matrix=matrix)
    after = plan(matrix=matrix, sources={**SOURCES, digest: "changed"})
    old, new = cells(before), cells(after)
    assert {name for name in old if old[name].key != new[name].key} == affected
    assert before.image_key != after.image_key


def test_the_environment_and_version_are_in_the_key() -> None:
    before = cells(plan())["deep_gemm"].key
    assert cells(plan(matrix=changed("deep_gemm", environment={"DG_FORCE_BUILD": "2"})))["deep_gemm"].key != before
    assert cells(plan(matrix=changed("deep_gemm", version="2.8.3")))["deep_gemm"].key != before
    assert cells(plan(matrix=changed("deep_gemm", title="x", memory_gib=9.0)))["deep_gemm"].key == before


def test_the_image_key_follows_the_base() -> None:
    assert plan().image_key != plan(base_kind="vendor").image_key
    assert plan().image_key != plan(seen=seen(base_id="sha256:" + "b" * 64)).image_key
    assert plan().image_key == plan().image_key


def test_headers_for_another_cuda_change_nothing() -> None:
    other = plan(sources={**SOURCES, "cuda:12.9": "c2"})
    assert other.to_json() == plan().to_json()
    with_kit = seen(cuda_home="/usr/local/cuda", nvcc="13.0.88")
    changed_lock = plan(seen=with_kit, sources={**SOURCES, "cuda:13.0": "c2"})
    assert [cell.key for cell in changed_lock.cells] == [cell.key for cell in plan(seen=with_kit).cells]
