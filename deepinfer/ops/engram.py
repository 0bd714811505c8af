"""The n-gram memory: rows of its tables, their values, and the gates that add them to the trunk (model_spec 3.10)."""

from __future__ import annotations

import torch

from deepinfer.ops.checks import Arguments
from deepinfer.ops.dispatch import factory

IMAGE = -1
"""Stands for the newest token of an n-gram where that is part of an image."""
STREAMS = 4


def engram_rows(
    ngrams: torch.Tensor, multipliers: torch.Tensor, primes: torch.Tensor, offsets: torch.Tensor
) -> torch.Tensor:
    """The table rows of every token: for each n = 2 … N and each head, hash mod prime + offset.

    The hash of n tokens is the exclusive or of (token r back) * multiplier r, r < n, in 64 bits that wrap around; the
    remainder is never negative. Columns are in the order (n, head).

    Args:
        ngrams: [m, N] int32 or int64, contiguous: each token's compressed id and those before it, newest first; N from
            2 to 8. -1 in the first column: part of an image.
        multipliers: [N] int64, contiguous.
        primes, offsets: [r] int64, contiguous, r a multiple of N - 1; primes > 0.

    Returns:
        [m, r] int64; -1 throughout for a token of an image.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("engram_rows")
    check.tensor("ngrams", ngrams, (torch.int32, torch.int64), ("m", "N"), rows="contiguous")
    check.tensor("multipliers", multipliers, torch.int64, ("N",), rows="contiguous")
    check.tensor("primes", primes, torch.int64, ("r",), rows="contiguous")
    check.tensor("offsets", offsets, torch.int64, ("r",), rows="contiguous")
    length, columns = check.size("N"), check.size("r")
    check.require(2 <= length <= 8, "ngrams", f"must hold 2 to 8 tokens a row, not {length}")
    whole = columns > 0 and columns % (length - 1) == 0
    check.require(whole, "primes", f"must hold a multiple of {length - 1} numbers, not {columns}")
    rows = torch.empty((check.size("m"), columns), dtype=torch.int64, device=ngrams.device)
    factory("engram_rows")(length, columns)(ngrams, multipliers, primes, offsets, rows)
    return rows


def engram_gather(
    table: torch.Tensor, table_scales: torch.Tensor, rows: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The table's rows side by side: the left operand of the memory's linear layer, as it is stored.

    Args:
        table: [t, w] e4m3, contiguous, w a multiple of 32.
        table_scales: [t, w / 32] uint8 (ue8m0), contiguous.
        rows: [m, r] int64, contiguous. A row below 0 or >= t gives zeros, values and scales.

    Returns:
        (values [m, r * w] e4m3, scales [m, r * w / 32] uint8).

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("engram_gather")
    check.tensor("table", table, torch.float8_e4m3fn, ("t", "w"), rows="contiguous")
    width = check.size("w")
    check.require(width > 0 and width % 32 == 0, "table", f"must have rows of a multiple of 32 values, not {width}")
    check.tensor("table_scales", table_scales, torch.uint8, ("t", width // 32), rows="contiguous")
    check.tensor("rows", rows, torch.int64, ("m", "r"), rows="contiguous")
    m, picks = check.size("m"), check.size("r")
    values = torch.empty((m, picks * width), dtype=torch.float8_e4m3fn, device=table.device)
    scales = torch.empty((m, picks * width // 32), dtype=torch.uint8, device=table.device)
    factory("engram_gather")(width)(table, table_scales, rows, values, scales)
    return values, scales


def engram_gate(
    trunk: torch.Tensor,
    kv: torch.Tensor,
    gains: torch.Tensor,
    eps: float,
    skip: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The trunk with the memory added through one gate a stream: R_j + g_j * v, rounded once.

    t_j = sum(R_j * k_j * gain_j) / (rms(R_j) * rms(k_j) * sqrt(d)), rms(x) = sqrt(mean(x^2) + eps);
    g_j = sigmoid(sqrt(max(|t_j|, 1e-6)) with the sign of t_j). In float32; a row does not depend on the others.

    Args:
        trunk: [m, 4, d] bfloat16, contiguous.
        kv: [m, 5 * d] bfloat16, contiguous: k_0 … k_3, then v.
        gains: [4, d] float32, contiguous: the products of the two gains, q and k.
        skip: [m] bool, contiguous: rows that stay as they are (images); None for none.
        out: as trunk, and may be it; made when it is None.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("engram_gate")
    check.tensor("trunk", trunk, torch.bfloat16, ("m", STREAMS, "d"), rows="contiguous")
    width = check.size("d")
    check.require(width > 0, "trunk", "must have streams of at least one value")
    check.tensor("kv", kv, torch.bfloat16, ("m", (STREAMS + 1) * width), rows="contiguous")
    check.tensor("gains", gains, torch.float32, (STREAMS, "d"), rows="contiguous")
    check.optional("skip", skip, torch.bool, ("m",), rows="contiguous")
    out = torch.empty_like(trunk) if out is None else out
    check.tensor("out", out, torch.bfloat16, ("m", STREAMS, "d"), rows="contiguous")
    factory("engram_gate")(width, float(eps))(trunk, kv, gains, skip, out)
    return out
