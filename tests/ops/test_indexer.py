"""The index logits (model_spec 3.5, 3.6)."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from deepinfer.ops import using
from deepinfer.ops.candidate_blocks import get_candidate_compact_lens, restore_candidate_indices_inplace
from deepinfer.ops.case import Case
from deepinfer.ops.cases.indexer import codes
from deepinfer.ops.formats import FP4_INDEX_KV_FORMAT, alloc_kv_cache, split_kv_cache
from deepinfer.ops.indexer import (
    candidate_index_logits,
    index_logits,
    paged_candidate_index_logits,
    paged_index_logits,
)
from deepinfer.ops.reference.quantize import dequantize
from deepinfer.reference import attention
from deepinfer.reference.precision import Precision
from tests.ops.index_bits import problems
from tests.ops.three_ways import Interpreted, agrees_in_the_interpreter, agrees_on_a_gpu, every_case, small_cases


@small_cases("indexer")
def test_interpreted(case: Case, interpreted: Interpreted) -> None:
    agrees_in_the_interpreter(case, interpreted)


@pytest.mark.gpu
@every_case("indexer")
def test_on_a_gpu(case: Case) -> None:
    agrees_on_a_gpu(case)


def _int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


GENERATOR = torch.Generator().manual_seed(4)
Q, Q_SCALES = codes(GENERATOR, 3, 5)
WEIGHTS = torch.randn(3, 5, generator=GENERATOR).bfloat16()
KEYS, KEY_SCALES = codes(GENERATOR, 40)
LENGTHS = _int32(17, 40, 0)
QUERIES = (Q, Q_SCALES, WEIGHTS)


def _oracle(start: int = 0) -> torch.Tensor:
    q, keys = dequantize(Q, Q_SCALES).double(), dequantize(KEYS[start:], KEY_SCALES[start:]).double()
    return attention.index_logits(Precision(), q, WEIGHTS.double(), keys).float()


def _masked(logits: torch.Tensor) -> torch.Tensor:
    return logits.masked_fill(torch.arange(logits.shape[1]) >= LENGTHS[:, None], -torch.inf)


def _paged() -> tuple[torch.Tensor, torch.Tensor]:
    """KEYS in blocks of 16 in the order 4, 0, 2 for rows 0 and 2, and 1, 3, 5 for row 1."""
    cache = alloc_kv_cache(FP4_INDEX_KV_FORMAT, 6, 16)
    cache.zero_()
    parts = split_kv_cache(cache, FP4_INDEX_KV_FORMAT)
    assert parts.quantized_data is not None and parts.sf_data is not None
    tables = torch.stack([_int32(4, 0, 2), _int32(1, 3, 5), _int32(4, 0, 2)])
    for row in tables[:2].tolist():
        for place, block in enumerate(row):
            part = slice(16 * place, min(16 * place + 16, 40))
            parts.quantized_data[block, : part.stop - part.start] = KEYS[part]
            parts.sf_data[block, : part.stop - part.start] = KEY_SCALES[part]
    return cache, tables


def test_a_logit_by_hand() -> None:
    q = torch.zeros(1, 2, 64, dtype=torch.int8)
    keys = torch.zeros(2, 64, dtype=torch.int8)
    q[0, 0, 0], q[0, 1, 63] = 0x42, -0x60 + 0x100 - 0x100  # columns 0, 1 = 1, 2; columns 126, 127 = 0, -1
    keys[0, 0], keys[0, 63], keys[1, 63] = 0x15, 0x10, 0x20 - 0x80  # 3, 0.5; 0, 0.5; 0, -1
    scales = torch.full((1, 2, 4), 127, dtype=torch.uint8)
    scales[0, 1, 3] = 129
    weights = torch.tensor([[-2.0, 0.5]]).bfloat16()
    with using("reference"):
        found = index_logits(
            q, scales, weights, keys, torch.full((2, 4), 128, dtype=torch.uint8), _int32(0), _int32(2), 3
        )
    # Key 0: -2 * 2 * (3 + 1), and the second head's product is negative. Key 1: 0.5 * (-4) * (-2).
    assert found.tolist() == [[-16.0, 4.0, -torch.inf]]


def test_reference_against_the_oracle() -> None:
    with using("reference"):
        found = index_logits(*QUERIES, KEYS, KEY_SCALES, _int32(0, 0, 0), LENGTHS, 40)
        shifted = index_logits(*QUERIES, KEYS, KEY_SCALES, _int32(7, 7, 7), _int32(33, 40, 2), 40)
    assert found.equal(_masked(_oracle()))
    assert shifted[:2, :33].equal(_oracle(7)[:2]) and shifted[2, :2].equal(_oracle(7)[2, :2])
    assert shifted[:, 33:].isneginf().all() and shifted[2, 2:].isneginf().all()


def test_pages_hold_the_same_keys() -> None:
    cache, tables = _paged()
    with using("reference"):
        found = paged_index_logits(*QUERIES, cache, tables, LENGTHS, 60)
        tables[1, 1], tables[0, 0] = 6, -2
        torn = paged_index_logits(*QUERIES, cache, tables, LENGTHS, 40)
    assert found[:, :40].equal(_masked(_oracle())) and found[:, 40:].isneginf().all()
    assert torn[1, 16:32].isneginf().all() and torn[0, :16].isneginf().all()
    assert torn[1, :16].equal(found[1, :16]) and torn[0, 16:17].equal(found[0, 16:17])


@pytest.mark.parametrize("paged", [False, True], ids=["plain", "paged"])
def test_candidates_in_compact_order(paged: bool) -> None:
    blocks = torch.stack([_int32(0, 1, 2, -1), _int32(1, 3, 4, -1), _int32(-1, -1, -1, -1)])
    whole = _masked(_oracle())
    with using("reference"):
        if paged:
            found = paged_candidate_index_logits(*QUERIES, *_paged(), blocks, 8, LENGTHS)
        else:
            found = candidate_index_logits(*QUERIES, KEYS, KEY_SCALES, _int32(0, 0, 0), blocks, 8, LENGTHS)
        wide = torch.full((3, 8), -1, dtype=torch.int32)
        wide[:, :4] = blocks
        lengths = get_candidate_compact_lens(wide, LENGTHS, 8)
        assert found.isfinite().sum(-1).tolist() == lengths.tolist() == [17, 24, 0]
        columns = torch.arange(32, dtype=torch.int32).repeat(3, 1)
        columns[torch.arange(32) >= lengths[:, None]] = -1
        restore_candidate_indices_inplace(columns, wide, 8)
    for row in range(3):
        for column, entry in enumerate(columns[row].tolist()):
            assert found[row, column] == (-torch.inf if entry < 0 else whole[row, entry])


def test_every_way_gives_the_same_bits() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.ops.index_bits"],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout) == []


@pytest.mark.gpu
@pytest.mark.parametrize("heads", [5, 32])
def test_every_way_gives_the_same_bits_on_a_gpu(heads: int) -> None:
    assert problems("cuda", 21, 9, 128, heads) == []


CACHE, TABLES, STARTS = torch.zeros(2, 16, 1, 68, dtype=torch.uint8), _int32(0, 0, 0)[:, None], _int32(0, 0, 0)
PLAIN = {"q": Q, "q_scales": Q_SCALES, "weights": WEIGHTS, "keys": KEYS, "key_scales": KEY_SCALES, "starts": STARTS,
         "lengths": LENGTHS, "width": 40}  # fmt: skip
PAGED = {"q": Q, "q_scales": Q_SCALES, "weights": WEIGHTS, "cache": CACHE, "block_tables": TABLES, "lengths": LENGTHS,
         "width": 40}  # fmt: skip
BLOCKS = {key: value for key, value in PLAIN.items() if key != "width"} | {"blocks": TABLES, "block_size": 8}
BOTH = {key: value for key, value in PAGED.items() if key != "width"} | {"blocks": TABLES, "block_size": 8}


@pytest.mark.parametrize(
    ("function", "given", "changed", "error", "text"),
    [
        (index_logits, PLAIN, {"q": Q.view(torch.uint8)}, TypeError, "index_logits: q must be int8"),
        (index_logits, PLAIN, {"q": Q[..., :32]}, ValueError, "q must have the shape"),
        (index_logits, PLAIN, {"q_scales": Q_SCALES[:, :4]}, ValueError, "q_scales has the shape"),
        (index_logits, PLAIN, {"weights": WEIGHTS.float()}, TypeError, "weights must be bfloat16"),
        (index_logits, PLAIN, {"keys": KEYS[::2]}, ValueError, "keys must be contiguous"),
        (index_logits, PLAIN, {"key_scales": KEY_SCALES[:9]}, ValueError, "key_scales has the shape"),
        (index_logits, PLAIN, {"starts": STARTS.long()}, TypeError, "starts must be int32"),
        (index_logits, PLAIN, {"lengths": LENGTHS.to("meta")}, ValueError, "all must be on one device"),
        (index_logits, PLAIN, {"width": -1}, ValueError, "width must be at least 0"),
        (index_logits, PLAIN, {"width": 2**22 + 1}, ValueError, "and at most 4194304"),
        (index_logits, PLAIN, {"q": torch.zeros(3, 65, 64, dtype=torch.int8), "weights": torch.zeros(3, 65).bfloat16(),
                               "q_scales": torch.zeros(3, 65, 4, dtype=torch.uint8)}, ValueError, "1 to 64 heads"),
        (paged_index_logits, PAGED, {"cache": CACHE[..., :64]}, ValueError, "cache must have the shape"),
        (paged_index_logits, PAGED, {"cache": CACHE[:, ::2]}, ValueError, "tokens must be dense"),
        (paged_index_logits, PAGED, {"cache": CACHE[:, :0]}, ValueError, "at least one entry a block"),
        (paged_index_logits, PAGED, {"block_tables": TABLES[:2]}, ValueError, "block_tables has the shape"),
        (candidate_index_logits, BLOCKS, {"block_size": 4}, ValueError, "block_size must be one of 8, 16, not 4"),
        (candidate_index_logits, BLOCKS, {"blocks": TABLES.long()}, TypeError, "blocks must be int32"),
        (paged_candidate_index_logits, BOTH, {"blocks": TABLES[:1]}, ValueError, "blocks has the shape"),
        (paged_candidate_index_logits, BOTH, {"cache": CACHE.view(torch.int8)}, TypeError, "cache must be uint8"),
    ],
)  # fmt: skip
def test_refused(function, given: dict, changed: dict, error: type[Exception], text: str) -> None:
    function(**given)
    with pytest.raises(error, match=text):
        function(**(given | changed))
