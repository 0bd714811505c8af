"""`apply_token_bitmask_by_step_inplace` (kernel_spec A.4)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from deepinfer.ops.case import Case
from deepinfer.ops.execution import run
from deepinfer.ops.structure_output import apply_token_bitmask_by_step_inplace
from tests.ops.three_ways import Interpreted, agrees_in_the_interpreter, agrees_on_a_gpu, every_case, small_cases


def by_definition(
    logits: list[list[float]], mask: list[list[int]], indices: list[int], ftp: list[int] | None, step: int, width: int
) -> list[list[float]]:
    """Request by request and token by token."""
    out = [list(row) for row in logits]
    for request in indices:
        if not 0 <= request < (len(mask) if ftp is None else min(len(ftp), len(mask))):
            continue
        row, end = request, len(logits)
        if ftp is not None:
            row = ftp[request] + step
            end = ftp[request + 1] if request + 1 < len(ftp) else end
        if row < end:
            for token in range(width):
                if not mask[request][token // 32] >> (token % 32) & 1:
                    out[row][token] = -float("inf")
    return out


@small_cases("structure_output")
def test_reference_against_a_loop(case: Case) -> None:
    call = case.call()
    logits, mask, indices, ftp, step = (one.value for one in call.arguments)
    starts = None if ftp is None else ftp.tolist()
    expected = by_definition(logits.tolist(), mask.tolist(), indices.tolist(), starts, step, int(call.parameters[0]))
    found = run(case.factory, call, "reference", "cpu").results["logits"]
    assert found.equal(torch.tensor(expected).reshape(found.shape))


@small_cases("structure_output")
def test_interpreted(case: Case, interpreted: Interpreted) -> None:
    agrees_in_the_interpreter(case, interpreted)


@pytest.mark.gpu
@every_case("structure_output")
def test_on_a_gpu(case: Case) -> None:
    agrees_on_a_gpu(case)


def test_every_step_of_drafts_gets_its_own_mask() -> None:
    """A request with 5 drafts beside one with none, and two padded rows behind: six steps, one row each at a time."""
    ftp = torch.tensor([0, 1], dtype=torch.int32)
    for step in range(7):
        logits = torch.zeros(9, 40)
        mask = torch.zeros(2, 2, dtype=torch.int32)
        mask[:, 0] = 1 << step
        apply_token_bitmask_by_step_inplace(logits, mask, torch.tensor([0, 1], dtype=torch.int32), ftp, step)
        touched = (logits == -float("inf")).any(1).nonzero()[:, 0].tolist()
        assert touched == sorted({1 + step} | ({0} if step == 0 else set()))
        assert (logits[1 + step] == 0).nonzero()[:, 0].tolist() == [step]


def test_columns_beyond_a_narrow_mask_stay() -> None:
    logits = torch.zeros(2, 100)
    mask = torch.zeros(2, 2, dtype=torch.int32)
    apply_token_bitmask_by_step_inplace(logits, mask, torch.tensor([1], dtype=torch.int32))
    assert (logits[0] == 0).all() and (logits[1, :64] == -float("inf")).all() and (logits[1, 64:] == 0).all()
    apply_token_bitmask_by_step_inplace(logits, mask[:, :0], torch.tensor([0], dtype=torch.int32))
    assert (logits[0] == 0).all()


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"logits": torch.zeros(3, 64).half()}, TypeError, "logits must be float32, not float16"),
        ({"bitmask": torch.zeros(3, 3, dtype=torch.int32)}, ValueError, "bitmask has 3 words a row, where 2 cover"),
        ({"bitmask": torch.zeros(3, 2)}, TypeError, "bitmask must be int32"),
        ({"bitmask": torch.zeros(2, 3, dtype=torch.int32).T}, ValueError, "last dimension of bitmask"),
        ({"indices": torch.zeros(2, dtype=torch.int64)}, TypeError, "indices must be int32, not int64"),
        ({"ftp": [0, 1]}, TypeError, "ftp must be a tensor, not list"),
        ({"step": -1}, ValueError, "step must be at least 0"),
        ({"step": 2**31}, ValueError, "step must be at least 0 and at most 2147483647"),
        ({"step": 1.0}, TypeError, "step must be an int"),
    ],
)
def test_refused(change: dict[str, Any], error: type[Exception], text: str) -> None:
    good = {
        "logits": torch.zeros(3, 64),
        "bitmask": torch.zeros(3, 2, dtype=torch.int32),
        "indices": torch.zeros(2, dtype=torch.int32),
    }
    with pytest.raises(error, match=text):
        apply_token_bitmask_by_step_inplace(**{**good, **change})
