"""What each number of config.json may be: far more than any model has, and nothing that a computation would choke on.

Whole numbers become sizes of tensors, loops and 32-bit arguments of kernels, others become float32. Together with
what `constraints` says of their products, these bounds keep everything that follows from a configuration, before a
weight is read or made, to seconds of work.
"""

from __future__ import annotations

LAYERS = 1024
WIDTH = 2**17
VOCABULARY = 2**22
ROUTED = 4096

WHOLE = {
    "image_token_id": (1, VOCABULARY),
    "bos_token_id": (0, VOCABULARY),
    "eos_token_id": (0, VOCABULARY),
    "pad_token_id": (0, VOCABULARY),
    "num_hidden_layers": (1, LAYERS),
    "hidden_size": (1, WIDTH),
    "vocab_size": (2, VOCABULARY),
    "max_position_embeddings": (2, 2**24),
    "num_attention_heads": (1, 4096),
    "head_dim": (1, 2**13),
    "qk_rope_head_dim": (1, 2**13),
    "q_lora_rank": (1, WIDTH),
    "o_lora_rank": (1, WIDTH),
    "o_groups": (1, 4096),
    "sliding_window": (1, 2**16),
    "original_max_position_embeddings": (1, 2**24),
    "index_n_heads": (1, 4096),
    "index_head_dim": (1, 2**13),
    "index_topk": (1, 2**16),
    "candidate_source_layer_id": (0, LAYERS),
    "candidate_topk_blocks": (1, 4096),
    "candidate_block_size": (1, 128),
    "hc_mult": (1, 16),
    "hc_sinkhorn_iters": (1, 1000),
    "n_routed_experts": (1, ROUTED),
    "num_experts_per_tok": (1, ROUTED),
    "n_shared_experts": (1, 64),
    "moe_intermediate_size": (1, WIDTH),
    "engram_max_ngram_size": (2, 64),
    "engram_vocab_size": (2, 2**28),
    "engram_n_heads": (1, 64),
    "engram_head_dim": (1, 2**13),
    "engram_compressed_vocab_size": (1, VOCABULARY),
    "engram_pad_token_id": (0, VOCABULARY),
    "num_nextn_predict_layers": (0, 64),
    "dspark_block_size": (1, 1024),
    "dspark_markov_rank": (1, WIDTH),
    "dspark_noise_token_id": (0, VOCABULARY),
    "dspark_n_routed_experts": (1, ROUTED),
    "dspark_num_experts_per_tok": (1, ROUTED),
    "downsample_ratio": (1, 64),
    "patch_size": (1, 1024),
    "max_image_tokens": (1, 2**24),
    "min_pixels": (1, 2**40),
}
"""Key -> the least and the most."""
NUMBERS = {
    "rms_norm_eps": (1e-30, 1.0),
    "rope_theta": (2.0, 1e12),
    "compress_rope_theta": (2.0, 1e12),
    "factor": (1.0, 1e6),
    "beta_fast": (1e-3, 1e6),
    "beta_slow": (1e-3, 1e6),
    "hc_eps": (1e-30, 1.0),
    "routed_scaling_factor": (1e-6, 1e6),
    "swiglu_limit": (1e-6, 1e6),
    "max_wh_ratio": (1.0, 1e6),
}
IDS = (0, LAYERS)
"""Numbers of layers, and ratios, in lists; a list has no more of them than there may be layers."""
MOST_EXPERTS = 2**17
"""Of all layers together: each has six tensors."""
MOST_TABLES = 2048
"""N-gram tables of all engram layers together: each has a prime number of rows, which has to be found."""
