"""The list of a checkpoint's tensors (model_spec 2.2)."""

from __future__ import annotations

from deepinfer.config import parse_config
from deepinfer.loading.inventory import inventory
from tests.engine.real_config import real_config


def test_the_real_checkpoint_to_the_byte() -> None:
    tensors = inventory(parse_config(real_config()))
    assert len(tensors) == 96_085
    assert sum(one.bytes for one in tensors.values()) == 510_286_023_000


def test_shapes_that_the_specification_lists() -> None:
    tensors = inventory(parse_config(real_config()))
    for name, shape in {
        "layers.0.hc_attn_fn": (24, 20480),
        "layers.3.attn.wq_b.scale": (1024, 40),
        "layers.0.attn.wo_a.weight": (8192, 4096),
        "layers.36.attn.indexer.wq_b.scale": (128, 40),
        "layers.1.ffn.experts.383.w2.scale": (5120, 72),
        "layers.14.engram.wkv.scale": (800, 192),
        "mtp.2.markov_head.head.weight": (129280, 256),
        "mtp.0.main_proj.scale": (160, 480),
        "aligner.w1.weight": (5120, 9216),
    }.items():
        assert tensors[name].shape == shape
    assert "layers.20.attn.compressor.wgate.weight" not in tensors and "mtp.0.attn.indexer.wk.weight" not in tensors
