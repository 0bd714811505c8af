"""The context-parallel index kernels (kernel_spec A.18)."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.ops import dispatch
from deepinfer.ops.case import Case
from deepinfer.ops.cases.prepare_cp_mirror import boundary_call, kept_rows, mirror_call
from deepinfer.ops.execution import run
from deepinfer.ops.prepare_cp_mirror import prepare_cp_mirror, yoco_cp_boundary_fused
from tests.ops.three_ways import Interpreted, agrees_in_the_interpreter, agrees_on_a_gpu, every_case, small_cases

FAMILY = "prepare_cp_mirror"


@small_cases(FAMILY)
def test_interpreted(case: Case, interpreted: Interpreted) -> None:
    agrees_in_the_interpreter(case, interpreted)


@pytest.mark.gpu
@every_case(FAMILY)
def test_on_a_gpu(case: Case) -> None:
    agrees_on_a_gpu(case)


def starts(*lengths: int) -> torch.Tensor:
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)


def test_published_vector() -> None:
    """cp 2, rank 1, 5 new tokens of a context of 7, ratio 2 (kernel_spec, conformance vector 20)."""
    with dispatch.using("reference"):
        reverse, index, ks, ke = prepare_cp_mirror(starts(5), starts(7), 2, 1, (2,), 5, 4)
    assert reverse.tolist() == [0, 1, 4, 5, 6]
    assert index.tolist() == [2, 3, 4, -1]
    assert ks.tolist() == [[0, 0, 0, 0]] and ke.tolist() == [[2, 3, 3, 0]]


def mirror(lengths: list[int], cp: int, rank: int) -> list[tuple[int, int] | None]:
    """A rank's mirror rows: (sequence, token of it), None for padding."""
    rows: list[tuple[int, int] | None] = []
    for sequence, sq in enumerate(lengths):
        ps = -(-sq // (2 * cp))
        for block in (rank, 2 * cp - 1 - rank):
            rows += [(sequence, u) if u < sq else None for u in range(block * ps, (block + 1) * ps)]
    return rows


LENGTHS = st.lists(st.integers(0, 20), min_size=1, max_size=6)


@settings(max_examples=25)
@given(LENGTHS, st.sampled_from([(1, 0), (2, 1), (4, 2), (8, 5)]), st.sampled_from([(1,), (2,), (1, 2)]))
def test_mirror_against_lists(lengths: list[int], ranks: tuple[int, int], ratios: tuple[int, ...]) -> None:
    cp, rank = ranks
    call = mirror_call(torch.Generator().manual_seed(1), q=lengths, cp=cp, rank=rank, ratios=ratios)
    got = run("prepare_cp_mirror_tl", call, "reference", "cpu").results
    context = got["cu_seqlens_k"].diff().tolist()
    begin = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    rows = mirror(lengths, cp, rank)
    assert got["mirror_cp_index"].tolist() == [-1 if row is None else begin[row[0]] + row[1] for row in rows]
    everyone = [row for k in range(cp) for row in mirror(lengths, cp, k)]
    places = got["mirror_cp_reverse_index"].tolist()
    assert [everyone[place] for place in places] == [(i, u) for i, sq in enumerate(lengths) for u in range(sq)]
    for which, ratio in enumerate(ratios):
        compressed = [0]
        for sk in context:
            compressed.append(compressed[-1] + max(1, sk // ratio))
        for at, row in enumerate(rows):
            if row is not None:
                i, u = row
                seen = (context[i] - lengths[i] + u + 1) // ratio
                assert got["ks_out"][which, at] == compressed[i]
                assert got["ke_out"][which, at] == compressed[i] + seen
            else:
                assert got["ks_out"][which, at] == got["ke_out"][which, at]


@settings(max_examples=25)
@given(LENGTHS, st.sampled_from([1, 2, 4]), st.integers(0, 12))
def test_boundary_against_lists(lengths: list[int], cp: int, keep: int) -> None:
    keeps = [min(sq, keep + at) for at, sq in enumerate(lengths)]
    padded = max(kept_rows(lengths, keeps, cp))
    gathered: list[tuple[int, int] | None] = []
    for rank in range(cp):
        call = boundary_call(torch.Generator(), lengths=lengths, keeps=keeps, cp=cp, rank=rank)
        got = run("yoco_cp_boundary_fused_tl", call, "reference", "cpu").results
        rows = mirror(lengths, cp, rank)
        kept = [at for at, row in enumerate(rows) if row is not None and row[1] >= lengths[row[0]] - keeps[row[0]]]
        assert got["yoco_contrib_index"].tolist() == kept + [-1] * (padded - len(kept))
        gathered += [rows[at] for at in kept] + [None] * (padded - len(kept))
    places = got["yoco_gathered_reverse_index"].tolist()
    wanted = [(i, u) for i, sq in enumerate(lengths) for u in range(sq - keeps[i], sq)]
    assert [gathered[place] for place in places] == wanted


def test_boundary_interface() -> None:
    """5 tokens over 2 ranks: rank 1 owns the blocks of tokens 2, 3 and 4; the last 3 are kept."""
    with dispatch.using("reference"):
        contributed, reverse = yoco_cp_boundary_fused(starts(5), starts(3), 2, 1, 3, 3)
    assert contributed.tolist() == [0, 1, 2] and reverse.tolist() == [3, 4, 5]


ONE = starts(3)


@pytest.mark.parametrize(
    ("function", "arguments", "error", "text"),
    [
        (prepare_cp_mirror, (ONE.long(), ONE, 1, 0, (1,), 3, 4), TypeError, "cu_seqlens_q must be int32"),
        (prepare_cp_mirror, (ONE, starts(1, 2), 1, 0, (1,), 3, 4), ValueError, "cu_seqlens_k has the shape"),
        (prepare_cp_mirror, (ONE, ONE, 2, 2, (1,), 3, 4), ValueError, "cp_rank must be at least 0 and at most 1"),
        (prepare_cp_mirror, (ONE, ONE, 0, 0, (1,), 3, 4), ValueError, "cp_size must be at least 1"),
        (prepare_cp_mirror, (ONE, ONE, 1, 0, (), 3, 4), ValueError, "compress_ratios must not be empty"),
        (prepare_cp_mirror, (ONE, ONE, 1, 0, (0,), 3, 4), ValueError, "compress_ratios must be at least 1"),
        (prepare_cp_mirror, (ONE[:0], ONE[:0], 1, 0, (1,), 0, 0), ValueError, "cu_seqlens_q must have 1 to"),
        (prepare_cp_mirror, (ONE, ONE, 1, 0, (1,), -1, 0), ValueError, "total_q must be at least 0"),
        (yoco_cp_boundary_fused, (ONE, [0, 3], 1, 0, 3, 3), TypeError, "cu_seqlens_q_c must be a tensor"),
        (yoco_cp_boundary_fused, (ONE, ONE, 1, 0, 3, -3), ValueError, "contrib_pad_len must be at least 0"),
    ],
)
def test_refused(function, arguments: tuple[object, ...], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        function(*arguments)
