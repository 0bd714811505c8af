"""`convert_kv_index` (kernel_spec A.9)."""

from __future__ import annotations

import pytest
import torch

from deepinfer.ops import using
from deepinfer.ops.case import Case
from deepinfer.ops.execution import run
from deepinfer.ops.flash_mla_utils import convert_kv_index
from tests.ops.three_ways import Interpreted, agrees_in_the_interpreter, agrees_on_a_gpu, every_case, small_cases


@small_cases("flash_mla_utils")
def test_reference_against_a_loop(case: Case) -> None:
    call = case.call()
    before, lengths, tables = (one.value.tolist() for one in call.arguments)
    size = call.parameters[3]
    found = run(case.factory, call, "reference", "cpu").results["topk_idxs"].tolist()
    for sequence, table in enumerate(tables):
        for step, length in enumerate(lengths[sequence]):
            expected = [
                table[x // size] * size + x % size if column < length and 0 <= x < len(table) * size else -1
                for column, x in enumerate(before[sequence][step])
            ]
            assert found[sequence][step] == expected


@small_cases("flash_mla_utils")
def test_interpreted(case: Case, interpreted: Interpreted) -> None:
    agrees_in_the_interpreter(case, interpreted)


@pytest.mark.gpu
@every_case("flash_mla_utils")
def test_on_a_gpu(case: Case) -> None:
    agrees_on_a_gpu(case)


def test_interface_writes_in_place() -> None:
    indices = torch.tensor([[[0, 5, 9, 3]]], dtype=torch.int32)
    lengths, tables = torch.tensor([[3]], dtype=torch.int32), torch.tensor([[7, 2, 4]], dtype=torch.int32)
    with using("reference"):
        convert_kv_index(indices, 4, lengths, tables)
        assert indices.tolist() == [[[28, 9, 17, -1]]]
        convert_kv_index(indices, 4, lengths, tables[:, :0])
    assert indices.tolist() == [[[-1] * 4]]


_INDICES = torch.zeros((2, 3, 4), dtype=torch.int32)
_LENGTHS = torch.zeros((2, 3), dtype=torch.int32)
_TABLES = torch.zeros((2, 5), dtype=torch.int32)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((_INDICES.long(), 4, _LENGTHS, _TABLES), TypeError, "topk_idxs must be int32, not int64"),
        ((_INDICES.transpose(0, 1), 4, _LENGTHS, _TABLES), ValueError, "topk_idxs must be contiguous"),
        ((_INDICES, 0, _LENGTHS, _TABLES), ValueError, "block_size must be at least 1"),
        ((_INDICES, 4, _LENGTHS[:, :2], _TABLES), ValueError, "s = 3"),
        ((_INDICES, 4, _LENGTHS, _TABLES[:1]), ValueError, "b = 2"),
        ((_INDICES, 4, _LENGTHS, torch.zeros((5, 2), dtype=torch.int32).T), ValueError, "block_tables must be contig"),
    ],
)
def test_refused(arguments: tuple[object, ...], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        convert_kv_index(*arguments)  # type: ignore[arg-type]
