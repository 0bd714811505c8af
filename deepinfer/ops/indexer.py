"""Logits by which index layers choose entries: plain, paged, and of candidate blocks alone (model_spec 3.5, 3.6).

The logit of a query row and an entry is the sum over heads of weight * max(0, query . key). Queries and keys are e2m1
with a power of two per 32 columns: two values a byte, the even column low, and scales byte - 127. Products and sums are
float32; a row's logits have the same bits alone and in any batch.

Queries of all functions: q int8 [n, h, 64], q_scales uint8 [n, h, 4], weights bfloat16 [n, h], contiguous; h is 1 to
64. lengths int32 [n], contiguous: how many entries a row sees. Where there is no entry, or no key of it, the logit is
minus infinity: nothing outside of the tensors is read. Results are float32 [n, width], whose rows lie a multiple of 16
apart.
"""

from __future__ import annotations

import torch

from deepinfer.ops.checks import Arguments
from deepinfer.ops.dispatch import factory
from deepinfer.ops.formats import FP4_INDEX_KV_FORMAT, split_kv_cache

HEAD_BYTES = 64
HEAD_SCALES = 4
MOST_HEADS = 64
MOST_COLUMNS = 2**22
BLOCK_SIZES = (8, 16)


def index_logits(
    q: torch.Tensor,
    q_scales: torch.Tensor,
    weights: torch.Tensor,
    keys: torch.Tensor,
    key_scales: torch.Tensor,
    starts: torch.Tensor,
    lengths: torch.Tensor,
    width: int,
) -> torch.Tensor:
    """Column c of a row is its entry c: the key `starts` + c.

    Neighbouring rows with the same start share the work of reading keys.

    Args:
        keys, key_scales: int8 [t, 64] and uint8 [t, 4], contiguous.
        starts: [n] int32, contiguous: the key of a row's entry 0.
        width: columns of the result, 0 to 2^22.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = _queries("index_logits", q, q_scales, weights, lengths)
    _keys(check, keys, key_scales, starts)
    logits = _result(check, q, check.whole_number("width", width, at_least=0, at_most=MOST_COLUMNS))
    factory("index_logits")(check.size("h"))(q, q_scales, weights, keys, key_scales, starts, lengths, logits)
    return logits


def paged_index_logits(
    q: torch.Tensor,
    q_scales: torch.Tensor,
    weights: torch.Tensor,
    cache: torch.Tensor,
    block_tables: torch.Tensor,
    lengths: torch.Tensor,
    width: int,
) -> torch.Tensor:
    """Column c of a row is its entry c, which lies in the cache's block block_tables[c / size] at c % size.

    Args:
        cache: uint8 [blocks, size, 1, 68], blocks at any stride: the index format of model_spec 4.2.
        block_tables: [n, m] int32, rows contiguous; a negative block, or one that there is not, has no keys.
        width: columns of the result, 0 to 2^22.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = _queries("paged_index_logits", q, q_scales, weights, lengths)
    values, scales = _paged(check, cache, block_tables)
    logits = _result(check, q, check.whole_number("width", width, at_least=0, at_most=MOST_COLUMNS))
    construct = factory("paged_index_logits")(check.size("h"), cache.shape[1])
    construct(q, q_scales, weights, values, scales, block_tables, lengths, logits)
    return logits


