"""`prepare_decode_metadata` (kernel_spec A.7)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from deepinfer.ops.case import Case
from deepinfer.ops.execution import run
from deepinfer.ops.prepare_decode_metadata import prepare_v4_decode_metadata
from tests.ops.three_ways import Interpreted, agrees_in_the_interpreter, agrees_on_a_gpu, every_case, small_cases


def ints(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@small_cases("prepare_decode_metadata")
def test_reference_against_a_loop(case: Case) -> None:
    call = case.call()
    results = run(case.factory, call, "reference", "cpu").results
    given = {one.name: one.value.tolist() for one in call.arguments}
    if case.factory == "copy_block_tables_tl":
        expected = {"block_tables_out": copied(given, call.parameters[1])}
    else:
        expected = prepared(given, *call.parameters[1:])
    for name, value in expected.items():
        assert results[name].tolist() == value, name


def prepared(
    given: dict[str, Any], max_num_blocks: int, window: int, ring: int, block_size: int, force: bool,
    ca: tuple[int, ...], dense: tuple[int, ...], sparse: tuple[int, ...],
) -> dict[str, Any]:  # fmt: skip
    row = 0
    table, offsets = given["block_tables_in"], given["block_tables_offsets"]
    for i, (length, cached) in enumerate(zip(given["seqlens_q"], given["seqlens_k"], strict=True)):
        state, placeholder = given["state_block_idx_in"][i], given["is_placeholder"][i]
        for position in range(cached - length, cached):
            if row == len(given["positions"]):
                return given
            visible = min(position + 1, window)
            given["positions"][row] = position
            given["valid_token_mask"][row] = not placeholder
            given["gate_force_random"][row] = force
            given["fix_routing_mask"][row] = False
            given["context_lens"][row] = position + 1
            given["kv_swa_index_offset_len"][row] = [state * ring + (position - visible + 1) % ring, visible]
            given["slot_mapping_store_swa"][row] = state * ring + position % ring
            given["query_indices"][row] = 998244353 if placeholder else i
            given["state_block_idx_out"][row] = state
            for s, ratio in enumerate(sparse):
                given["klen"][s][row] = (position + 1) // ratio
            for d, ratio in enumerate(dense):
                start = row * max_num_blocks * (block_size // ratio)
                given["kv_ca_index_offset_len"][d][row] = [start, (position + 1) // ratio]
            for c, ratio in enumerate(ca):
                entry, entries = position // ratio, block_size // ratio
                done = (position + 1) % ratio == 0
                slot = table[offsets[i] + entry // entries] * entries + entry % entries if done else -1
                given["positions_c"][c][row] = entry * ratio if done else 0
                given["slot_mapping_store_ca"][c][row] = slot
            row += 1
    return given


def copied(given: dict[str, Any], max_num_blocks: int) -> list[list[int]]:
    out: list[list[int]] = given["block_tables_out"]
    offsets = given["block_tables_offsets"]
    row = 0
    for i, length in enumerate(given["seqlens_q"]):
        table = given["block_tables_in"][offsets[i] : offsets[i + 1]][:max_num_blocks]
        for target in out[row : row + length]:
            target[: len(table)] = table
        row += length
    return out


@small_cases("prepare_decode_metadata")
def test_interpreted(case: Case, interpreted: Interpreted) -> None:
    agrees_in_the_interpreter(case, interpreted)


@pytest.mark.gpu
@every_case("prepare_decode_metadata")
def test_on_a_gpu(case: Case) -> None:
    agrees_on_a_gpu(case)


def arguments(q: int = 2, **options: Any) -> dict[str, Any]:
    """Conformance vector 18, in buffers of q rows."""

    def junk(*shape: int) -> torch.Tensor:
        return torch.full(shape, -5, dtype=torch.int32)

    rows = ("positions", "context_lens", "slot_mapping_store_swa", "query_indices", "state_block_idx_out")
    masks = ("valid_token_mask", "gate_force_random", "fix_routing_mask")
    return {
        "seqlens_q": ints([2]),
        "seqlens_k": ints([7]),
        "cu_seqlens_q": ints([2]),
        "block_tables_in": ints([7, 9, 5]),
        "block_tables_offsets": ints([0, 3]),
        "state_block_idx_in": ints([3]),
        "is_placeholder": torch.tensor([False]),
        **{name: junk(q) for name in rows},
        **{name: torch.ones(q, dtype=torch.bool) for name in masks},
        "klen": junk(1, q + 1),
        "kv_ca_index_offset_len": junk(1, q, 2),
        "kv_swa_index_offset_len": junk(q, 2),
        "block_tables_out": junk(q, 8),
        "positions_c": junk(1, q),
        "slot_mapping_store_ca": junk(1, q),
        "max_seqlen_q": 2,
        "max_num_blocks": 8,
        "window_size": 4,
        "swa_block_size": 6,
        "block_size": 4,
        "ca_ratios": (2,),
        "dense_ratios": (2,),
        "sparse_ratios": (2,),
        **options,
    }


def test_conformance_vector_18() -> None:
    given = arguments()
    prepare_v4_decode_metadata(**given)
    found = {name: value.tolist() for name, value in given.items() if isinstance(value, torch.Tensor)}
    assert found["positions"] == [5, 6] and found["context_lens"] == [6, 7]
    assert found["klen"] == [[3, 3, -5]]
    assert found["kv_ca_index_offset_len"] == [[[0, 3], [16, 3]]]
    assert found["kv_swa_index_offset_len"] == [[20, 4], [21, 4]]
    assert found["slot_mapping_store_swa"] == [23, 18]
    assert found["positions_c"] == [[4, 0]] and found["slot_mapping_store_ca"] == [[18, -1]]
    assert found["query_indices"] == [0, 0] and found["state_block_idx_out"] == [3, 3]
    assert found["valid_token_mask"] == [True] * 2 and found["gate_force_random"] == [False] * 2
    assert found["fix_routing_mask"] == [False] * 2
    assert found["block_tables_out"] == [[7, 9, 5, -5, -5, -5, -5, -5]] * 2


def test_rows_of_no_sequence_stay() -> None:
    given = arguments(q=4, is_placeholder=torch.tensor([True]))
    prepare_v4_decode_metadata(**given)
    assert given["positions"].tolist() == [5, 6, -5, -5]
    assert given["query_indices"].tolist() == [998244353, 998244353, -5, -5]
    assert given["valid_token_mask"].tolist() == [False, False, True, True]
    assert given["block_tables_out"][2:].unique().tolist() == [-5]


def test_a_table_too_short_stores_nothing() -> None:
    given = arguments(block_tables_in=ints([7]), block_tables_offsets=ints([0, 1]))
    prepare_v4_decode_metadata(**given)
    assert given["slot_mapping_store_ca"].tolist() == [[-1, -1]] and given["positions_c"].tolist() == [[0, 0]]


def test_no_ratios_leave_the_dummy_rows() -> None:
    given = arguments(ca_ratios=(), dense_ratios=(), sparse_ratios=())
    prepare_v4_decode_metadata(**given)
    for name in ("klen", "kv_ca_index_offset_len", "positions_c", "slot_mapping_store_ca"):
        assert given[name].unique().tolist() == [-5]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"window_size": 0}, ValueError, "window_size must be at least 1, not 0"),
        ({"sparse_ratios": (1,)}, ValueError, "ca_ratios must be those of dense_ratios and of sparse_ratios"),
        ({"dense_ratios": (3,)}, ValueError, "dense_ratios must divide block_size = 4, unlike 3"),
        ({"block_tables_offsets": ints([0])}, ValueError, "block_tables_offsets must have the shape"),
        ({"klen": ints([[0]])}, ValueError, "klen must have at least Q = 2 columns, not 1"),
        ({"positions_c": ints([[0, 0], [0, 0]])}, ValueError, "positions_c must have the shape"),
        ({"is_placeholder": ints([0])}, TypeError, "is_placeholder must be bool, not int32"),
        ({"kv_ca_index_offset_len": torch.zeros(1, 2, 4).int()[..., :2]}, ValueError, "must have contiguous rows"),
        (
            {"max_num_blocks": 2**30, "block_tables_out": torch.zeros(1, dtype=torch.int32).expand(2, 2**30)},
            ValueError,
            "the last dimension of block_tables_out must be contiguous",
        ),
    ],
)
def test_refused(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        prepare_v4_decode_metadata(**arguments(**options))


def test_too_many_table_entries_are_refused() -> None:
    """Offsets in units of the smallest ratio must fit int32: tables on the meta device have no memory."""
    given = arguments(max_num_blocks=2**29, block_tables_out=torch.empty(2, 2**29, dtype=torch.int32, device="meta"))
    given = {name: value.to("meta") if isinstance(value, torch.Tensor) else value for name, value in given.items()}
    with pytest.raises(ValueError, match=r"max_num_blocks is too large: 2147483648 table entries pass int32"):
        prepare_v4_decode_metadata(**given)
