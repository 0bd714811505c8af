"""`--gemm deep_gemm` on a Hopper GPU: DeepGEMM's products, the model on them, its drift and its graphs.

The model is the tiny one in widths that every product takes (`plain_library`), so that nothing stays exact.
"""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch

from deepinfer import LLM, SamplingParams
from deepinfer.cache.pool import Caches
from deepinfer.errors import DeepInferError
from deepinfer.exactness import Comparison, compare, distance, standard_prompt
from deepinfer.model.batch import RowSpec
from deepinfer.model.deep_gemm import DeepGemm, require
from deepinfer.model.model import Model
from deepinfer.model.per128 import Per128, WideProducts, blocks
from deepinfer.ops import dispatch
from deepinfer.ops.experts import expert_order
from deepinfer.ops.per128 import PerWide, expert_rows, quantize_per128, rotate_heads_per128
from tests.engine.model_runs import BLOCKS, Story, prompt
from tests.engine.plain_library import Plain, wide_config, wide_model, wide_subject

pytestmark = pytest.mark.gpu
PRODUCT = 3e-3
"""What a product may be off by, relative L2: results are rounded to bfloat16, and the tensor cores cut their sums."""
DRIFT = 5e-3
"""What the tiny model's logits may be off by after twelve layers, with the oracle's choices, relative L2; 1.3e-3 was
measured. What enters a layer may be off by twice as much.
"""
FREE = 2e-2
"""The same of two runs that choose experts and entries themselves."""


@pytest.fixture(autouse=True, scope="module")
def usable() -> None:
    try:
        require(torch.device("cuda"))
    except DeepInferError as problem:
        pytest.skip(problem.what)


@functools.cache
def library() -> DeepGemm:
    return DeepGemm()


@functools.cache
def model() -> Model:
    return wide_model(WideProducts(library()), "cuda")


def noise(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).cuda()


def weight(*shape: int) -> Per128:
    parts = [blocks(one * 10.0 ** (index % 3)) for index, one in enumerate(noise(*shape, seed=2).view(-1, *shape[-2:]))]
    values = torch.stack([one.values.view(torch.uint8) for one in parts]).view(torch.float8_e4m3fn)
    scales = torch.stack([one.scales for one in parts])
    return Per128(values, scales) if len(shape) > 2 else Per128(values[0], scales[0])


