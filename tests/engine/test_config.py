"""config.json: what is read of it, and every way in which it can be wrong (model_spec 1)."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.config import Engram, parse_config, read_config
from deepinfer.config.bounds import MOST_TABLES, NUMBERS, WHOLE
from deepinfer.config.engram_hash import hashes
from deepinfer.errors import ConfigError
from tests.engine.real_config import real_config


def test_the_real_model_reads_as_the_layer_table_says() -> None:
    config = parse_config(real_config())
    assert config.first_consumer == 20 and len(config.ratios) == 43
    for layers, ratio, kv, topk in (
        (range(2, 8), 2, 2, 2),
        (range(8, 14), 2, 8, 8),
        (range(14, 20), 2, 14, 14),
        (range(20, 24), 1, 20, 20),
        (range(24, 28), 1, 20, 24),
        (range(36, 40), 1, 20, 36),
    ):
        for layer in layers:
            found = (config.ratios[layer], config.kv_source(layer), config.index_source(layer))
            assert found == (ratio, kv, topk) and config.index_k_source(layer) == kv
    assert [config.candidate_source(layer) for layer in (0, 19, 20, 21, 39)] == [None, None, None, 20, 20]
    assert config.hyper.shifted and config.attention.fp4_cache and config.rope.yarn is not None


def test_engram_hashes_are_those_of_the_real_model() -> None:
    config = parse_config(real_config())
    assert config.engram is not None
    first, second = hashes(config.engram)[1], hashes(config.engram)[14]
    assert (first.primes[0], first.primes[-1], first.rows) == (16000057, 16000463, 384006168)
    assert (second.primes[0], second.primes[-1], second.rows) == (16000477, 16000889, 384016682)
    assert first.multipliers == (76632096046245, 4839876093313, 35959672319349, 73987337458391)
    assert second.multipliers == (67716810739261, 51510806800915, 30921347202721, 82619226485591)
    assert first.offsets[:2] == (0, 16000057) and first.offsets[-1] == first.rows - first.primes[-1]


def test_what_may_be_absent() -> None:
    values = real_config()
    del values["vision_config"]
    text = values["text_config"]
    for key in [key for key in text if key.startswith(("engram_", "dspark_"))]:
        del text[key]
    del text["num_nextn_predict_layers"], text["rope_scaling"]
    text["compress_ratios"] = text["compress_ratios"][:40]
    text["candidate_source_layer_id"] = None
    config = parse_config(values)
    assert config.engram is None and config.draft is None and config.vision is None and config.rope.yarn is None
    assert config.candidate_source(39) is None


def test_of_another_model_it_is_said_that_it_is_one_and_no_more() -> None:
    llama = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "dtype": "float16"}
    with pytest.raises(ConfigError) as refused:
        parse_config(llama)
    assert str(refused.value).splitlines() == [
        "config.json does not describe a model that this engine can run:",
        '  - model_type must be "deepseek_v41", and is "llama"',
        '  - architectures must be ["DeepseekV41ForCausalLM"], and is ["LlamaForCausalLM"]',
        "  next step: compare it with the config.json of DeepSeek-V4.1-Flash",
    ]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"model_type": "llama"}, 'model_type must be "deepseek_v41", and is "llama"'),
        ({"image_token_id": -1}, "image_token_id must be a whole number from 1 to 4194304, and is -1"),
        ({"quantization_config": None}, "quantization_config must be an object, not null"),
        (
            {"text_config": {"hidden_size": "big"}},
            "text_config.hidden_size must be a whole number from 1 to 131072, and is",
        ),
        ({"text_config": {"rms_norm_eps": 0}}, "text_config.rms_norm_eps must be a number from 1e-30 to 1, and is 0"),
        ({"text_config": {"attention_bias": 0}}, "text_config.attention_bias must be false, and is 0"),
        ({"text_config": {"hc_shifted": "yes"}}, "text_config.hc_shifted must be true or false"),
        ({"text_config": {"compress_ratios": [0, 1]}}, "has 2 entries, and there are 40 layers and 3 draft layers"),
        ({"text_config": {"compress_ratios": [0] * 43}}, "at least one layer must have the ratio 1"),
        ({"text_config": {"compress_ratios": [4] + [1] * 39 + [0] * 3}}, "may hold 0, 1 and 2, and holds [4]"),
        ({"text_config": {"kv_source_layer_ids": [8, 2]}}, "kv_source_layer_ids must be ascending"),
        ({"text_config": {"kv_source_layer_ids": [2, 8, 14, 20, 99]}}, "names layer 99, and there are 40"),
        ({"text_config": {"kv_source_layer_ids": [2, 8, 14]}}, "layer 20 has the ratio 1, and its key-value source 14"),
        ({"text_config": {"index_source_layer_ids": [2, 20]}}, "kv_source_layer_ids [8, 14] must be in index_source"),
        ({"text_config": {"hidden_size": 5000}}, "hidden_size must be a multiple of 32"),
        ({"text_config": {"o_groups": 7}}, "o_groups (7) must divide num_attention_heads (64)"),
        ({"text_config": {"num_experts_per_tok": 999}}, "num_experts_per_tok (999) must not exceed"),
        ({"text_config": {"candidate_block_size": 7}}, "candidate_block_size must be 8 or 16, and is 7"),
        ({"text_config": {"candidate_source_layer_id": 21}}, "candidate_source_layer_id 21 must be in index_source"),
        ({"text_config": {"engram_layer_ids": [1, 25]}}, "engram_layer_ids must be below the first layer of ratio 1"),
        ({"text_config": {"dspark_target_layer_ids": [3, 38]}}, "dspark_target_layer_ids must all be below layer 20"),
        ({"text_config": {"dspark_target_attn_input": False}}, "dspark_target_attn_input must be true"),
        ({"text_config": {"rope_scaling": []}}, "text_config.rope_scaling must be an object, not []"),
        (
            {"text_config": {"rope_scaling": {"type": "linear", "factor": 2}}},
            'rope_scaling.type must be "yarn", and is',
        ),
        ({"text_config": {"rope_scaling": {"rope_type": None}}}, 'rope_scaling.rope_type must be "yarn", and is null'),
        ({"text_config": {"engram_layer_ids": 0}}, "engram_layer_ids must be a list of at most 1024 whole numbers"),
        ({"text_config": {"kv_source_layer_ids": [2] * 1025}}, "kv_source_layer_ids must be a list of at most 1024"),
        (
            {"text_config": {"dspark_block_size": "x"}},
            'dspark_block_size must be a whole number from 1 to 1024, and is "x"',
        ),
        ({"eos_token_id": 129280}, "eos_token_id (129280) is not in the vocabulary of 129280"),
        ({"eos_token_id": "1"}, 'eos_token_id must be a whole number from 0 to 4194304, and is "1"'),
        ({"image_token_id": 129280}, "image_token_id (129280) is not in the vocabulary"),
        ({"text_config": {"engram_pad_token_id": 129280}}, "engram_pad_token_id (129280) is not in the vocabulary"),
        ({"text_config": {"engram_compressed_vocab_size": 129281}}, "engram_compressed_vocab_size (129281) must not"),
        ({"text_config": {"n_routed_experts": 4096}}, "may have 131072 experts (n_routed_experts), and have 164224"),
        (
            {"text_config": {"engram_max_ngram_size": 64, "engram_n_heads": 64}},
            "may have 2048 tables (engram_layer_ids",
        ),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], text: str) -> None:
    check_refusal(change, text)


def owner(key: str) -> str:
    """The part of the real configuration that has a key; factor and its like stand in rope_scaling."""
    values = real_config()
    return next((part for part in ("text_config", "vision_config") if key in values[part]), "")


@pytest.mark.parametrize("key", [*WHOLE, *NUMBERS])
def test_every_number_has_bounds_that_are_told(key: str) -> None:
    whole = key in WHOLE
    least, most = WHOLE[key] if whole else NUMBERS[key]
    for value in (
        least - 1,
        most * 2,
        10**400,
        -(10**400),
        True,
        "1",
        [],
        *((1.5, 1e308) if whole else (math.nan, 1e-320)),
    ):
        values = real_config()
        scaling = values["text_config"]["rope_scaling"]
        part = scaling if key in scaling else values[owner(key)] if owner(key) else values
        part[key] = value
        with pytest.raises(ConfigError) as told:
            parse_config(values)
        assert f"{key} must be" in str(told.value) and len(str(told.value)) < 400, value


def test_the_largest_hashes_are_found_and_found_once() -> None:
    """Primes that no table shares, however small the tables are to be."""
    engram = Engram((1, 2), max_ngram=33, vocab_size=2, heads=32, head_dim=32, compressed_vocab=9, pad_token=0)
    primes = [prime for one in hashes(engram).values() for prime in one.primes]
    assert len(primes) == len(set(primes)) == MOST_TABLES and max(primes) == 17863
    assert hashes(engram) is hashes(engram)


def check_refusal(change: dict[str, Any], text: str) -> None:
    values = real_config()
    for key, value in change.items():
        if isinstance(value, dict):
            values[key].update(value)
        else:
            values[key] = value
    with pytest.raises(ConfigError) as told:
        parse_config(values)
    assert text in str(told.value) and "next step" in str(told.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [("[" * 200_000, "nested too deeply"), ('{"dtype": "bfloat16", "dtype": "x"}', '"dtype" twice')],
)
def test_a_file_that_python_would_read_otherwise(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=f"is not JSON that can be used: it .*{why}"):
        read_config(tmp_path)


def test_everything_wrong_is_told_at_once() -> None:
    values = real_config()
    values["dtype"] = "float16"
    values["text_config"]["head_dim"] = 0
    del values["text_config"]["vocab_size"]
    with pytest.raises(ConfigError) as told:
        parse_config(values)
    for text in ('dtype must be "bfloat16"', "text_config.head_dim", "text_config.vocab_size is missing"):
        assert text in str(told.value)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 200) | st.floats(allow_nan=True) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=300)
@given(data=st.data())
def test_no_damage_is_anything_but_a_configuration_or_an_error(data: st.DataObject) -> None:
    values = real_config()
    for _ in range(data.draw(st.integers(1, 3))):
        part = data.draw(st.sampled_from(["", "text_config", "vision_config", "quantization_config"]))
        target = values.get(part) if part else values
        if isinstance(target, dict) and target:
            target[data.draw(st.sampled_from(sorted(target)))] = data.draw(_JSON)
    try:
        parse_config(values)
    except ConfigError as told:
        assert str(told)


def test_files_that_are_none(tmp_path: Path) -> None:
    for folder, text in (
        (tmp_path / "absent", "there is no such folder"),
        (tmp_path, "the folder is not a checkpoint"),
    ):
        with pytest.raises(ConfigError, match=text):
            read_config(folder)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="is not JSON that can be used"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_bytes(b"\xff\xfe{")
    with pytest.raises(ConfigError, match="is not JSON that can be used"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(real_config()))
    assert read_config(tmp_path).hidden == 5120
