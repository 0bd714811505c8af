"""The reference's kernels give a row the same bits alone and among others, at widths that leave a vector's rest over.

PyTorch computes the last elements of a tensor with another logarithm and exponential than the rest, so that float32
results of these depend on how many rows there are.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from deepinfer.ops import using
from deepinfer.ops.activation import swiglu_quantize
from deepinfer.ops.compress import compress_and_update_state_decode
from deepinfer.ops.engram import engram_gate
from deepinfer.ops.gate import gate_topk
from deepinfer.ops.hyper import hyper_step
from deepinfer.ops.norm import norm
from deepinfer.ops.rotary import rotate_heads_quantize
from tests.engine.model_runs import single_thread

one_thread = pytest.fixture(autouse=True, scope="module")(single_thread)
ROWS, WIDTH = 29, 96
Tensors = tuple[torch.Tensor, ...]


def drawn(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def hyper(trunk: torch.Tensor, x: torch.Tensor, mixes: torch.Tensor) -> Tensors:
    post, pre, comb = mixes[:, :4].contiguous(), mixes[:, 4:8].contiguous(), mixes[:, 8:].reshape(-1, 4, 4).contiguous()
    fn, base, scale = drawn(24, 4 * WIDTH) * WIDTH**-0.5, drawn(24), drawn(3).abs()
    gain = drawn(WIDTH).bfloat16()
    return tuple(hyper_step(trunk, x, post, comb, pre, fn, base, scale, gain, 1e-20, 1e-6, 20))


def compress(both: torch.Tensor, slots: torch.Tensor) -> Tensors:
    state = drawn(ROWS, 7, 2, 32, seed=5)
    context = torch.full((len(both),), 8, dtype=torch.int32)
    score, latent = both.chunk(2, -1)
    return (compress_and_update_state_decode(score, latent, state, slots, context, 1, 2),)


KERNELS: dict[str, tuple[Callable[..., Tensors], Tensors]] = {
    "gate of 6": (lambda z: gate_topk(z, drawn(6) * 0.05, None, None, 6, 1.5), (drawn(ROWS, 6),)),
    "gate of 12": (lambda z: gate_topk(z, drawn(12) * 0.05, None, None, 3, 1.5), (drawn(ROWS, 12),)),
    "gate of 384": (lambda z: gate_topk(z, drawn(384) * 0.05, None, None, 6, 1.5), (drawn(ROWS, 384),)),
    "swiglu": (
        lambda x, w: swiglu_quantize(x, w.flatten(), 10.0),
        (drawn(ROWS, 2 * WIDTH).bfloat16(), drawn(ROWS, 1).abs()),
    ),
    "norm": (lambda x: (norm(x, drawn(WIDTH).bfloat16(), eps=1e-20),), (drawn(ROWS, WIDTH).bfloat16(),)),
    "hyper": (
        hyper,
        (drawn(ROWS, 4, WIDTH).bfloat16(), drawn(ROWS, WIDTH, seed=2).bfloat16(), drawn(ROWS, 24, seed=3).abs()),
    ),
    "compress": (compress, (drawn(ROWS, 64), torch.arange(ROWS, dtype=torch.int32))),
    "engram": (
        lambda trunk, kv: (engram_gate(trunk, kv, torch.ones(4, WIDTH), 1e-20),),
        (drawn(ROWS, 4, WIDTH).bfloat16(), drawn(ROWS, 5 * WIDTH, seed=2).bfloat16()),
    ),
    "rotary": (
        lambda o, at: rotate_heads_quantize(o, at, drawn(ROWS, 64), 1),
        (drawn(ROWS, 1, 512), torch.arange(ROWS, dtype=torch.int32)),
    ),
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_row_alone_is_the_row_among_others(name: str) -> None:
    kernel, inputs = KERNELS[name]
    with using("reference"):
        together = kernel(*inputs)
        for row in range(ROWS):
            alone = kernel(*(one[row : row + 1].contiguous() for one in inputs))
            for whole, found in zip(together, alone, strict=True):
                assert whole[row : row + 1].view(torch.uint8).equal(found.view(torch.uint8)), row
