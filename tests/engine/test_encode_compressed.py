"""encode_compressed: what deepinfer._C and its twin in Python both promise."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

INT32 = st.integers(-(2**31), 2**31 - 1)


def array(values: list[int], dtype: str = "int32") -> Any:
    import numpy as np

    return np.array(values, dtype=dtype)


def test_ids_outside_the_table_become_the_sentinel(implementation: ModuleType) -> None:
    table = array([10, 11, 12])
    encoded = implementation.engine.encode_compressed(array([0, 2, 3, -1, 1, 2**31 - 1, -(2**31)]), table, -7)
    assert encoded.tolist() == [10, 12, -7, -7, 11, -7, -7]
    assert encoded.dtype == table.dtype


def test_empty_ids_and_empty_table(implementation: ModuleType) -> None:
    encode = implementation.engine.encode_compressed
    assert encode(array([]), array([1]), 0).tolist() == []
    assert encode(array([0, 1]), array([]), 5).tolist() == [5, 5]


def test_strided_arrays_and_keywords(implementation: ModuleType) -> None:
    ids = array([0, 9, 1, 9, 2, 9])[::2]
    table = array([5, 6, 7])[::-1]
    assert implementation.engine.encode_compressed(ids=ids, table=table, sentinel=0).tolist() == [7, 6, 5]


def test_the_arguments_stay_as_they_were(implementation: ModuleType) -> None:
    ids, table = array([1, 0]), array([3, 4])
    encoded = implementation.engine.encode_compressed(ids, table, 0)
    encoded[:] = 99
    assert ids.tolist() == [1, 0] and table.tolist() == [3, 4]


@pytest.mark.parametrize("dtype", ["int64", "uint32", "float32", ">i4", "bool"])
def test_other_dtypes_are_not_converted(implementation: ModuleType, dtype: str) -> None:
    encode = implementation.engine.encode_compressed
    with pytest.raises(TypeError):
        encode(array([1], dtype), array([1]), 0)
    with pytest.raises(TypeError):
        encode(array([1]), array([1], dtype), 0)


def test_lists_are_not_converted(implementation: ModuleType) -> None:
    with pytest.raises(TypeError):
        implementation.engine.encode_compressed([1], array([1]), 0)


def test_one_dimension_only(implementation: ModuleType) -> None:
    with pytest.raises(ValueError, match="one dimension, not 2 and 1"):
        implementation.engine.encode_compressed(array([1, 2]).reshape(1, 2), array([1]), 0)


@pytest.mark.parametrize(("sentinel", "error"), [(2**31, ValueError), (-(2**31) - 1, ValueError), (1.0, TypeError)])
def test_bad_sentinels(implementation: ModuleType, sentinel: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="sentinel"):
        implementation.engine.encode_compressed(array([1]), array([1]), sentinel)


def test_the_twin_agrees_everywhere(native_c: ModuleType) -> None:
    from deepinfer._python.engine import encode_compressed

    @settings(max_examples=200)
    @given(st.lists(st.one_of(st.integers(-3, 12), INT32)), st.lists(INT32, max_size=10), INT32)
    def compare(ids: list[int], table: list[int], sentinel: int) -> None:
        compiled = native_c.engine.encode_compressed(array(ids), array(table), sentinel)
        assert compiled.tolist() == encode_compressed(array(ids), array(table), sentinel).tolist()

    compare()
