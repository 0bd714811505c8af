"""What a forward is given: rows, n-grams, and the plan of a prefill (model_spec 3.7, 3.8, 3.10)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.config import parse_config
from deepinfer.loading.tiny import tiny_config
from deepinfer.model.batch import Batch, RowSpec, Vocabulary
from deepinfer.model.block_tables import BlockTables, tables_of
from deepinfer.model.prefill_plan import Plan, Rows, plan
from deepinfer.model.transfer import to_device
from deepinfer.ops.swa_index import expand_swa_index
from deepinfer.reference.engram import ngrams

WINDOW, RING = 32, 38


def vocabulary(table: list[int], length: int = 4) -> Vocabulary:
    engram = parse_config(tiny_config()).engram
    assert engram is not None and engram.max_ngram == length
    return Vocabulary.of(torch.tensor(table), engram)


def of(rows: list[RowSpec], *, decode: bool = False) -> Batch:
    return Batch.of(rows, decode=decode, vocabulary=None)


def planned(rows: list[RowSpec], keep: int | None = None, *, compact: bool = False) -> Plan:
    return plan(of(rows), ratios=(1, 2), window=WINDOW, ring_rows=RING, keep_tokens=keep, compact=compact)


def test_rows_are_packed_by_sequence() -> None:
    batch = of([RowSpec([5, 6, 7], 1, 2, 4, [9]), RowSpec([8] * 130, 129, 1, 2, [3, 7, 1], wanted="none")])
    assert batch.token_ids.tolist() == [6, 7, 8] and batch.positions.tolist() == [1, 2, 129]
    assert batch.sequences.tolist() == [0, 0, 1] and batch.slots.tolist() == [4, 2]
    assert batch.block_tables.tolist() == [[9, -1], [3, 7]]
    assert batch.query_lens.tolist() == [2, 1] and batch.key_lens.tolist() == [3, 130]
    assert batch.row_ends.tolist() == [2, 3] and batch.wanted.tolist() == [1]
    assert batch.wanted.dtype == torch.int64 and batch.ngrams.shape == (3, 0) and len(batch) == 3
    assert of([RowSpec([1, 2, 3], 0, 3, 1, [1], wanted="all")]).wanted.tolist() == [0, 1, 2]


def test_rows_that_cannot_be_are_refused() -> None:
    for start, count in ((0, 0), (-1, 2), (2, 2)):
        with pytest.raises(ValueError, match="tokens that are known"):
            RowSpec([1, 2, 3], start, count, 1, [1])
    with pytest.raises(ValueError, match="2 are needed"):
        RowSpec([1] * 129, 0, 129, 1, [1])
    with pytest.raises(ValueError, match="wanted"):
        RowSpec([1], 0, 1, 1, [1], wanted="some")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one"):
        of([])
    with pytest.raises(ValueError, match="differ in their state slots"):
        of([RowSpec([1], 0, 1, 3, [1]), RowSpec([1], 0, 1, 3, [2])])
    with pytest.raises(ValueError, match="at least one, not 0"):
        RowSpec([1] * 4, 0, 4, 1, [1], total=0)
    padded = of([RowSpec([1], 0, 1, slot, [0]) for slot in (0, 5, 0)], decode=True)
    assert padded.padding.tolist() == [True, False, True]
    assert of([RowSpec([1] * 4, 3, 1, 1, [1], total=3)], decode=True).totals == (4,)


TABLE = [3, 1, 0, 2, 2, 4, 5, 6, 1]
spans = st.lists(
    st.tuples(st.lists(st.integers(-1, 12), min_size=1, max_size=9), st.integers(0, 8), st.integers(1, 9)),
    min_size=1,
    max_size=5,
)


def one_by_one(row: RowSpec, length: int) -> list[list[int]]:
    """The n-grams of a sequence's rows, token by token as the contract says."""
    found = []
    for position in range(row.start, row.start + row.count):
        gram: list[int] = []
        for before in range(length):
            token = row.token_ids[position - before] if before <= position else -1
            known = 0 <= token < len(TABLE) and len(gram) == before
            if known:
                gram.append(TABLE[token])
        found.append(gram + [TABLE[2]] * (length - len(gram)))
    return found


