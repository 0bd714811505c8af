"""The kernels by family: upstream's factories under their names (kernel_spec A.0), and the model's own."""

from __future__ import annotations

FAMILIES: dict[str, tuple[str, ...]] = {
    "candidate_blocks": (
        "candidate_block_max_tl",
        "get_candidate_compact_lens_tl",
        "restore_candidate_indices_inplace_tl",
    ),
    "compress": ("compress_and_update_state_prefill_tl", "compress_and_update_state_decode_tl"),
    "compute_seqlens_k_zos": ("compute_seqlens_k_zos_tl",),
    "dflash": ("confidence_head_fused_tl", "dflash_input_store_tl"),
    "dflash_copy": ("copy_dflash_decode_input_tl",),
    "flash_mla_utils": ("convert_kv_index_tl",),
    "fused_sample": ("fused_sample_tl",),
    "fused_transform": ("fused_norm_rope_hadamard_cast_store_kvcache_tl",),
    "gather": ("gather_tl",),
    "gather_engram_tokens_zos": ("gather_engram_tokens_zos_tl",),
    "gather_input_ids_zos": ("gather_input_ids_zos_tl",),
    "get_kv_index": ("load_kv_index_tl", "get_fused_dflash_get_input_tl"),
    "image_embed_ops": ("replace_input_embeds_tl", "rgb_pad_to_patches_tl", "batch_downsample_tl"),
    "kv_index_cat": ("kv_index_cat_tl",),
    "load_paged_kv_cache": ("load_paged_kv_cache_tl",),
    "norm": ("norm_tl",),
    "outlier_detection": ("detect_outlier_and_abort_tl",),
    "prepare_cp_mirror": ("prepare_cp_mirror_tl", "yoco_cp_boundary_fused_tl"),
    "prepare_decode_metadata": ("prepare_v4_decode_metadata_tl", "copy_block_tables_tl"),
    "random_sampling": ("random_sampling_tl",),
    "sampler": (
        "prepare_verification_metadata_tl",
        "expand_sampling_params_tl",
        "map_lookup_tl",
        "remap_draft_topk_tl",
        "get_accept_result_tl",
        "finalize_verification_tl",
    ),
    "schedule_mtp_varlen": ("compute_seqlens_q_by_confidence_rates_tl",),
    "state_cache": ("select_state_slice_tl", "load_state_to_cache_tl"),
    "store_kv_cache": ("store_kv_cache_tl",),
    "store_mtp_info": ("store_mtp_info_tl",),
    "structure_output": ("apply_token_bitmask_by_step_inplace_tl",),
    "sum_smaller_probs": ("sum_smaller_probs_tl",),
    "swa_index": ("expand_swa_index_tl",),
}
"""Family (the module's name in ops/, ops/reference/, ops/triton/ and ops/cases/) -> its factories."""

MODEL_FAMILIES: dict[str, tuple[str, ...]] = {
    "activation": ("swiglu_quantize", "quantize_fp8", "quantize_fp4"),
    "engram": ("engram_rows", "engram_gather", "engram_gate"),
    "experts": ("expert_order", "expert_linear", "combine"),
    "gate": ("gate_topk",),
    "hyper": ("hyper_step", "hyper_post", "hyper_leave"),
    "indexer": ("index_logits", "paged_index_logits", "candidate_index_logits", "paged_candidate_index_logits"),
    "linear": ("fp8_linear", "fp8_grouped_linear", "bf16_linear"),
    "per128": ("quantize_per128", "swiglu_per128", "rotate_heads_per128", "regroup_per128", "expert_rows"),
    "rotary": ("rotate", "rotate_heads_quantize"),
    "selection": ("select_topk", "block_maxima"),
    "sparse_mla": ("sparse_attention_prefill", "sparse_attention_decode"),
}
"""The parts of the model that upstream leaves to other libraries; interfaces and names are the project's own."""

ALL_FAMILIES: dict[str, tuple[str, ...]] = FAMILIES | MODEL_FAMILIES

FAMILY_OF: dict[str, str] = {name: family for family, names in ALL_FAMILIES.items() for name in names}
