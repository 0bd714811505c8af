"""The tiny model: the real one in small, with every feature on and deciding something (for tests and trials)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from deepinfer.config import parse_config
from deepinfer.loading.checkpoint import INDEX
from deepinfer.loading.dummy import dummy_tensors
from deepinfer.loading.tiny_tokenizer import write_tokenizer
from deepinfer.loading.write import new_folder, write_shards
from deepinfer.packages import need

VOCABULARY = 512
PROMPT_TOKENS = 700
"""Length of the standard test prompt: longer than window, top-k and candidate blocks together reach."""


def tiny_config() -> dict[str, Any]:
    """config.json of the tiny model.

    Twelve layers of ratios 0, 2 and 1, engram in two of them, two draft layers, three of twelve experts; a window of
    32, 16 of the entries a query, from 64 blocks of 8; rotary embedding stretched from 64 positions on.
    """
    text = {
        "num_hidden_layers": 12,
        "hidden_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-20,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "swiglu_limit": 10.0,
        "tie_word_embeddings": False,
        "head_dim": 512,
        "qk_rope_head_dim": 64,
        "q_lora_rank": 64,
        "o_lora_rank": 64,
        "o_groups": 2,
        "sliding_window": 32,
        "rope_theta": 10000,
        "compress_rope_theta": 160000,
        "rope_scaling": {
            "type": "yarn",
            "factor": 16,
            "beta_fast": 32,
            "beta_slow": 1,
            "original_max_position_embeddings": 64,
        },
        "compress_ratios": [0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 0, 0],
        "kv_source_layer_ids": [2, 4, 6],
        "index_source_layer_ids": [2, 4, 6, 8, 10],
        "index_topk": 16,
        "index_n_heads": 8,
        "index_head_dim": 128,
        "candidate_source_layer_id": 6,
        "candidate_topk_blocks": 64,
        "candidate_block_size": 8,
        "hc_mult": 4,
        "hc_eps": 1e-6,
        "hc_sinkhorn_iters": 20,
        "n_routed_experts": 12,
        "num_experts_per_tok": 3,
        "n_shared_experts": 1,
        "moe_intermediate_size": 64,
        "routed_scaling_factor": 1.5,
        "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "engram_layer_ids": [1, 4],
        "engram_max_ngram_size": 4,
        "engram_vocab_size": 500,
        "engram_n_heads": 4,
        "engram_head_dim": 32,
        "engram_compressed_vocab_size": 431,
        "engram_pad_token_id": 2,
        "num_nextn_predict_layers": 2,
        "dspark_block_size": 5,
        "dspark_target_layer_ids": [9, 10, 11],
        "dspark_target_attn_input": True,
        "dspark_markov_rank": 32,
        "dspark_noise_token_id": 3,
        "dspark_n_routed_experts": 8,
        "dspark_num_experts_per_tok": 2,
    }
    return {
        "architectures": ["DeepseekV41ForCausalLM"],
        "model_type": "deepseek_v41",
        "dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "image_token_id": 500,
        "quantization_config": {
            "quant_method": "fp8",
            "expert_dtype": "fp4",
            "activation_scheme": "dynamic",
            "weight_block_size": [32, 32],
            "scale_fmt": "ue8m0",
        },
        "text_config": text,
    }


def write_tiny(folder: Path, seed: int = 0) -> int:
    """Write the tiny model with its tokenizer into a folder that is not there yet, or empty. Returns its bytes.

    The folder appears whole, or not at all.

    Raises:
        UsageError: there is something in the folder.
        DeepInferError: it cannot be written.
    """
    values = tiny_config()
    config = parse_config(values)
    for name in ("safetensors.torch", "tokenizers"):  # imported before there is anything that would be left half done
        need(name, "writing a checkpoint")
    with new_folder(folder, last=INDEX) as aside:
        (aside / "config.json").write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
        write_tokenizer(aside, VOCABULARY)
        write_shards(aside, dummy_tensors(config, seed), shards=2)
        return sum(file.stat().st_size for file in aside.iterdir())
