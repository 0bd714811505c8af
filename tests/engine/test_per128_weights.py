"""Weights quantised anew with a scale per 128 x 128 values, and the model on products of them, in plain PyTorch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.cache.pool import Caches
from deepinfer.exactness import compare, standard_prompt
from deepinfer.exactness.report import facts, table
from deepinfer.loading.dequantize import fp4_rows, fp8_blocks
from deepinfer.model.model import Model
from deepinfer.model.per128 import (
    Per128,
    WideProducts,
    alignment_for,
    blocks,
    of_fp4,
    of_fp8,
    of_groups,
    refused,
)
from deepinfer.model.products import EXACT, Fp4, Fp8
from deepinfer.model.weights import gather_weights
from deepinfer.ops import dispatch
from deepinfer.ops.cases import quantized
from deepinfer.ops.tolerance import as_bits
from tests.engine import model_runs
from tests.engine.model_runs import BLOCKS, Story, prompt, single_thread, tensors
from tests.engine.plain_library import Plain, wide_config, wide_model, wide_subject, wide_weight

one_thread = pytest.fixture(autouse=True, scope="module")(single_thread)

E4M3 = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).double()
STEPS = E4M3[~E4M3.isnan()].sort().values


def random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(st.integers(0, 2**31), st.integers(1, 300), st.integers(1, 3), st.integers(-30, 30))
@settings(max_examples=25)
def test_blocks_are_nearest_at_the_smallest_scale(seed: int, rows: int, parts: int, power: int) -> None:
    weight = torch.randn(rows, parts * 128, generator=random(seed)) * 10.0**power
    weight[:, :128] = 0
    found = blocks(weight)
    assert found.values.shape == weight.shape and found.scales.shape == (-(-rows // 128), parts)
    assert found.scales[:, 0].eq(1).all() and wide_weight(found)[:, :128].eq(0).all()
    scales = found.scales.double()
    assert (scales.log2() % 1 == 0).all()
    for row in range(0, rows, 128):
        for part in range(1, parts):
            own = weight[row : row + 128, part * 128 : part * 128 + 128].double()
            scale = scales[row // 128, part]
            assert scale * 224 < own.abs().max() <= scale * 448 or own.abs().max() == 0
            got = found.values[row : row + 128, part * 128 : part * 128 + 128].double()
            at = torch.searchsorted(STEPS, (own / scale).contiguous()).clamp(1, len(STEPS) - 1)
            nearest = torch.minimum((own / scale - STEPS[at - 1]).abs(), (own / scale - STEPS[at]).abs())
            assert (own / scale - got).abs().equal(nearest)
    assert wide_weight(blocks(wide_weight(found).float())).equal(wide_weight(found)), "again it is something else"


def test_a_nan_counts_for_no_scale_and_stays() -> None:
    weight = torch.randn(130, 256, generator=random(1))
    expected = blocks(weight)
    spoilt = weight.clone()
    spoilt[129, 3] = torch.nan
    found = blocks(spoilt)
    assert wide_weight(found).isnan().nonzero().tolist() == [[129, 3]]
    assert as_bits(found.values[:128]).equal(as_bits(expected.values[:128]))
    alone = spoilt[128:].clone()
    alone[1, 3] = 0
    assert found.scales[1, 0] == blocks(alone).scales[0, 0]


@given(st.integers(0, 2**31), st.integers(1, 3), st.integers(1, 2))
@settings(max_examples=15)
def test_experts_are_the_same_numbers(seed: int, experts: int, parts: int) -> None:
    """e2m1 is within e4m3, also where scales differ by 2^12."""
    generator = random(seed)
    values = torch.randint(-128, 128, (experts, 72, parts * 64), generator=generator, dtype=torch.int8)
    scales = torch.randint(110, 123, (experts, 72, parts * 4), generator=generator, dtype=torch.uint8)
    found = wide_weight(of_fp4(Fp4(values, scales)))
    for expert in range(experts):
        assert found[expert].equal(fp4_rows(values[expert], scales[expert]))


def test_a_linear_weight_changes_only_far_below_its_blocks_largest() -> None:
    weight = Fp8(*quantized.fp8_weight(random(5), 200, 256))
    exact, found = fp8_blocks(*weight), wide_weight(of_fp8(weight))
    for row in range(0, 200, 128):
        for column in range(0, 256, 128):
            own = exact[row : row + 128, column : column + 128]
            off = (found[row : row + 128, column : column + 128] - own).abs()
            assert off[own.abs() >= own.abs().max() * 2.0**-13].eq(0).all()
            assert off.max() <= own.abs().max() * 2.0**-17
    assert not found.equal(exact), "the case has no value that is small enough"


def test_groups_have_blocks_of_their_own() -> None:
    weight = Fp8(*quantized.fp8_weight(random(6), 128, 256))
    found = of_groups(weight, 2)
    assert found.values.shape == (2, 64, 256) and found.scales.shape == (2, 1, 2)
    for group, rows in enumerate((slice(0, 64), slice(64, 128))):
        alone = blocks(fp8_blocks(*weight)[rows].float())
        assert alone.scales.equal(found.scales[group])
        assert as_bits(alone.values).equal(as_bits(found.values[group]))


@pytest.mark.parametrize(
    ("outputs", "columns", "reason"),
    [
        (1792, 5120, ""),
        (576, 128, ""),
        (64, 64, "64 columns are no multiple of 128"),
        (20, 128, "20 outputs are no multiple of 8"),
    ],
)
def test_which_products_there_are(outputs: int, columns: int, reason: str) -> None:
    assert refused(outputs, columns) == reason


@pytest.mark.parametrize(
    ("choices", "experts", "alignment"),
    [(0, 384, 64), (6, 384, 64), (12288, 384, 64), (12289, 384, 128), (24576, 384, 128), (33, 1, 128)],
)
def test_padding_of_the_experts_parts(choices: int, experts: int, alignment: int) -> None:
    assert alignment_for(choices, experts) == alignment


def caches() -> Caches:
    found = Caches.allocate(wide_config(), "cpu", blocks=BLOCKS, slots=12)
    found.blocks_buffer.fill_(0xFF)
    found.slots_buffer.fill_(0xFF)
    return found


def run(own: Model, tokens: list[int], cuts: list[int], decoded: tuple[int, ...] = ()) -> torch.Tensor:
    memory, story = caches(), Story(tokens)
    with dispatch.using("reference"):
        for cut in cuts:
            logits = model_runs.forward(own, memory, [story.rows(cut - story.done)])
        for count in decoded:
            logits = model_runs.forward(own, memory, [story.rows(count)], decode=True)
    return logits[-1]


def test_the_model_is_as_near_the_oracle_as_with_exact_products() -> None:
    """Of the mode itself, without the tensor cores' sums, hardly anything is left to see."""
    library = Plain()
    wide, exact = wide_subject(library), wide_subject(None)
    with dispatch.using("reference"):
        found, other = (compare(one, standard_prompt(512, 60), chunk=40, decoded=4) for one in (wide, exact))
    assert found.error <= 1.5 * other.error + 1e-4 and found.wrong_tokens(found.forced) == []
    assert not found.forced.logits.equal(other.forced.logits), "the library was not asked"
    for layer in range(12):
        assert found.hidden_error(found.forced, layer) <= 1.5 * other.hidden_error(other.forced, layer) + 1e-4
    kinds = {(kind, weight) for kind, _, weight in library.calls}
    assert len(kinds) == 9 and {kind for kind, _ in kinds} == {"linear", "grouped", "experts"}
    told = facts(found, wide, "cpu")
    assert told["faults"] == [] and told["gemm"] == "deep_gemm" and told["same_tokens"]["forced"] > 0.9
    assert "drift: the logits are off by" in table(told) and "nothing here is a fault" in table(told)