@settings(max_examples=150)
@given(spans=spans, length=st.integers(1, 5))
def test_ngrams_of_all_rows_are_those_of_each_token(spans: list[tuple[list[int], int, int]], length: int) -> None:
    rows = []
    for slot, (ids, cut, most) in enumerate(spans, 1):
        start = min(cut, len(ids) - 1)
        rows.append(RowSpec(ids, start, min(most, len(ids) - start), slot, [1]))
    own = Vocabulary(np.array(TABLE, dtype=np.int32), length, TABLE[2])
    batch = Batch.of(rows, decode=False, vocabulary=own)
    assert batch.ngrams.dtype == torch.int32
    assert batch.ngrams.tolist() == [gram for row in rows for gram in one_by_one(row, length)]
    places = [(row, at) for row in rows for at in range(row.start, row.start + row.count)]
    assert batch.token_ids.tolist() == [row.token_ids[at] for row, at in places]
    assert batch.positions.tolist() == [at for _, at in places]


@settings(max_examples=60)
@given(ids=st.lists(st.integers(-1, 12), min_size=1, max_size=9), cut=st.integers(0, 8))
def test_ngrams_are_the_oracles_wherever_rows_begin(ids: list[int], cut: int) -> None:
    start = min(cut, len(ids) - 1)
    rows = [RowSpec(ids, start, len(ids) - start, 1, [1])]
    found = Batch.of(rows, decode=False, vocabulary=vocabulary(TABLE)).ngrams
    expected = ngrams(torch.tensor(ids), torch.tensor(TABLE), 4, TABLE[2])
    assert found.tolist() == expected[start:].tolist()


def test_kept_block_tables_are_those_made_anew() -> None:
    """A list that grows, one that another takes the place of, shorter ones, more slots and columns than before."""
    kept, long, other = BlockTables(), list(range(1, 6)), [7]

    def both(*held: tuple[int, Sequence[int]], columns: int) -> list[list[int]]:
        rows = [RowSpec([0], 0, 1, slot, blocks) for slot, blocks in held]
        found = kept.of(rows, columns)
        assert found.dtype == np.int32 and found.tolist() == tables_of(rows, columns).tolist()
        found.fill(99)  # a copy
        return tables_of(rows, columns).tolist()

    assert both((3, long), (1, other), columns=2) == [[1, 2], [7, -1]]
    other += [8, 9]
    assert both((1, other), (3, long), columns=6)[0] == [7, 8, 9, -1, -1, -1]
    assert both((3, [4]), columns=6) == [[4, -1, -1, -1, -1, -1]]
    assert both((3, long), (40, range(20)), columns=20)[1] == list(range(20))
    del long[2:]  # nothing that an engine does
    both((3, long), columns=5)
    assert both((0, [0]), (3, long), (0, [0, 6]), columns=3) == [[0, -1, -1], [1, 2, -1], [0, 6, -1]]
    both((0, [0]), columns=3)


def test_arrays_travel_together_and_keep_their_types() -> None:
    arrays = {
        "a": np.arange(5, dtype=np.int32),
        "b": np.array([True, False]),
        "c": np.zeros((0, 4), dtype=np.int32),
        "d": np.arange(6, dtype=np.int64)[::2],
    }
    found = to_device(arrays, torch.device("cpu"))
    for name, array in arrays.items():
        assert found[name].numpy().tolist() == array.tolist() and found[name].numpy().dtype == array.dtype
        assert (found[name].shape == array.shape and found[name].data_ptr() % 16 == 0) or not array.size


def seen(rows: Rows, made: list[RowSpec]) -> list[list[tuple[int, int]]]:
    """(slot, position) of the window keys of each row, from the pivots and what the two parts hold."""
    kept = range(len(rows.positions)) if rows.kept is None else rows.kept.tolist()
    slots = [row.slot for row in made for _ in range(row.count)]
    ring: list[tuple[int, int]] = [(-1, -1)] * rows.history
    for slot, first, end, to in rows.segments.tolist():
        start = next(row.start for row in made if row.slot == slot)
        for at in range(first, end):
            # of the positions that lie there, the newest before the rows
            ring[to + at - first] = (slot, start - 1 - (start - 1 - at) % RING)
    keys = ring + [(slots[row], position) for row, position in zip(kept, rows.positions.tolist(), strict=True)]
    columns = expand_swa_index(rows.pivots, WINDOW).tolist()
    return [[keys[at] for at in row if at >= 0] for row in columns]


