"""The hash of a prefix: exactly what docs/prefix-reuse.md says, by the compiled part and its twin, and told apart."""

from __future__ import annotations

import dataclasses
import hashlib
import subprocess
from array import array
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.cache.prefix import Context, Image, block_hashes, reusable_tokens

CONTEXT = Context("weights", "main=288")
ROOT = CONTEXT.root()
IDS = [(7 * i * i + i) % 1000 for i in range(700)]


def by_the_book(ids: list[int], parent: bytes, marks: list[tuple[int, bytes]]) -> list[bytes]:
    """The contract once more, as a page would have it."""
    hashes = []
    for begin in range(0, len(ids) - 127, 128):
        message = parent + b"".join(one.to_bytes(4, "little", signed=True) for one in ids[begin : begin + 128])
        for index, content in marks:
            if begin <= index < begin + 128:
                message += (index - begin).to_bytes(4, "little") + len(content).to_bytes(4, "little") + content
        parent = hashlib.blake2b(message, digest_size=32, person=b"deepinfer-prefix").digest()
        hashes.append(parent)
    return hashes


def test_the_contract_does_not_change_unnoticed() -> None:
    """Hashes may be kept beyond a process: whoever changes these changes the contract's name."""
    assert ROOT.hex() == "13ec56a93756e2a92338b118270390deff14de5cdc117dc5167d0b0a6f3874ba"
    assert block_hashes(IDS, ROOT)[4].hex() == "203370fad7d2aa8c3b19fa9adea19f879c2f5e80acab2f92631958ffe95741af"


@pytest.mark.parametrize("length", [0, 1, 127, 128, 129, 255, 256, 700])
def test_whole_blocks_only(implementation: ModuleType, length: int) -> None:
    hashes = implementation.engine.hash_blocks(array("i", IDS[:length]), ROOT)
    assert hashes == by_the_book(IDS[:length], ROOT, []) and len(hashes) == length // 128


def test_marks_of_every_length(implementation: ModuleType) -> None:
    """Lengths around the hash function's blocks of 128 bytes, several marks in a block, marks in the part left over."""
    for size in (0, 1, 87, 88, 89, 127, 128, 129, 600):
        marks = [(0, b"a" * size), (0, b"b"), (127, b"c" * size), (128, b"d" * size), (690, b"e")]
        assert implementation.engine.hash_blocks(array("i", IDS), ROOT, marks) == by_the_book(IDS, ROOT, marks), size


def test_any_buffer_of_int32(implementation: ModuleType) -> None:
    import numpy as np

    hash_blocks = implementation.engine.hash_blocks
    expected = hash_blocks(array("i", IDS), ROOT)
    assert hash_blocks(np.array(IDS, dtype=np.int32), ROOT) == expected
    assert hash_blocks(memoryview(array("i", IDS)), ROOT) == expected
    assert hash_blocks(token_ids=array("i", IDS), parent=ROOT, marks=iter([])) == expected
    extremes = [2**31 - 1, -(2**31), -1, 0] * 32
    assert hash_blocks(array("i", extremes), ROOT) == by_the_book(extremes, ROOT, [])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([1, 2], ROOT), TypeError, "token_ids must be a buffer of int32, not list"),
        ((array("q", [1]), ROOT), TypeError, "not of the format q"),
        ((array("f", [1]), ROOT), TypeError, "not of the format f"),
        ((b"abcd", ROOT), TypeError, "not of the format B"),
        ((memoryview(array("i", IDS))[::2], ROOT), ValueError, "one dimension and be contiguous"),
        ((array("i", IDS), "x" * 32), TypeError, "parent must be bytes, not str"),
        ((array("i", IDS), b"x" * 31), ValueError, "parent must have 32 bytes, not 31"),
        ((array("i", IDS), ROOT, [(700, b"")]), ValueError, "a mark's index must be 0 to 699, not 700"),
        ((array("i", IDS), ROOT, [(-1, b"")]), ValueError, "a mark's index must be 0 to 699, not -1"),
        ((array("i", IDS), ROOT, [(5, b""), (4, b"")]), ValueError, "a mark's index must be 5 to 699, not 4"),
        ((array("i", IDS), ROOT, [(1.0, b"")]), TypeError, "a mark's index must be an integer, not float"),
        ((array("i", IDS), ROOT, [(1, "x")]), TypeError, "a mark's content must be bytes, not str"),
        ((array("i", IDS), ROOT, [(1,)]), TypeError, "a mark must be a pair"),
        ((array("i", IDS), ROOT, [3]), TypeError, "a mark must be a pair"),
    ],
)
def test_wrong_arguments(
    implementation: ModuleType, arguments: tuple[Any, ...], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        implementation.engine.hash_blocks(*arguments)
    assert message in str(caught.value)


def test_the_twin_agrees_everywhere(native_c: ModuleType) -> None:
    from deepinfer._python.engine import hash_blocks

    @settings(max_examples=150)
    @given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=400), st.binary(min_size=32, max_size=32), st.data())
    def compare(ids: list[int], parent: bytes, data: st.DataObject) -> None:
        places = st.lists(st.integers(0, max(len(ids) - 1, 0)), max_size=3 if ids else 0)
        marks = [(place, data.draw(st.binary(max_size=200))) for place in sorted(data.draw(places))]
        compiled = native_c.engine.hash_blocks(array("i", ids), parent, marks)
        assert compiled == hash_blocks(array("i", ids), parent, marks) == by_the_book(ids, parent, marks)

    compare()


