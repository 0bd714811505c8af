"""`engram_rows`, `engram_gather` and `engram_gate` (model_spec 3.10)."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.config.engram_hash import Hash
from deepinfer.ops import using
from deepinfer.ops.case import Case
from deepinfer.ops.cases.engram import MULTIPLIERS
from deepinfer.ops.engram import engram_gate, engram_gather, engram_rows
from deepinfer.ops.reference.quantize import dequantize
from deepinfer.reference.engram import ngrams as ngrams_of
from deepinfer.reference.engram import remember, rows_of
from deepinfer.reference.precision import Precision
from deepinfer.reference.weights import Weights
from tests.ops.three_ways import Interpreted, agrees_in_the_interpreter, agrees_on_a_gpu, every_case, small_cases


@small_cases("engram")
def test_interpreted(case: Case, interpreted: Interpreted) -> None:
    agrees_in_the_interpreter(case, interpreted)


@pytest.mark.gpu
@every_case("engram")
def test_on_a_gpu(case: Case) -> None:
    agrees_on_a_gpu(case)


def _wrapped(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


I64 = st.integers(-(2**63), 2**63 - 1)


@settings(max_examples=40)
@given(
    grams=st.lists(st.lists(st.integers(-1, 2**31 - 1), min_size=3, max_size=3), min_size=1, max_size=4),
    multipliers=st.lists(I64, min_size=3, max_size=3),
    primes=st.lists(st.integers(1, 2**40), min_size=4, max_size=4),
    offsets=st.lists(st.integers(0, 2**40), min_size=4, max_size=4),
)
def test_rows_against_a_loop(
    grams: list[list[int]], multipliers: list[int], primes: list[int], offsets: list[int]
) -> None:
    with using("reference"):
        found = engram_rows(*(torch.tensor(one, dtype=torch.int64) for one in (grams, multipliers, primes, offsets)))
    for gram, row in zip(grams, found.tolist(), strict=True):
        pair = _wrapped(gram[0] * multipliers[0]) ^ _wrapped(gram[1] * multipliers[1])
        three = pair ^ _wrapped(gram[2] * multipliers[2])
        hashed = (pair, pair, three, three)
        expected = [h % prime + offset for h, prime, offset in zip(hashed, primes, offsets, strict=True)]
        assert row == ([-1] * 4 if gram[0] == -1 else expected)


def test_rows_against_the_oracle() -> None:
    own = Hash(MULTIPLIERS, tuple(16_000_057 + 2 * k for k in range(24)), tuple(16_000_100 * k for k in range(24)))
    generator = torch.Generator().manual_seed(4)
    lookup = torch.randperm(99092, generator=generator)
    grams = ngrams_of(torch.randint(0, 99092, (50,), generator=generator), lookup, 4, 2)
    numbers = [torch.tensor(one) for one in (own.multipliers, own.primes, own.offsets)]
    with using("reference"):
        assert engram_rows(grams, *numbers).equal(rows_of(grams, own, 8))
        assert engram_rows(grams.int(), *numbers).equal(rows_of(grams, own, 8))


def test_gather_takes_rows_as_they_are_stored() -> None:
    generator = torch.Generator().manual_seed(5)
    table = torch.randn(9, 64, generator=generator).to(torch.float8_e4m3fn)
    scales = torch.randint(100, 140, (9, 2), dtype=torch.uint8, generator=generator)
    rows = torch.tensor([[3, 8, -1], [9, 0, 2**40]])
    with using("reference"):
        values, steps = engram_gather(table, scales, rows)
    assert values.shape == (2, 192) and steps.shape == (2, 6)
    bytes_, stored = values.view(torch.uint8), table.view(torch.uint8)
    assert bytes_[0, :64].equal(stored[3]) and bytes_[0, 64:128].equal(stored[8]) and not bytes_[0, 128:].any()
    assert not bytes_[1, :64].any() and bytes_[1, 64:128].equal(stored[0]) and not bytes_[1, 128:].any()
    assert steps.tolist() == [[*scales[3].tolist(), *scales[8].tolist(), 0, 0], [0, 0, *scales[0].tolist(), 0, 0]]
    assert not dequantize(values, steps)[0, 128:].any()


@pytest.mark.parametrize("precision", [Precision(), Precision(rounded=False)], ids=["rounded", "ideal"])
def test_gate_against_the_oracle(precision: Precision) -> None:
    generator = torch.Generator().manual_seed(6)
    width, tokens = 64, 21

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).bfloat16()

    tensors = {
        "engram.embed.weight": drawn(40, 32).to(torch.float8_e4m3fn),
        "engram.embed.scale": torch.full((40, 1), 127, dtype=torch.uint8).view(torch.float8_e8m0fnu),
        "engram.wkv.weight": drawn(5 * width, 3 * 32) / 8,
        "engram.q_weight": 1 + drawn(4, width) / 10,
        "engram.k_weight": 1 + drawn(4, width) / 10,
    }
    trunk, rows = drawn(tokens, 4, width), torch.randint(0, 40, (tokens, 3), generator=generator)
    w = Weights(tensors, torch.float64)
    expected = remember(precision, trunk.double(), rows, w, "engram", 1e-20)
    with using("reference"):
        values, scales = engram_gather(
            tensors["engram.embed.weight"], tensors["engram.embed.scale"].view(torch.uint8), rows
        )
        kv = (dequantize(values, scales).double() @ tensors["engram.wkv.weight"].double().T).bfloat16()
        gains = tensors["engram.q_weight"].float() * tensors["engram.k_weight"].float()
        found = engram_gate(trunk, kv, gains, 1e-20)
    # Without rounding, the oracle has neither kv nor the result in bfloat16.
    slack = 0.0 if precision.rounded else 3e-2
    torch.testing.assert_close(found.double(), expected, rtol=2**-8 + slack, atol=1e-6 + slack)
    if precision.rounded:
        assert (found.double() != expected).float().mean() < 0.01


def test_gate_of_nothing_and_rows_that_are_skipped() -> None:
    width = 32
    trunk, kv = torch.zeros(3, 4, width).bfloat16(), torch.ones(3, 5 * width).bfloat16()
    kv[:, : 4 * width] = 0
    trunk[2] = 3.0
    skip = torch.tensor([False, True, True])
    with using("reference"):
        found = engram_gate(trunk, kv, torch.ones(4, width), 1e-20, skip)
        same = trunk.clone()
        assert engram_gate(same, kv, torch.ones(4, width), 1e-20, skip, out=same) is same
    # t = +0 opens the gate to sigmoid(1e-3).
    assert found[0].float().unique().tolist() == [torch.sigmoid(torch.tensor(1e-3)).bfloat16().item()]
    assert found[1:].equal(trunk[1:]) and same.equal(found)


@pytest.mark.gpu
def test_a_row_alone_has_the_bits_that_it_has_in_a_batch() -> None:
    generator = torch.Generator().manual_seed(7)
    trunk, kv, gains = (
        torch.randn(shape, generator=generator).cuda() for shape in ((9, 4, 5120), (9, 25600), (4, 5120))
    )
    with using("triton"):
        batch = engram_gate(trunk.bfloat16(), kv.bfloat16(), gains, 1e-20)
        for row in (0, 5, 8):
            own = slice(row, row + 1)
            assert engram_gate(trunk[own].bfloat16(), kv[own].bfloat16(), gains, 1e-20)[0].equal(batch[row])


GRAMS, NUMBERS = torch.zeros(2, 4, dtype=torch.int64), torch.ones(4, dtype=torch.int64)
PRIMES = torch.ones(6, dtype=torch.int64)
TABLE, SCALES = torch.zeros(5, 64).to(torch.float8_e4m3fn), torch.zeros(5, 2, dtype=torch.uint8)
PICKS = torch.zeros(2, 3, dtype=torch.int64)
TRUNK, KV, GAINS = torch.zeros(2, 4, 32).bfloat16(), torch.zeros(2, 160).bfloat16(), torch.ones(4, 32)


@pytest.mark.parametrize(
    ("call", "arguments", "error", "text"),
    [
        (engram_rows, (GRAMS.float(), NUMBERS, PRIMES, PRIMES), TypeError, "ngrams must be int32 or int64"),
        (engram_rows, (GRAMS, NUMBERS[:3], PRIMES, PRIMES), ValueError, "multipliers has the shape"),
        (engram_rows, (GRAMS, NUMBERS, PRIMES[:5], PRIMES[:5]), ValueError, "primes must hold a multiple of 3"),
        (engram_rows, (GRAMS, NUMBERS, PRIMES, PRIMES[:3]), ValueError, "offsets has the shape"),
        (engram_rows, (GRAMS[:, :1].contiguous(), NUMBERS[:1], PRIMES, PRIMES), ValueError, "2 to 8 tokens"),
        (engram_gather, (TABLE.float(), SCALES, PICKS), TypeError, "table must be float8_e4m3fn"),
        (engram_gather, (TABLE[:, :40].contiguous(), SCALES, PICKS), ValueError, "a multiple of 32 values, not 40"),
        (engram_gather, (TABLE, SCALES[:4], PICKS), ValueError, "table_scales has the shape"),
        (engram_gather, (TABLE, SCALES, PICKS.int()), TypeError, "rows must be int64"),
        (engram_gather, (TABLE, SCALES, PICKS.to("meta")), ValueError, "all must be on one device"),
        (engram_gate, (TRUNK.float(), KV, GAINS, 0.0), TypeError, "trunk must be bfloat16"),
        (engram_gate, (TRUNK[:, :3], KV, GAINS, 0.0), ValueError, "trunk must have the shape"),
        (engram_gate, (TRUNK, KV[:, :128], GAINS, 0.0), ValueError, "kv must have the shape"),
        (engram_gate, (TRUNK, KV, GAINS.bfloat16(), 0.0), TypeError, "gains must be float32"),
        (engram_gate, (TRUNK, KV, GAINS, 0.0, torch.zeros(2)), TypeError, "skip must be bool"),
        (engram_gate, (TRUNK, KV, GAINS, 0.0, None, TRUNK[:1]), ValueError, "out has the shape"),
    ],
)  # fmt: skip
def test_refused(call, arguments: tuple, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call(*arguments)
