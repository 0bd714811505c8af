"""The oracle against public code: the modules of transformers' deepseek_v4 that mean the same (model_spec 11.1).

V4 is the predecessor. Where it differs, the difference is taken out: no norm of the query heads, no position bias,
an expert's weight after its down projection. All in fp32 with random weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from deepinfer.config import Attention as AttentionSizes
from deepinfer.config import HyperConnections, Indexer, ModelConfig, Moe, Rope, Yarn
from deepinfer.config.rope import frequencies
from deepinfer.reference.attention import Attention, Shared, index_logits
from deepinfer.reference.layers import Routing, experts, mix, mixed, post, rotate, route
from deepinfer.reference.precision import Precision
from deepinfer.reference.weights import Weights

public = pytest.importorskip("transformers.models.deepseek_v4.modeling_deepseek_v4", reason="transformers is absent")
from transformers.models.deepseek_v4.configuration_deepseek_v4 import DeepseekV4Config  # noqa: E402

TOKENS, HIDDEN = 23, 96
IDEAL = Precision(rounded=False, sums="fp32")


def public_config(rate: int = 2) -> Any:
    config = DeepseekV4Config(
        vocab_size=64, hidden_size=HIDDEN, num_hidden_layers=2, num_attention_heads=8, head_dim=128,
        partial_rotary_factor=0.5, q_lora_rank=40, o_groups=4, o_lora_rank=24, sliding_window=8, hc_mult=4,
        hc_eps=1e-6, rms_norm_eps=1e-20, n_routed_experts=16, num_experts_per_tok=4, moe_intermediate_size=32,
        routed_scaling_factor=1.5, swiglu_limit=10.0, index_n_heads=4, index_head_dim=128,
        layer_types=["sliding_attention", "heavily_compressed_attention"],
        compress_rates={"heavily_compressed_attention": rate, "compressed_sparse_attention": 4},
        mlp_layer_types=["moe", "moe"], max_position_embeddings=1048576,
        rope_parameters={
            "rope_type": "yarn", "factor": 16.0, "beta_fast": 32, "beta_slow": 1,
            "original_max_position_embeddings": 65536,
        },
    )  # fmt: skip
    config._attn_implementation = "eager"
    return config


def our_config(ratio: int) -> ModelConfig:
    return ModelConfig(
        layers=2, hidden=HIDDEN, vocab_size=64, max_positions=1048576, rms_eps=1e-20, ratios=(0, ratio),
        kv_sources=(1,), index_k_sources=(1,), index_sources=(1,),
        rope=Rope(64, 10000.0, 160000.0, Yarn(16, 32, 1, 65536)),
        attention=AttentionSizes(8, 128, 40, 24, 4, 8, True),
        indexer=Indexer(4, 128, 64, None, 0, 0), hyper=HyperConnections(4, 1e-6, 20, True),
        moe=Moe(16, 4, 1, 32, 1.5, 10.0), engram=None, draft=None, vision=None, image_token_id=1,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    state = torch.get_rng_state()
    torch.manual_seed(7)
    yield
    torch.set_rng_state(state)


def random_weights(module: Any, scale: float = 0.1) -> Any:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_().mul_(scale)
    return module.eval()


def close(found: torch.Tensor, expected: torch.Tensor, limit: float = 1e-5) -> None:
    assert found.shape == expected.shape and float((found - expected).detach().abs().max()) <= limit


def test_rotary_embedding_bit_for_bit_near_and_far() -> None:
    module = public.DeepseekV4RotaryEmbedding(public_config())
    positions = torch.tensor([0, 1, 2, 77, 4097, 131_000])
    x = torch.randn(len(positions), 8, 128)
    for kind, compressed in (("main", False), ("compress", True)):
        cos, sin = module(x, positions[None], layer_type=kind)
        angles = positions.float()[:, None] * frequencies(our_config(2).rope, compressed=compressed)
        scaling = getattr(module, f"{kind}_attention_scaling")
        close(angles.cos() * scaling, cos[0], 0.0)
        for inverse in (False, True):
            ours = rotate(IDEAL, x, positions, frequencies(our_config(2).rope, compressed=compressed), inverse=inverse)
            theirs = public.apply_rotary_pos_emb(x[None], cos / scaling, (-sin if inverse else sin) / scaling, 2)
            close(ours, theirs[0])


def test_hyper_connections() -> None:
    module = random_weights(public.DeepseekV4HyperConnection(public_config()), 0.5)
    trunk = torch.randn(TOKENS, 4, HIDDEN)
    names = {f"hc_{part}": getattr(module, part).detach() for part in ("fn", "base", "scale")}
    found = mix(IDEAL, our_config(2).hyper, trunk, Weights(names, torch.float32), "hc", 1e-20)
    theirs = module(trunk[None])
    close(found.post, theirs[0][0])
    close(found.comb, theirs[1][0])
    close(mixed(IDEAL, trunk, found.pre), theirs[2][0])
    x = torch.randn(TOKENS, HIDDEN)
    stream = theirs[0][0][..., None] * x[:, None] + theirs[1][0].transpose(-1, -2) @ trunk
    close(post(IDEAL, trunk, x, found), stream)


def test_router_and_experts() -> None:
    config = public_config()
    block = random_weights(public.DeepseekV4SparseMoeBlock(config, 0), 0.3)
    block.gate.e_score_correction_bias.normal_().mul_(0.3)
    y = torch.randn(TOKENS, HIDDEN)
    tensors = {"ffn.gate.weight": block.gate.weight, "ffn.gate.bias": block.gate.e_score_correction_bias}
    for part, name in (("w1", "gate_proj"), ("w3", "up_proj"), ("w2", "down_proj")):
        tensors[f"ffn.shared_experts.{part}.weight"] = getattr(block.shared_experts, name).weight
    for expert in range(16):
        gate, up = block.experts.gate_up_proj[expert].chunk(2)
        for part, weight in (("w1", gate), ("w3", up), ("w2", block.experts.down_proj[expert])):
            tensors[f"ffn.experts.{expert}.{part}.weight"] = weight
    w = Weights({name: tensor.detach() for name, tensor in tensors.items()}, torch.float32)
    routing, weights = route(IDEAL, y, w, "ffn", 4, None)
    _, their_weights, their_ids = block.gate(y[None])
    order = routing.ids.sort(-1)
    theirs = their_ids.sort(-1)
    assert order.values.equal(theirs.values)
    close(weights.gather(-1, order.indices) * 1.5, their_weights.gather(-1, theirs.indices))
    found = experts(IDEAL, our_config(2).moe, y, Routing(routing.ids, routing.scores), weights, w, "ffn")
    close(found, block(y[None])[0], 2e-5 * float(found.detach().abs().max()))


def attention_weights(module: Any, name: str) -> dict[str, torch.Tensor]:
    tensors = {
        "wq_a.weight": module.q_a_proj.weight, "q_norm.weight": module.q_a_norm.weight,
        "wq_b.weight": module.q_b_proj.weight, "wkv.weight": module.kv_proj.weight,
        "kv_norm.weight": module.kv_norm.weight, "attn_sink": module.sinks,
        "wo_a.weight": module.o_a_proj.weight, "wo_b.weight": module.o_b_proj.weight,
    }  # fmt: skip
    if module.compressor is not None:
        tensors["compressor.wkv.weight"] = module.compressor.kv_proj.weight
        tensors["compressor.wgate.weight"] = module.compressor.gate_proj.weight
        tensors["compressor.norm.weight"] = module.compressor.kv_norm.weight
        # Every entry is chosen (64 a query, and there are at most 23): the indexer's own weights do not matter.
        tensors["indexer.wq_b.weight"] = torch.ones(4 * 128, 40)
        tensors["indexer.weights_proj.weight"] = torch.ones(4, HIDDEN)
        tensors["indexer.wk.weight"] = torch.ones(128, 128)
        tensors["indexer.k_norm.weight"] = torch.ones(128)
    return {f"{name}.attn.{key}": value.detach() for key, value in tensors.items()}


@pytest.mark.parametrize(("layer", "ratio"), [(0, 2), (1, 2), (1, 1)])
def test_attention_over_window_and_compressed_entries(layer: int, ratio: int) -> None:
    config = public_config(ratio)
    module = random_weights(public.DeepseekV4Attention(config, layer), 0.15)
    module.q_b_norm = torch.nn.Identity()
    if module.compressor is not None:
        module.compressor.position_bias.data.zero_()
    y, positions = torch.randn(TOKENS, HIDDEN), torch.arange(TOKENS)
    rotary = public.DeepseekV4RotaryEmbedding(config)
    embeddings = {
        kind: tuple(one / getattr(rotary, f"{kind}_attention_scaling") for one in rotary(y, positions[None], kind))
        for kind in ("main", "compress")
    }
    if module.compressor is not None:
        module.compressor.rotary_emb.compress_attention_scaling = 1.0
    back = positions[:, None] - positions[None]
    bias = torch.zeros(1, 1, TOKENS, TOKENS).masked_fill((back < 0) | (back >= 8), float("-inf"))
    theirs = module(
        y[None], position_embeddings=embeddings, position_ids=positions[None], attention_mask=bias, cache=None
    )[0][0]
    ours = our_config(ratio)
    w = Weights(attention_weights(module, f"layers.{layer}"), torch.float32)
    found = Attention(ours, IDEAL, w, layer, f"layers.{layer}")(y, positions, Shared(), forced=None, window_from=0)
    close(found, theirs, 1e-5 * max(1.0, float(theirs.detach().abs().max())))


def test_index_scores() -> None:
    module = random_weights(public.DeepseekV4IndexerScorer(public_config()))
    q, keys, y = torch.randn(TOKENS, 4, 128), torch.randn(11, 128), torch.randn(TOKENS, HIDDEN)
    weights = IDEAL.matmul(y, module.weights_proj.weight.detach())
    ours = index_logits(IDEAL, q, weights, keys) * 128**-0.5 * 4**-0.5
    close(ours, module(q[None], keys[None], y[None])[0].detach())