def test_decoded_tokens_and_padding_rows_are_as_in_prefill() -> None:
    own, tokens = wide_model(WideProducts(Plain())), prompt(70)
    whole, decoded = run(own, tokens, [70]), run(own, tokens, [31, 66], (1, 3))
    assert (whole - decoded).norm() <= 1e-3 * whole.norm()
    memory, story = caches(), Story(tokens)
    with dispatch.using("reference"):
        model_runs.forward(own, memory, [story.rows(69)])
        other = Story(prompt(3), 0)
        other.slot, other.blocks, other.done = 0, [0], 1  # a row of padding
        logits = model_runs.forward(own, memory, [story.rows(1), other.rows(1)], decode=True)
    assert (whole - logits[0]).norm() <= 1e-3 * whole.norm()


def test_other_widths_stay_exact_and_are_told() -> None:
    products, library = WideProducts(Plain()), Plain()
    assert products.notice() == "" == EXACT.notice()
    products = WideProducts(library)
    weights = gather_weights(model_runs.config(), tensors().__getitem__, "cpu", products=products)
    notice = products.notice()
    assert notice.startswith("exact products all the same for ")
    for part in (
        "attn.wq_b: 64 columns are no multiple of 128 (7 layers)",
        "attn.wq_b and attn.indexer.wq_b: 64 columns are no multiple of 128 (5 layers)",
        "ffn.shared_experts.w2: 64 columns are no multiple of 128 (12 layers)",
        "ffn.experts: 64 columns are no multiple of 128 (12 layers)",
    ):
        assert part in notice
    assert "wo_b" not in notice and "shared_experts.w1" not in notice and "engram" not in notice
    own = Model(model_runs.config(), weights, lookup=model_runs.lookup())
    with dispatch.using("reference"):
        model_runs.forward(own, model_runs.caches(), [Story(prompt(9)).rows(9)])
    assert {kind for kind, _, _ in library.calls} == {"linear", "grouped"}


def test_no_weight_is_kept_twice() -> None:
    """Experts take twice what they took, and nothing of what they were made of."""
    enter = Fp4(*quantized.fp4_weight(random(2), 3, 256, 128))
    leave = Fp4(*quantized.fp4_weight(random(3), 3, 128, 128))
    found = WideProducts(Plain()).experts(enter, leave, 10.0, 2, "layers.0.ffn.experts")
    held = [one for one in vars(found).values() if isinstance(one, Per128)]
    assert sum(one.values.nbytes for one in held) == 2 * (enter.values.nbytes + leave.values.nbytes)
    assert not any(isinstance(one, Fp4) for one in vars(found).values())
