"""`get_kv_index` (kernel_spec A.8, A.9)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.ops import using
from deepinfer.ops.case import Case
from deepinfer.ops.execution import run
from deepinfer.ops.get_kv_index import (
    get_fused_dflash_get_input,
    get_kv_ca_index_decode,
    get_kv_ca_index_prefill,
    get_kv_swa_index_decode,
)
from tests.ops.three_ways import Interpreted, agrees_in_the_interpreter, agrees_on_a_gpu, every_case, small_cases


def _row(offset: int, length: int, width: int, size: int, table: list[int] | None) -> list[int]:
    """A row of indices, as the spec words it, in Python's integers."""
    row = []
    for at in range(offset, offset + min(max(length, 0), width)):
        if table is not None:
            inside = 0 <= at // size < len(table)
            row.append(table[at // size] * size + at % size if inside else -1)
        else:
            row.append(offset // size * size + at % size if size else at)
    return row + [-1] * (width - len(row))


@small_cases("get_kv_index")
def test_reference_against_a_loop(case: Case) -> None:
    call = case.call()
    results = run(case.factory, call, "reference", "cpu").results
    if case.factory == "load_kv_index_tl":
        pairs, _, table = (one.value for one in call.arguments)
        width, size = call.parameters
        entries = None if table is None else table.tolist()
        assert results["kv_index"].tolist() == [_row(*pair, width, size, entries) for pair in pairs.tolist()]
    else:
        _check_drafts(results, call.parameters[0], int(call.arguments[-1].value))


def _check_drafts(results: Any, ring: int, window: int) -> None:
    got = {name: value.tolist() for name, value in results.items()}
    drafts = len(got["positions_out"][0])
    for request, first in enumerate(got["ftp"]):
        keys = got["kv_index_out"][request * drafts : (request + 1) * drafts]
        if not 0 <= first < len(got["positions"]):
            assert got["positions_out"][request] == [0] * drafts
            assert got["newx_slot_mapping_out"][request] == [-1] * drafts
            assert {key for row in keys for key in row} == {-1}
            continue
        last = got["positions"][first] + got["last_valid_offset"][request]
        begin = got["slot_mapping_swa"][first] - got["positions"][first] % ring
        ahead = [last + 1 + draft for draft in range(drafts)]
        assert got["positions_out"][request] == ahead
        assert got["newx_slot_mapping_out"][request] == [begin + place % ring for place in ahead]
        seen = range(last - window + 1, last + drafts + 1)
        expected = [begin + place % ring if place >= 0 else -1 for place in seen]
        assert keys == [expected + [-1] * (len(keys[0]) - len(expected))] * drafts
    assert not results["input_ids_out"].any()
    if "valid_token_mask_out" in got:
        assert [row[0] for row in got["valid_token_mask_out"]] == [0 <= x < len(got["positions"]) for x in got["ftp"]]
    if "gate_force_random_out" in got:
        assert not results["gate_force_random_out"].any()


@small_cases("get_kv_index")
def test_interpreted(case: Case, interpreted: Interpreted) -> None:
    agrees_in_the_interpreter(case, interpreted)


@pytest.mark.gpu
@every_case("get_kv_index")
def test_on_a_gpu(case: Case) -> None:
    agrees_on_a_gpu(case)


def test_published_rows() -> None:
    with using("reference"):
        table = torch.tensor([7, 3, 9], dtype=torch.int32)
        paged = get_kv_ca_index_decode(torch.tensor([[5, 4]], dtype=torch.int32), 6, 4, table)
        assert paged.tolist() == [[13, 14, 15, 36, -1, -1]]
        ring = get_kv_swa_index_decode(torch.tensor([[28, 4]], dtype=torch.int32), 5, 10)
        assert ring.tolist() == [[28, 29, 20, 21, -1]]
        assert get_kv_ca_index_prefill(torch.tensor([[5, 2]], dtype=torch.int32), 3).tolist() == [[5, 6, -1]]


def test_two_dimensional_table_is_read_flat() -> None:
    table = torch.tensor([[7, 3], [9, 4]], dtype=torch.int32)
    with using("reference"):
        found = get_kv_ca_index_decode(torch.tensor([[0, 2], [4, 3]], dtype=torch.int32), 3, 2, table)
        empty = get_kv_ca_index_decode(torch.tensor([[0, 2]], dtype=torch.int32), 3, 2, table[:0])
    assert found.tolist() == [[14, 15, -1], [18, 19, 8]]
    assert empty.tolist() == [[-1, -1, -1]]


@settings(max_examples=60)
@given(st.integers(0, 2_000_000_000), st.integers(-3, 40), st.integers(1, 33), st.sampled_from([0, 1, 3, 64, 133]))
def test_rows_of_any_offset(offset: int, length: int, width: int, size: int) -> None:
    pair = torch.tensor([[offset, length]], dtype=torch.int32)
    with using("reference"):
        got = get_kv_swa_index_decode(pair, width, size) if size else get_kv_ca_index_prefill(pair, width)
    assert got[0].tolist() == _row(offset, length, width, size, None)


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 10_000), max_size=9),
    st.integers(-9, 60),
    st.integers(-3, 40),
    st.integers(1, 33),
    st.sampled_from([1, 3, 4]),
)
def test_rows_of_any_table(table: list[int], offset: int, length: int, width: int, size: int) -> None:
    pair, entries = torch.tensor([[offset, length]], dtype=torch.int32), torch.tensor(table, dtype=torch.int32)
    with using("reference"):
        got = get_kv_ca_index_decode(pair, width, size, entries)
    assert got[0].tolist() == _row(offset, length, width, size, table)