def candidate_index_logits(
    q: torch.Tensor,
    q_scales: torch.Tensor,
    weights: torch.Tensor,
    keys: torch.Tensor,
    key_scales: torch.Tensor,
    starts: torch.Tensor,
    blocks: torch.Tensor,
    block_size: int,
    lengths: torch.Tensor,
) -> torch.Tensor:
    """Column x of a row is its entry blocks[x / block_size] * block_size + x % block_size (the compact order).

    Where `blocks` are ascending with -1 at the end, the logits of a row are those of the columns below
    `get_candidate_compact_lens`, and `restore_candidate_indices_inplace` gives the entries of columns.

    Args:
        keys, key_scales, starts: as for `index_logits`.
        blocks: [n, K] int32, rows contiguous; negative = none. K * block_size at most 2^22.
        block_size: 8 or 16.

    Returns:
        float32 [n, K * block_size].

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = _queries("candidate_index_logits", q, q_scales, weights, lengths)
    _keys(check, keys, key_scales, starts)
    logits = _result(check, q, _candidates(check, blocks, block_size))
    construct = factory("candidate_index_logits")(check.size("h"), block_size)
    construct(q, q_scales, weights, keys, key_scales, starts, blocks, lengths, logits)
    return logits


def paged_candidate_index_logits(
    q: torch.Tensor,
    q_scales: torch.Tensor,
    weights: torch.Tensor,
    cache: torch.Tensor,
    block_tables: torch.Tensor,
    blocks: torch.Tensor,
    block_size: int,
    lengths: torch.Tensor,
) -> torch.Tensor:
    """As `candidate_index_logits`, with keys where `paged_index_logits` finds them.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = _queries("paged_candidate_index_logits", q, q_scales, weights, lengths)
    values, scales = _paged(check, cache, block_tables)
    logits = _result(check, q, _candidates(check, blocks, block_size))
    construct = factory("paged_candidate_index_logits")(check.size("h"), block_size, cache.shape[1])
    construct(q, q_scales, weights, values, scales, block_tables, blocks, lengths, logits)
    return logits


def _queries(
    function: str, q: torch.Tensor, q_scales: torch.Tensor, weights: torch.Tensor, lengths: torch.Tensor
) -> Arguments:
    check = Arguments(function)
    check.tensor("q", q, torch.int8, ("n", "h", HEAD_BYTES), rows="contiguous")
    check.tensor("q_scales", q_scales, torch.uint8, ("n", "h", HEAD_SCALES), rows="contiguous")
    check.tensor("weights", weights, torch.bfloat16, ("n", "h"), rows="contiguous")
    check.tensor("lengths", lengths, torch.int32, ("n",), rows="contiguous")
    heads = check.size("h")
    check.require(1 <= heads <= MOST_HEADS, "q", f"must have 1 to {MOST_HEADS} heads, not {heads}")
    return check


def _keys(check: Arguments, keys: torch.Tensor, key_scales: torch.Tensor, starts: torch.Tensor) -> None:
    check.tensor("keys", keys, torch.int8, ("t", HEAD_BYTES), rows="contiguous")
    check.tensor("key_scales", key_scales, torch.uint8, ("t", HEAD_SCALES), rows="contiguous")
    check.tensor("starts", starts, torch.int32, ("n",), rows="contiguous")


def _paged(check: Arguments, cache: torch.Tensor, block_tables: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The cache's values int8 [blocks, size, 64] and scales uint8 [blocks, size, 4]."""
    width = FP4_INDEX_KV_FORMAT.bytes_per_token
    check.tensor("cache", cache, torch.uint8, ("blocks", "size", 1, width), rows="any")
    check.tensor("block_tables", block_tables, torch.int32, ("n", "m"))
    check.require(check.size("size") > 0, "cache", "must have at least one entry a block")
    parts = split_kv_cache(cache, FP4_INDEX_KV_FORMAT)
    assert parts.quantized_data is not None and parts.sf_data is not None
    return parts.quantized_data, parts.sf_data


def _candidates(check: Arguments, blocks: torch.Tensor, block_size: int) -> int:
    check.tensor("blocks", blocks, torch.int32, ("n", "K"))
    check.one_of("block_size", block_size, BLOCK_SIZES)
    columns = check.size("K") * block_size
    check.require(columns <= MOST_COLUMNS, "blocks", f"must hold at most {MOST_COLUMNS} entries a row, not {columns}")
    return columns


def _result(check: Arguments, q: torch.Tensor, width: int) -> torch.Tensor:
    stride = -(-width // 16) * 16
    return torch.empty((check.size("n"), stride), dtype=torch.float32, device=q.device)[:, :width]
