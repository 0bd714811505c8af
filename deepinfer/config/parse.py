"""config.json -> ModelConfig. Every problem is found, by the key's name, before any is told (model_spec 1)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from deepinfer import folders
from deepinfer.config.bounds import IDS, NUMBERS, WHOLE
from deepinfer.config.constraints import problems_of
from deepinfer.config.model import (
    Attention,
    Draft,
    Engram,
    HyperConnections,
    Indexer,
    ModelConfig,
    Moe,
    Rope,
    Special,
    Vision,
    Yarn,
)
from deepinfer.errors import ConfigError
from deepinfer.json_text import strict_json

_FIXED = {
    "model_type": "deepseek_v41",
    "architectures": ["DeepseekV41ForCausalLM"],
    "dtype": "bfloat16",
}
_FIXED_QUANTIZATION = {
    "quant_method": "fp8",
    "expert_dtype": "fp4",
    "activation_scheme": "dynamic",
    "weight_block_size": [32, 32],
    "scale_fmt": "ue8m0",
}
_FIXED_TEXT = {
    "num_key_value_heads": 1,
    "hidden_act": "silu",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "qk_rope_head_dim": 64,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "tie_word_embeddings": False,
}
_REQUIRED = object()


class _Reader:
    """One JSON object: takes keys by type and collects what is wrong."""

    def __init__(self, value: object, name: str, problems: list[str]) -> None:
        self.name = name
        self.problems = problems
        self.values: Mapping[str, Any] = value if isinstance(value, Mapping) else {}
        if not isinstance(value, Mapping):
            problems.append(f"{name} must be an object, not {_shown(value)}")

    def fixed(self, expected: Mapping[str, object]) -> None:
        for key, value in expected.items():
            found = self.values.get(key)
            if found != value or isinstance(found, bool) != isinstance(value, bool):
                self._wrong(key, f"must be {json.dumps(value)}", found)

    def whole(self, key: str, default: object = _REQUIRED) -> int:
        least, most = WHOLE[key]
        found = self._get(key, default)
        if not _is_whole(found, least, most):
            self._wrong(key, f"must be a whole number from {least} to {most}", found)
            return least
        return cast("int", found)

    def number(self, key: str, default: object = _REQUIRED) -> float:
        least, most = NUMBERS[key]
        found = self._get(key, default)
        if isinstance(found, bool) or not isinstance(found, int | float) or not least <= found <= most:
            self._wrong(key, f"must be a number from {least:g} to {most:g}", found)
            return least
        return float(found)

    def optional(self, key: str) -> int | None:
        """A whole number, or None where there is none or null."""
        return None if self.values.get(key) is None else self.whole(key)

    def flag(self, key: str, default: bool) -> bool:
        found = self._get(key, default)
        if not isinstance(found, bool):
            self._wrong(key, "must be true or false", found)
            return default
        return found

    def wholes(self, key: str, default: object = _REQUIRED) -> tuple[int, ...]:
        least, most = IDS
        found = self._get(key, default)
        if (
            not isinstance(found, list | tuple)
            or len(found) > most
            or not all(_is_whole(one, least, most) for one in found)
        ):
            self._wrong(key, f"must be a list of at most {most} whole numbers from {least} to {most}", found)
            return ()
        return tuple(found)

    def _get(self, key: str, default: object) -> object:
        found = self.values.get(key)
        if found is None and default is not _REQUIRED:
            return default
        return found

    def _wrong(self, key: str, rule: str, found: object) -> None:
        where = f"{self.name}.{key}" if self.name else key
        self.problems.append(f"{where} {rule}, and is {_shown(found)}" if key in self.values else f"{where} is missing")


def _is_whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _shown(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}…"


def read_config(folder: Path) -> ModelConfig:
    """The configuration of the checkpoint in `folder`.

    Raises:
        ConfigError: there is no config.json, it is no JSON, or something in it is not as it must be.
    """
    path = folder / "config.json"
    if not folders.is_text(folder):
        raise ConfigError(
            f"the name of the folder {str(folder)!a} is no UTF-8, and its files cannot be opened",
            next_step="give the folder another name, or a link to it",
        )
    try:
        values = strict_json(folders.read(path))
    except OSError as problem:
        raise ConfigError(
            f"{path} cannot be read: {problem.strerror}",
            cause="the folder is not a checkpoint" if folders.is_folder(folder) else "there is no such folder",
            next_step="--model takes the folder that holds config.json and the .safetensors files",
        ) from problem
    except ValueError as problem:
        raise ConfigError(
            f"{path} is not JSON that can be used: {problem}", next_step="fetch the checkpoint's config.json again"
        ) from None
    return parse_config(values, str(path))


def parse_config(values: object, name: str = "config.json") -> ModelConfig:
    """The configuration that JSON values state; name: whose they are.

    Raises:
        ConfigError: it lists every problem, or of another model's configuration that it is one.
    """
    problems: list[str] = []
    if isinstance(values, Mapping) and values.get("model_type") not in (None, _FIXED["model_type"]):
        # Another model: what else it has not is no mistake of it.
        _Reader(values, "", problems).fixed({name: _FIXED[name] for name in ("model_type", "architectures")})
    else:
        config = _parse(values, problems)
    if not problems:
        problems = problems_of(config)
    if problems:
        raise ConfigError(
            f"{name} does not describe a model that this engine can run:\n"
            + "\n".join(f"  - {one}" for one in problems),
            next_step="compare it with the config.json of DeepSeek-V4.1-Flash",
        )
    return config


def _parse(values: object, problems: list[str]) -> ModelConfig:
    top = _Reader(values, "", problems)
    top.fixed(_FIXED)
    _Reader(top.values.get("quantization_config"), "quantization_config", problems).fixed(_FIXED_QUANTIZATION)
    text = _Reader(top.values.get("text_config"), "text_config", problems)
    text.fixed(_FIXED_TEXT)
    kv_sources = text.wholes("kv_source_layer_ids")
    draft_layers = text.whole("num_nextn_predict_layers", 0)
    has_vision = "vision_config" in top.values
    return ModelConfig(
        layers=text.whole("num_hidden_layers"),
        hidden=text.whole("hidden_size"),
        vocab_size=text.whole("vocab_size"),
        max_positions=text.whole("max_position_embeddings"),
        rms_eps=text.number("rms_norm_eps"),
        ratios=text.wholes("compress_ratios"),
        kv_sources=kv_sources,
        index_k_sources=text.wholes("index_k_source_layer_ids", kv_sources),
        index_sources=text.wholes("index_source_layer_ids"),
        rope=_rope(text, problems),
        attention=_attention(text),
        indexer=_indexer(text),
        hyper=HyperConnections(
            text.whole("hc_mult"), text.number("hc_eps"), text.whole("hc_sinkhorn_iters"), text.flag("hc_shifted", True)
        ),
        moe=Moe(
            text.whole("n_routed_experts"),
            text.whole("num_experts_per_tok"),
            text.whole("n_shared_experts"),
            text.whole("moe_intermediate_size"),
            text.number("routed_scaling_factor"),
            text.number("swiglu_limit"),
        ),
        engram=_engram(text) if text.values.get("engram_layer_ids") not in (None, []) else None,
        draft=_draft(text, draft_layers) if draft_layers else None,
        vision=_vision(_Reader(top.values["vision_config"], "vision_config", problems)) if has_vision else None,
        image_token_id=top.whole("image_token_id"),
        special=Special(*map(top.optional, ("bos_token_id", "eos_token_id", "pad_token_id"))),
    )


def _rope(text: _Reader, problems: list[str]) -> Rope:
    scaling = text.values.get("rope_scaling")
    yarn = None
    if scaling not in (None, {}):
        inner = _Reader(scaling, "text_config.rope_scaling", problems)
        inner.fixed({key: "yarn" for key in ("type", "rope_type") if key in inner.values})
        yarn = Yarn(
            inner.number("factor"),
            inner.number("beta_fast"),
            inner.number("beta_slow"),
            inner.whole("original_max_position_embeddings"),
        )
    dim = text.whole("qk_rope_head_dim")
    return Rope(dim, text.number("rope_theta"), text.number("compress_rope_theta"), yarn)


def _attention(text: _Reader) -> Attention:
    return Attention(
        text.whole("num_attention_heads"),
        text.whole("head_dim"),
        text.whole("q_lora_rank"),
        text.whole("o_lora_rank"),
        text.whole("o_groups"),
        text.whole("sliding_window"),
        text.flag("use_fp4_sparse_kv", True),
    )


def _indexer(text: _Reader) -> Indexer:
    source = text.values.get("candidate_source_layer_id")
    limited = source is not None
    return Indexer(
        text.whole("index_n_heads"),
        text.whole("index_head_dim"),
        text.whole("index_topk"),
        text.whole("candidate_source_layer_id") if limited else None,
        text.whole("candidate_topk_blocks") if limited else 0,
        text.whole("candidate_block_size") if limited else 0,
    )


def _engram(text: _Reader) -> Engram:
    return Engram(
        text.wholes("engram_layer_ids"),
        text.whole("engram_max_ngram_size"),
        text.whole("engram_vocab_size"),
        text.whole("engram_n_heads"),
        text.whole("engram_head_dim"),
        text.whole("engram_compressed_vocab_size"),
        text.whole("engram_pad_token_id", 2),
    )


def _draft(text: _Reader, layers: int) -> Draft:
    if text.flag("dspark_target_attn_input", True) is not True:
        text.problems.append("text_config.dspark_target_attn_input must be true")
    text.optional("dspark_block_size")  # of no use here, and wrong all the same
    return Draft(
        layers,
        text.wholes("dspark_target_layer_ids"),
        text.whole("dspark_markov_rank"),
        text.whole("dspark_noise_token_id"),
        text.whole("dspark_n_routed_experts"),
        text.whole("dspark_num_experts_per_tok"),
    )


def _vision(vision: _Reader) -> Vision:
    limit = vision.number("max_wh_ratio") if vision.values.get("max_wh_ratio") is not None else None
    return Vision(
        vision.whole("hidden_size"),
        vision.whole("downsample_ratio"),
        vision.whole("patch_size"),
        vision.whole("max_image_tokens"),
        vision.whole("min_pixels"),
        limit,
    )