def test_draft_interface() -> None:
    slots, positions = torch.tensor([20 + 3, 21 + 3], dtype=torch.int32), torch.tensor([3, 4], dtype=torch.int32)
    ftp, accepted = torch.tensor([0, -1], dtype=torch.int32), torch.tensor([1, 0], dtype=torch.int32)
    with using("reference"):
        made = get_fused_dflash_get_input(slots, positions, ftp, accepted, 10, 2, 4, True, True, torch.int64)
        bare = get_fused_dflash_get_input(slots, positions, ftp, accepted, 10, 2, 4)
    new_slots, places, ids, valid, random, keys = made
    assert new_slots.tolist() == [25, 26, -1, -1] and places.tolist() == [5, 6, 0, 0]
    assert ids.dtype == torch.int64 and ids.tolist() == [0] * 4
    assert valid is not None and valid.tolist() == [True, True, False, False]
    assert random is not None and random.tolist() == [False] * 4
    assert keys.shape == (4, 64) and keys[1].tolist() == [21, 22, 23, 24, 25, 26] + [-1] * 58
    assert bare[3] is None and bare[4] is None and bare[2].dtype == torch.int32


_PAIRS = torch.zeros((2, 2), dtype=torch.int32)


@pytest.mark.parametrize(
    ("function", "arguments", "error", "text"),
    [
        (get_kv_ca_index_prefill, (_PAIRS.long(), 4), TypeError, "offset_len must be int32, not int64"),
        (get_kv_ca_index_prefill, (_PAIRS, 0), ValueError, "kv_ca_index_length must be at least 1"),
        (get_kv_ca_index_decode, (_PAIRS, 4, 0, _PAIRS), ValueError, "token_per_block must be at least 1"),
        (get_kv_ca_index_decode, (_PAIRS, 4, 2, _PAIRS[:, :1]), ValueError, "block_tables must be contiguous"),
        (get_kv_ca_index_decode, (_PAIRS, 4, 2, [1]), ValueError, "block_tables must be a tensor"),
        (get_kv_swa_index_decode, (_PAIRS[:, :1], 4, 2), ValueError, r"must have the shape \[n, 2\]"),
        (get_kv_swa_index_decode, (_PAIRS, 4, 2**31), ValueError, "swa_block_size must be at least 1 and at most"),
    ],
)
def test_refused(function: Any, arguments: tuple[object, ...], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        function(*arguments)


@pytest.mark.parametrize(
    ("changed", "error", "text"),
    [
        ({"dflash_block_size": 33}, ValueError, "dflash_block_size must be at least 1 and at most 32, not 33"),
        ({"positions": torch.zeros(3, dtype=torch.int32)}, ValueError, "Q = 4"),
        ({"last_valid_offset": torch.zeros(3, dtype=torch.int32)}, ValueError, "R = 2"),
        ({"ftp": torch.zeros(2)}, TypeError, "ftp must be int32"),
        ({"input_ids_dtype": torch.float32}, ValueError, "input_ids_dtype must be one of"),
        ({"window_size": 0}, ValueError, "window_size must be at least 1"),
    ],
)
def test_draft_refused(changed: dict[str, Any], error: type[Exception], text: str) -> None:
    four, two = torch.zeros(4, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    good = {"slot_mapping_swa": four, "positions": four, "ftp": two, "last_valid_offset": two}
    sizes = {"swa_block_size": 10, "dflash_block_size": 2, "window_size": 4}
    with pytest.raises(error, match=text):
        get_fused_dflash_get_input(**{**good, **sizes, **changed})