def test_it_is_host_code(run_python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """Neither importing nor hashing needs torch or numpy, with the twin."""
    code = "import sys, deepinfer.cache.prefix as p; from deepinfer import _python; p.native.engine = _python.engine; "
    code += "print(len(p.block_hashes(range(300), p.Context('m', 'f').root())), {'torch', 'numpy'} & set(sys.modules))"
    done = run_python("-c", code)
    assert done.stdout == "2 set()\n", done.stderr


def test_each_field_of_the_context_counts() -> None:
    others = [
        dataclasses.replace(CONTEXT, **change)
        for change in (
            {"model": "other"},
            {"cache_format": "main=528"},
            {"truncation": "mask"},
            {"truncation": "compact"},
            {"truncation": "mask", "keep_tokens": 140},
            {"settings": {"backend": "triton"}},
            {"settings": {"backend": "reference"}},
            {"settings": {"backend": "triton", "gemm": "deep_gemm"}},
            {"salt": "a"},
            {"salt": "ä"},
            {"salt": "\ud800"},
        )
    ]
    assert len({one.root() for one in [CONTEXT, *others]}) == len(others) + 1


def test_fields_do_not_run_into_each_other() -> None:
    assert Context("ab", "c").root() != Context("a", "bc").root()
    assert Context("m", "f", settings={"a": "b"}).root() != Context("m", "f", settings={"ab": ""}).root()


def test_what_does_not_change_a_result_does_not_count() -> None:
    assert dataclasses.replace(CONTEXT, keep_tokens=140).root() == ROOT, "truncation is off"
    ordered = Context("m", "f", settings={"a": "1", "b": "2"})
    assert ordered.root() == Context("m", "f", settings={"b": "2", "a": "1"}).root()


def test_a_token_changes_its_block_and_all_after_it() -> None:
    hashes = block_hashes(IDS, ROOT)
    changed = block_hashes([*IDS[:300], IDS[300] + 1, *IDS[301:]], ROOT)
    assert [a == b for a, b in zip(hashes, changed, strict=True)] == [True, True, False, False, False]
    other_root = block_hashes(IDS, Context("other", "main=288").root())
    assert not set(hashes) & set(other_root)


def test_equal_blocks_at_different_places_differ() -> None:
    hashes = block_hashes([5] * 512, ROOT)
    assert len(set(hashes)) == 4


def test_an_image_counts_from_the_block_on_in_which_it_begins() -> None:
    def hashes(*images: Image) -> list[bytes]:
        return block_hashes(IDS, ROOT, images=images)

    text, cat, dog = hashes(), hashes(Image(130, b"cat")), hashes(Image(130, b"dog"))
    assert text[0] == cat[0] == dog[0]
    assert len({text[1], cat[1], dog[1]}) == len({text[4], cat[4], dog[4]}) == 3
    assert hashes(Image(131, b"cat"))[1] != cat[1], "where it begins counts"
    assert hashes(Image(130, b"cat"), Image(140, b"dog"))[1] != hashes(Image(130, b"dog"), Image(140, b"cat"))[1]


def test_a_sequence_that_grows_is_hashed_on_from_where_it_was() -> None:
    images = [Image(10, b"a"), Image(127, b"b"), Image(128, b"c"), Image(600, b"d")]
    whole = block_hashes(IDS, ROOT, images=images)
    for known in range(6):
        assert block_hashes(IDS, ROOT, images=images, known=whole[:known]) == whole
    assert block_hashes(IDS[:640], ROOT, images=images, known=whole) == whole, "nothing new"


def test_wrong_sequences() -> None:
    with pytest.raises(ValueError, match="token_ids must fit 32 bits"):
        block_hashes([2**31], ROOT)
    for positions in ([700], [-1], [5, 4]):
        images = [Image(position, b"x") for position in positions]
        for known in ([], block_hashes(IDS, ROOT)[:1]):
            with pytest.raises(ValueError, match="images must lie within the 700 tokens, in order"):
                block_hashes(IDS, ROOT, images=images, known=known)


@pytest.mark.parametrize(
    ("total", "truncation", "keep", "reusable"),
    [
        (0, "off", 0, 0),
        (1, "off", 0, 0),
        (128, "off", 0, 0),
        (129, "off", 0, 128),
        (1000, "off", 140, 896),
        (256, "mask", 140, 0),
        (267, "mask", 140, 0),
        (268, "mask", 140, 128),
        (268, "compact", 140, 128),
        (1000, "compact", 140, 768),
    ],
)
def test_how_far_a_request_may_reuse(total: int, truncation: Any, keep: int, reusable: int) -> None:
    assert reusable_tokens(total, truncation, keep) == reusable