def results(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    return tuple(torch.full(shape, torch.nan, dtype=torch.bfloat16, device="cuda") for _ in range(2))  # type: ignore[return-value]


@pytest.mark.parametrize("rows", [1, 3, 60, 150])
@pytest.mark.parametrize(("outputs", "columns"), [(640, 384), (2048, 128)])
def test_a_linear_product(rows: int, outputs: int, columns: int) -> None:
    x, own = quantize_per128(noise(rows, columns)), weight(outputs, columns)
    found, expected = results(rows, outputs)
    library().linear(x, own, found)
    Plain().linear(x, own, expected)
    assert distance(found, expected.cpu()) <= PRODUCT


@pytest.mark.parametrize("rows", [1, 3, 150])
def test_a_product_by_groups(rows: int) -> None:
    table = torch.cat((torch.ones(9, 32), torch.zeros(9, 32)), -1).cuda()
    x = rotate_heads_per128(noise(rows, 4, 512), torch.zeros(rows, dtype=torch.int32, device="cuda"), table, 2)
    own = weight(2, 64, 1024)
    found, expected = results(rows, 2, 64)
    library().grouped(x, own, found)
    Plain().grouped(x, own, expected)
    assert distance(found, expected.cpu()) <= PRODUCT


@pytest.mark.parametrize("alignment", [64, 128])
@pytest.mark.parametrize(("rows", "experts"), [(1, 12), (150, 12), (150, 5), (0, 12)])
def test_a_product_of_experts(rows: int, experts: int, alignment: int) -> None:
    """Experts without rows among those with many; with 5 of 12 the others get none."""
    ids = torch.randint(0, experts, (rows, 3), generator=torch.Generator().manual_seed(3), dtype=torch.int32).cuda()
    order, offsets = expert_order(ids, 12)
    ends, choices = expert_rows(order, offsets, alignment)
    x, own = quantize_per128(noise(max(rows, 1), 128), choices, 3), weight(12, 256, 128)
    found, expected = results(len(choices), 256)
    library().experts(x, own, ends, alignment, max(rows * 3 // 12, 1), found)
    real = choices >= 0
    assert int(real.sum()) == rows * 3
    if rows:
        clean = PerWide(x.values.clone(), x.scales.contiguous().T.contiguous().T)
        clean.values.view(torch.uint8)[~real] = 0
        Plain().experts(clean, own, ends, alignment, 1, expected)
        assert distance(found[real], expected[real].cpu()) <= PRODUCT


@functools.cache
def compared() -> Comparison:
    subject = wide_subject(library(), "cuda")
    with dispatch.using("triton"):
        return compare(subject, standard_prompt(512, 300), chunk=150, decoded=3)


def test_drift_is_bounded() -> None:
    found = compared()
    print(f"drift {found.error:.1e}, noise {found.noise.relative:.1e}")
    assert 0 < found.error <= DRIFT
    for layer in range(12):
        assert found.hidden_error(found.forced, layer) <= 2 * DRIFT
    assert found.same_tokens(found.forced) >= 0.95


def caches() -> Caches:
    found = Caches.allocate(wide_config(), "cuda", blocks=BLOCKS, slots=12)
    found.blocks_buffer.fill_(0xFF)
    found.slots_buffer.fill_(0xFF)
    return found


def forward(memory: Caches, rows: list[RowSpec], *, decode: bool = False) -> torch.Tensor:
    with dispatch.using(dispatch.Settings("triton", strict=True)):
        return model().forward(model().batch(rows, decode=decode), memory)


def run(tokens: list[int], prefilled: int) -> torch.Tensor:
    memory, story = caches(), Story(tokens)
    logits = forward(memory, [story.rows(prefilled)])
    while story.done < len(tokens):
        logits = forward(memory, [story.rows(1)], decode=True)
    return logits[-1]


def test_two_runs_give_the_same_bits() -> None:
    tokens = prompt(150)
    assert run(tokens, 149).equal(run(tokens, 149))


def test_a_decoded_token_is_near_a_prefilled_one() -> None:
    whole, decoded = run(prompt(150), 150), run(prompt(150), 147)
    print(f"decode against prefill: {distance(decoded, whole.cpu()):.1e}, the same bits: {decoded.equal(whole)}")
    assert distance(decoded, whole.cpu()) <= FREE


def test_alone_and_in_a_batch_are_near() -> None:
    memory = caches()
    stories = [Story(prompt(length, seed=length), index) for index, length in enumerate((150, 60, 3))]
    for story in stories:
        forward(memory, [story.rows(len(story.tokens) - 1, "none")])
    logits = forward(memory, [story.rows(1) for story in stories], decode=True)
    for story, found in zip(stories, logits, strict=True):
        alone = run(story.tokens, len(story.tokens) - 1)
        print(f"alone against in a batch: {distance(found, alone.cpu()):.1e}, the same bits: {found.equal(alone)}")
        assert distance(found, alone.cpu()) <= FREE


def test_a_decode_step_can_be_captured_and_replayed() -> None:
    tokens = prompt(150)
    eager = run(tokens, 147)
    memory, story = caches(), Story(tokens)
    forward(memory, [story.rows(147)])
    forward(memory, [story.rows(1)], decode=True)
    first = model().batch([story.rows(1)], decode=True)
    with dispatch.using(dispatch.Settings("triton", strict=True)):
        model().forward(first, memory)  # compiles, and writes what the replay writes again
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = model().forward(first, memory)
    graph.replay()
    following = model().batch([story.rows(1)], decode=True)
    for name in ("token_ids", "positions", "sequences", "ngrams", "slots", "block_tables", "key_lens", "row_ends"):
        getattr(first, name).copy_(getattr(following, name))
    graph.replay()
    assert logits[-1].equal(eager)


def test_the_tiny_checkpoint_answers_and_tells_what_stays_exact(tiny_folder: Path) -> None:
    llm = LLM(tiny_folder, device="cuda", gemm="deep_gemm", max_num_seqs=4, max_model_len=256)
    assert llm.gemm == "deep_gemm" and "ffn.experts: 64 columns are no multiple of 128" in llm.gemm_notice
    assert llm.gemm_notice in repr(llm)
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    first, again = (llm.generate(["The quick brown fox", "Once upon"], params) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        assert len(one.outputs[0].token_ids) == 6 and one.outputs[0].token_ids == other.outputs[0].token_ids