@settings(max_examples=80)
@given(
    spans=st.lists(st.tuples(st.integers(0, 150), st.integers(1, 150), st.integers(0, 40)), min_size=1, max_size=3),
    keep=st.sampled_from([None, 38, 60]),
    compact=st.booleans(),
)
def test_every_row_sees_its_window_and_no_more(
    spans: list[tuple[int, int, int]], keep: int | None, compact: bool
) -> None:
    made = [
        RowSpec([0] * (start + count), start, count, 7 - index, list(range(3)), start + count + more)
        for index, (start, count, more) in enumerate(spans)
    ]
    found = planned(made, keep, compact=compact and keep is not None)
    assert (found.consumers is found.producers) == (keep is None)
    for rows, floors in (
        (found.producers, [0] * len(made)),
        (found.consumers, [max(0, row.total - keep) if keep and row.total else 0 for row in made]),
    ):
        kept = list(range(sum(row.count for row in made))) if rows.kept is None else rows.kept.tolist()
        every = [
            (row, floor, row.start + at) for row, floor in zip(made, floors, strict=True) for at in range(row.count)
        ]
        for index, keys in zip(kept, seen(rows, made), strict=True):
            row, floor, position = every[index]
            window = range(max(position - WINDOW + 1, floor, 0), position + 1)
            assert keys == [(row.slot, at) for at in window]
        places = dict(zip(kept, rows.ring_places.tolist(), strict=True))
        for index, (row, floor, position) in enumerate(every):
            newest = position >= row.start + row.count - RING
            if rows.kept is None or position >= floor:
                expected = row.slot * RING + position % RING if newest else -1
                assert places[index] == expected
            else:  # left out, or the place-holder of a chunk that keeps no row
                assert places.get(index, -1) == -1
        if rows.kept is not None:
            assert {every[index][0].slot for index in kept} == {row.slot for row in made}


def test_entries_are_made_read_and_counted() -> None:
    made = [RowSpec([0] * 131, 128, 3, 5, [4, 9]), RowSpec([0], 0, 1, 2, [6])]
    found = planned(made)
    one, two = found.entries[1], found.entries[2]
    assert one.positions.tolist() == [128, 129, 130, 0]
    assert one.places.tolist() == [9 * 128, 9 * 128 + 1, 9 * 128 + 2, 6 * 128]
    assert one.segments.tolist() == [[4, 0, 128, 0], [9, 0, 3, 128], [6, 0, 1, 131]]
    assert one.total == 132
    assert two.positions.tolist() == [128, 0] and two.places.tolist() == [9 * 64, -1]
    assert two.mapping.tolist() == [0, 1] and two.row_begins.tolist() == [0, 1, 2]
    assert two.segments.tolist() == [[4, 0, 64, 0], [9, 0, 1, 64]] and two.total == 65
    assert found.producers.starts[2].tolist() == [0, 0, 0, 65]
    assert found.producers.lengths[2].tolist() == [64, 65, 65, 0] and found.producers.longest == {1: 131, 2: 65}


def test_what_tables_on_the_host_hold_travels_with_the_rows() -> None:
    def fetch(grams: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values = (grams[:, :1] + torch.arange(64)).float().to(torch.float8_e4m3fn)
        return values, grams[:, :2].to(torch.uint8)

    own = vocabulary([3, 1, 0, 2, 2, 4, 5, 6, 1])
    rows = [RowSpec([5, 6, 7], 1, 2, 4, [9]), RowSpec([8], 0, 1, 2, [3])]
    batch = Batch.of(rows, decode=True, vocabulary=own, memories={4: fetch})
    values, scales = batch.fetched[4]
    expected = fetch(batch.ngrams)
    assert values.dtype == torch.float8_e4m3fn and values.float().equal(expected[0].float())
    assert scales.equal(expected[1]) and batch.ngrams.shape == (3, 4)
