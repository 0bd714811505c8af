"""The plan: what is cached, built or unsupported and why, with an inspection and without."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from build.matrix.model import Target
from build.plan import make_plan
from tests.build.plan_ground import MATRIX, NCCL, SEEN, SOURCES, cells, plan, seen


def test_everything_builds_on_flagtree() -> None:
    made = plan()
    assert [(cell.name, cell.status) for cell in made.cells] == [
        ("flagtree/nccl", "build"),
        ("flagtree/_C", "build"),
        ("flagtree/deep_gemm", "build"),
        ("flagtree/deep_ep", "build"),
    ]
    assert made.complete
    assert len({cell.key for cell in made.cells}) == 4
    assert all(len(cell.key) == 64 and not cell.expected for cell in made.cells)
    found = cells(made)
    assert found["nccl"].notes == ("replaces NCCL 2.28.9 in the file that torch loads",)
    assert found["deep_ep"].inputs["nccl"] == "2.32.3"
    assert found["deep_ep"].inputs["nccl_folder"] == NCCL.rpartition("/")[0]
    assert any("upstream states CUDA >= 13.1, the base has 13.0" in note for note in found["deep_ep"].notes)


def test_a_base_that_satisfies_upstream_needs_no_note() -> None:
    assert cells(plan(seen=seen(cuda="13.2")))["deep_ep"].notes == ()


def test_cached_is_asked_by_key() -> None:
    keys = {cell.component.name: cell.key for cell in plan().cells}
    made = cells(plan(cached=lambda key: key == keys["deep_ep"]))
    assert {name for name, cell in made.items() if cell.status == "cached"} == {"deep_ep"}


def test_overlays_come_first_whatever_the_order_of_the_matrix() -> None:
    target = dataclasses.replace(MATRIX.targets["flagtree"], components=("deep_ep", "_C", "nccl"))
    made = plan(matrix=dataclasses.replace(MATRIX, targets={"flagtree": target}))
    assert [cell.component.name for cell in made.cells] == ["nccl", "deep_ep", "_C"]
    assert cells(made)["deep_ep"].status == "build"


@pytest.mark.parametrize(
    ("facts", "unsupported"),
    [
        ({"gcc": None}, {
            "_C": "needs gcc >= 11, the base has no gcc",
            "deep_gemm": "needs gcc >= 13, the base has no gcc",
            "deep_ep": "needs gcc >= 13, the base has no gcc",
        }),
        ({"gcc": "12.2.0"}, {
            "deep_gemm": "needs gcc >= 13, the base has 12.2.0",
            "deep_ep": "needs gcc >= 13, the base has 12.2.0",
        }),
        ({"gcc": "14.x-weird"}, {
            name: f"needs gcc >= {least}, the base has '14.x-weird', which cannot be read as a version"
            for name, least in (("_C", 11), ("deep_gemm", 13), ("deep_ep", 13))
        }),
        ({"cuda": "12.8", "nccl_version": "2.27.3"}, {
            "nccl": "needs CUDA >= 13.0, < 14, the base has 12.8",
            "deep_gemm": "needs CUDA >= 12.9, the base has 12.8",
            "deep_ep": "needs CUDA >= 12.9, the base has 12.8; needs NCCL >= 2.32.3, the base has 2.27.3, and NCCL is "
            "not replaced there: needs CUDA >= 13.0, < 14, the base has 12.8",
        }),
        ({"torch": "2.13.0+cpu", "cuda": None, "nccl_version": None, "nccl_loaded": None}, {
            "nccl": "needs CUDA >= 13.0, < 14, the base has a torch built for the CPU only",
            "deep_gemm": "needs CUDA >= 12.9, the base has a torch built for the CPU only",
            "deep_ep": "needs CUDA >= 12.9, the base has a torch built for the CPU only; "
            "needs NCCL >= 2.32.3, the base has no NCCL",
        }),
        ({"torch": "2.8.0a0+5228986c39.nv25.5"}, {
            "_C": "needs torch >= 2.9, the base has 2.8.0a0+5228986c39.nv25.5",
            "deep_gemm": "needs torch >= 2.9, the base has 2.8.0a0+5228986c39.nv25.5",
            "deep_ep": "needs torch >= 2.9, the base has 2.8.0a0+5228986c39.nv25.5",
        }),
        ({"glibc": "2.17"}, {
            "nccl": "needs glibc >= 2.27, the base has 2.17",
            "deep_ep": "needs NCCL >= 2.32.3, the base has 2.28.9, and NCCL is not replaced there: "
            "needs glibc >= 2.27, the base has 2.17",
        }),
        ({"nccl_version": "2.33.1"}, {
            "nccl": "the base has NCCL 2.33.1: an older one, 2.32.3, is never put over it",
        }),
        ({"nccl_version": None, "nccl_loaded": None}, {
            "nccl": "the base has no NCCL to replace",
            "deep_ep": "needs NCCL >= 2.32.3, the base has no NCCL",
        }),
    ],
)  # fmt: skip
def test_unsupported_in_plain_words(facts: dict[str, Any], unsupported: dict[str, str]) -> None:
    made = plan(seen=seen(**facts))
    assert {name: cell.reason for name, cell in cells(made).items() if cell.status == "unsupported"} == unsupported
    assert all(cell.key == "" for cell in made.cells if cell.status == "unsupported")
    assert made.complete
    assert made.image_key


def test_a_base_without_torch_supports_nothing() -> None:
    made = plan(seen=seen(torch=None, torch_git=None, cuda=None, nccl_version=None, nccl_loaded=None))
    assert {cell.status for cell in made.cells} == {"unsupported"}
    assert cells(made)["_C"].reason == "needs torch >= 2.9, the base has no torch"
    assert "needs CUDA >= 12.9, the base has no torch built with it" in cells(made)["deep_gemm"].reason


def test_the_base_s_own_newer_nccl_is_used() -> None:
    found = cells(plan(seen=seen(nccl_version="2.33.1", nccl_header="2.33.1")))
    assert found["deep_ep"].status == "build"
    assert found["deep_ep"].inputs["nccl"] == "2.33.1"


def test_the_host_needs_permission_to_replace_nccl() -> None:
    allowed = cells(plan("host"))
    assert {cell.status for cell in allowed.values()} == {"build"}
    refused = cells(plan("host", replace_nccl=False))
    assert refused["nccl"].status == refused["deep_ep"].status == "unsupported"
    assert "putting 2.32.3 in its place needs --replace-nccl" in refused["nccl"].reason
    why = refused["deep_ep"].reason
    assert why.startswith("needs NCCL >= 2.32.3, this machine has 2.28.9")
    assert "a second file of the same soname does not help: torch loads its own by path" in why
    assert refused["deep_gemm"].key == allowed["deep_gemm"].key
    assert refused["_C"].status == "build"


def test_an_image_needs_no_permission() -> None:
    assert plan(replace_nccl=False).to_json() == plan().to_json()


def test_a_host_whose_nccl_was_replaced_needs_no_permission_and_keeps_its_keys() -> None:
    after = seen(nccl_version="2.32.3", nccl_header="2.32.3")
    found = cells(plan("host", seen=after, replace_nccl=False))
    assert found["nccl"].status == "build"
    assert found["nccl"].notes == ("this machine has NCCL 2.32.3 already: nothing changes",)
    assert found["deep_ep"].key == cells(plan("host"))["deep_ep"].key


def test_a_base_without_any_python() -> None:
    empty = dict.fromkeys(("python", "python_tag", "ext_suffix", "executable", "site"), "")
    made = plan(seen=seen(**empty, torch=None, cuda=None, nccl_version=None, nccl_loaded=None, gcc=None, glibc=None))
    assert {cell.status for cell in made.cells} == {"unsupported"}
    assert "needs Python >= 3.11, the base has no Python" in cells(made)["_C"].reason


def test_a_selection_keeps_keys_and_brings_what_is_needed() -> None:
    whole, part = plan(), plan(components="deep_ep")
    assert [cell.component.name for cell in part.cells] == ["nccl", "deep_ep"]
    assert not part.complete
    assert whole.image_key != part.image_key
    assert all(cells(whole)[name].key == cell.key for name, cell in cells(part).items())
    assert [cell.component.name for cell in plan(components="deep_gemm").cells] == ["deep_gemm"]


def test_without_an_inspection_cells_are_expected_and_have_no_key() -> None:
    asked: list[str] = []
    made = plan(seen=None, cached=lambda key: bool(asked.append(key)))
    assert all(cell.expected and cell.key == "" and cell.status == "build" for cell in made.cells)
    assert all("once the base was inspected" in cell.reason for cell in made.cells)
    assert asked == []
    assert made.image_key == ""
    assert made.facts["python"] == "3.13"
    assert plan(seen=None, base_kind="vendor").facts["python"] == "3.12"


def test_expected_facts_rule_out_what_the_base_cannot_have() -> None:
    found = cells(plan("cpu", seen=None))
    assert found["_C"].status == "build"
    assert found["deep_gemm"].status == found["deep_ep"].status == "unsupported"
    assert "needs gcc >= 13, the base has 12.2" in found["deep_gemm"].reason


def test_nothing_is_ruled_out_on_a_host_that_was_not_inspected() -> None:
    made = plan("host", seen=None, replace_nccl=False)
    assert {cell.status for cell in made.cells} == {"build"}
    assert all(cell.expected for cell in made.cells)


def test_json_is_stable_and_plain() -> None:
    made = plan().to_json()
    assert json.loads(json.dumps(made)) == made
    assert made["complete"] is True
    assert made["expected"] is False
    assert made["cells"][0]["cell"] == "flagtree/nccl"
    assert list(made["cells"][0]["inputs"]) == sorted(made["cells"][0]["inputs"])


def test_the_inputs_stay_readable() -> None:
    target: Target = MATRIX.targets["flagtree"]
    inputs = cells(plan())["deep_gemm"].inputs
    assert inputs["cuda_headers"] == "builder==c1 nvidia-cuda-runtime==13.0.96"
    assert inputs["torch"] == "2.11.0+cu130"
    assert "base" not in inputs
    assert plan().image_inputs["base"] == SEEN.base_id
    assert target.toolchain is not None
    assert target.toolchain.prefix in plan().image_inputs["toolchain"]


def test_what_expect_leaves_out_is_neither_there_nor_missing() -> None:
    target = dataclasses.replace(MATRIX.targets["flagtree"], expect={"torch": "2.11.0+cu130", "cuda": "13.0"})
    made = make_plan(
        MATRIX,
        target,
        target.components,
        inspection=None,
        base_kind="vendor",
        sources=SOURCES,
        cached=lambda key: False,
    )
    extension = cells(made)["_C"]
    assert (extension.status, extension.undecided) == ("build", True)
    note = "needs gcc >= 11; Python >= 3.11: not stated in expect, the inspection decides"
    assert note in extension.notes
    (shown,) = [cell for cell in made.to_json()["cells"] if cell["cell"] == "flagtree/_C"]
    assert (shown["inputs"]["torch"], shown["inputs"]["gcc"]) == ("2.11.0+cu130", None)
    assert not cells(plan(seen=SEEN))["_C"].undecided
    # A torch that is stated without a CUDA is known to have none.
    bare = dataclasses.replace(target, expect={"torch": "2.13.0"})
    made = make_plan(
        MATRIX, bare, target.components, inspection=None, base_kind="vendor", sources=SOURCES, cached=lambda key: False
    )
    assert "a torch built for the CPU only" in cells(made)["deep_gemm"].reason
