"""Dummy weights: calm as trained ones, whatever the configuration (deepinfer.loading.directions)."""

from __future__ import annotations

import pytest
import torch

from deepinfer.config import parse_config
from deepinfer.loading.dequantize import fp4_rows, fp8_blocks
from deepinfer.loading.directions import Axis, axes, gain, kind, matrix
from deepinfer.loading.inventory import FP4, inventory
from deepinfer.reference import Oracle
from tests.engine.model_runs import config, lookup, prompt, single_thread, tensors
from tests.engine.real_config import real_config

one_thread = pytest.fixture(autouse=True, scope="module")(single_thread)


def test_axes_fit_every_matrix_of_the_real_model() -> None:
    own = parse_config(real_config())
    kinds = set()
    for name, spec in inventory(own).items():
        if len(spec.shape) != 2 or not name.endswith(".weight"):
            continue
        output, input_ = axes(own, name)
        rows, columns = spec.shape[0], spec.shape[1] * (2 if spec.dtype == FP4 else 1)
        assert output is None or rows % output.width == 0, name
        assert input_ is None or columns % input_.width == 0, name
        kinds |= {kind(name)} if output or input_ else set()
        assert not name.startswith(("vision.", "aligner.")) or (output, input_) == (None, None), name
    assert kinds >= {"embed", "head", "attn.wo_a", "ffn.w1", "ffn.w2", "engram.wkv", "main_proj"} and len(kinds) == 18


def test_directions_are_shared_where_a_vector_goes_and_only_there() -> None:
    own = config()
    leaves, enters = axes(own, "layers.3.ffn.experts.7.w2.weight")[0], axes(own, "layers.9.attn.wq_a.weight")[1]
    assert leaves == enters == axes(own, "head.weight")[1] == Axis("hidden", 128)
    low = [axes(own, f"layers.{layer}.attn.wq_b.weight")[1] for layer in (3, 4)]
    assert low[0] != low[1] and low[0] == axes(own, "layers.3.attn.indexer.wq_b.weight")[1]
    assert axes(own, "mtp.1.markov_head.embed.weight") == axes(own, "layers.1.engram.embed.weight") == (None, None)


@pytest.mark.parametrize("side_by_side", [1, 3])
def test_a_product_keeps_what_lies_in_the_directions_and_little_of_the_rest(side_by_side: int) -> None:
    x, y = Axis("x", 256), Axis("y", 128)
    first = matrix(torch.Generator().manual_seed(1), 256 * side_by_side, 64, x, None, 0) / gain(64, None)
    second = matrix(torch.Generator().manual_seed(2), 128, 256 * side_by_side, y, x, 0) / gain(256 * side_by_side, x)
    generator = torch.Generator().manual_seed(3)
    signal = torch.randn(100, 64, generator=generator) @ first.T
    rest = torch.randn(signal.shape, generator=generator) * signal.square().mean().sqrt()
    kept, lost = ((one @ second.T).square().mean().sqrt() for one in (signal, rest))
    assert 0.4 < signal.square().mean().sqrt() < 2.5 and 0.4 < kept / signal.square().mean().sqrt() < 2.5
    assert lost < 0.35 * kept  # sqrt(8 / 256) is 0.18
    assert not matrix(torch.Generator().manual_seed(2), 128, 256, y, x, 1).equal(second[:, :256] * gain(256, x))


def test_formats_keep_the_structure() -> None:
    """An expert's and an FP8 weight, dequantised, have few large singular values."""
    held = tensors()
    for weight in (
        fp8_blocks(held["layers.3.attn.wq_a.weight"], held["layers.3.attn.wq_a.scale"]),
        fp4_rows(held["layers.3.ffn.experts.2.w1.weight"], held["layers.3.ffn.experts.2.w1.scale"]),
    ):
        sizes = torch.linalg.svdvals(weight).square()
        assert sizes[:16].sum() > 0.9 * sizes.sum()  # four directions, in four blocks with scales of their own


def test_activations_stay_of_order_one_and_sublayers_add_small_shares() -> None:
    found = Oracle(config(), tensors(), lookup=lookup())(torch.tensor(prompt(60)))
    sizes = [float(trunk.square().mean().sqrt()) for trunk in found.hidden.values()]
    assert all(0.5 < size < 4 for size in sizes), sizes
    for layer in sorted(set(range(config().layers - 1)) - {0, 3}):  # before engram's layers the step is its
        before, after = (found.hidden[one].mean(1) for one in (layer, layer + 1))
        assert 0.005 < (after - before).norm() / before.norm() < 0.2, layer
    assert 1 < found.logits.std() < 4
