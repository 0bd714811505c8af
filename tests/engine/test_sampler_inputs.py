"""prepare_sampler_inputs: what a step's rows are sampled with, by the compiled part and its twin."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

Make = Callable[..., Any]


@pytest.fixture
def meta(implementation: ModuleType) -> Make:
    """A sequence of `prompt` tokens 100, 101, …, and `outputs` tokens 500, 501, …, in a step."""
    engine = implementation.engine

    def make(
        prompt: int,
        q: int,
        k: int,
        *,
        outputs: int = 0,
        read: int = 0,
        write: int = 0,
        golden: Any = None,
        **values: Any,
    ) -> Any:
        data = engine.SequenceData(range(100, 100 + prompt))
        for token in range(500, 500 + outputs):
            data.append(token)
        return engine.SequenceMetadata(
            data,
            engine.SamplingValues(**values),
            is_prompt=not outputs,
            seqlen_q=q,
            seqlen_k=k,
            mtp_info_read_slot=read,
            mtp_info_write_slot=write,
            golden_token_ids=golden,
        )

    return make


def plain(values: dict[str, Any]) -> dict[str, Any]:
    """Arrays as (dtype, list)."""
    return {name: (str(one.dtype), one.tolist()) if hasattr(one, "tolist") else one for name, one in values.items()}


def test_prefill(implementation: ModuleType, meta: Make) -> None:
    """A first chunk of three, a whole prompt of two, and a last chunk of five."""
    metas = [
        meta(10, 3, 3, temperature=0.5, seq_seed=-1),
        meta(2, 2, 2, top_p=0.25, top_k=7, top_logprobs=4),
        meta(9, 5, 9, temperature=0, top_p=0.5, top_k=3),
    ]
    assert plain(implementation.engine.prepare_sampler_inputs(metas, 5)) == {
        "selected_token_indices": ("int32", [2, 4, 9]),
        "temperatures": ("float32", pytest.approx([0.5, 1.0, 1e-5])),
        "top_ps": ("float32", [1.0, 0.25, 1.0]),
        "top_ks": ("int32", [-1, 7, -1]),
        "seq_seeds": ("uint64", [2**64 - 1, 0, 0]),
        "sample_positions": ("int32", [3, 2, 9]),
        "max_top_logprobs": 4,
        "golden_output": None,
        "prompt_rows": ("int32", []),
        "prompt_tokens": ("int32", []),
        "prompt_logprobs_lens": ("int32", [0, 0, 0]),
        "eos_suppression_rows": ("int32", []),
        "eos_token_ids": ("int32", []),
    }


def test_prompt_logprobs_are_of_the_tokens_that_follow(implementation: ModuleType, meta: Make) -> None:
    """A chunk's every row, but the last row of a prompt, which nothing of the prompt follows."""
    prepare = implementation.engine.prepare_sampler_inputs
    metas = [meta(10, 3, 3, prompt_logprobs=True), meta(4, 4, 4), meta(9, 4, 9, prompt_logprobs=True)]
    values = plain(prepare(metas, 0))
    assert values["prompt_logprobs_lens"] == ("int32", [3, 0, 3])
    assert values["prompt_rows"] == ("int32", [0, 1, 2, 7, 8, 9])
    assert values["prompt_tokens"] == ("int32", [101, 102, 103, 106, 107, 108])
    for mode in ("mask", "compact"):
        assert plain(prepare(metas, 0, mode, 140))["prompt_logprobs_lens"] == ("int32", [0, 0, 0]), "off then"


def test_of_a_recomputed_sequence_only_the_prompt_is_told(implementation: ModuleType) -> None:
    """A prompt of four and two outputs, recomputed in chunks of three."""
    engine = implementation.engine
    data = engine.SequenceData([1, 2, 3, 4])
    data.append(50)
    data.append(51)
    params = engine.SamplingValues(prompt_logprobs=True)
    metas = [engine.SequenceMetadata(data, params, is_prompt=True, seqlen_q=3, seqlen_k=k) for k in (3, 6)]
    values = plain(engine.prepare_sampler_inputs(metas, 0))
    assert values["prompt_logprobs_lens"] == ("int32", [3, 0])
    assert values["prompt_tokens"] == ("int32", [2, 3, 4])


def test_the_end_is_suppressed_on_last_chunks(implementation: ModuleType, meta: Make) -> None:
    metas = [
        meta(10, 3, 3, first_n_token_no_eos=1, eos_id=1),
        meta(3, 3, 3, first_n_token_no_eos=1, eos_id=1),
        meta(3, 3, 3, eos_id=1),
        meta(3, 2, 3, first_n_token_no_eos=1, eos_id=7),
        meta(3, 2, 3, first_n_token_no_eos=1),
    ]
    values = plain(implementation.engine.prepare_sampler_inputs(metas, 0))
    assert values["eos_suppression_rows"] == ("int32", [1, 3]) and values["eos_token_ids"] == ("int32", [1, 7])


@pytest.mark.parametrize(
    ("mode", "keep", "selected"),
    [
        ("off", 0, [3, 9]),
        ("mask", 4, [3, 9]),
        ("compact", 4, [0, 4]),  # tokens 4 to 7 of ten kept of a chunk that has 0 to 3: its last; then all of 4 to 7
        ("compact", 7, [0, 6]),  # one of the first chunk
        ("compact", 9, [2, 8]),
        ("compact", 100, [3, 9]),
    ],
)
def test_compact_truncation_drops_rows(
    implementation: ModuleType, meta: Make, mode: str, keep: int, selected: list[int]
) -> None:
    """Chunks of four and of six of prompts of ten."""
    metas = [meta(10, 4, 4), meta(10, 6, 10)]
    values = implementation.engine.prepare_sampler_inputs(metas, 0, mode, keep)
    assert values["selected_token_indices"].tolist() == selected


def test_decode_without_drafts(implementation: ModuleType, meta: Make) -> None:
    metas = [meta(4, 1, 5, outputs=1, seq_seed=3), meta(2, 1, 5, outputs=3, top_logprobs=2)]
    assert plain(implementation.engine.prepare_sampler_inputs(metas, 0)) == {
        "selected_token_indices": ("int32", [0, 1]),
        "temperatures": ("float32", [1.0, 1.0]),
        "top_ps": ("float32", [1.0, 1.0]),
        "top_ks": ("int32", [-1, -1]),
        "seq_seeds": ("uint64", [3, 0]),
        "sample_positions": ("int32", [5, 5]),
        "max_top_logprobs": 2,
        "golden_output": None,
        "mtp_first_token_positions": ("int32", [0, 1]),
        "mtp_seqlens_q": ("int32", [1, 1]),
    }


def test_decode_with_drafts(implementation: ModuleType, meta: Make) -> None:
    """Three drafts from slot 2, none, and two from slot 4; sequences that end at 1, and at nothing."""
    metas = [
        meta(4, 4, 8, outputs=1, read=2, write=2, eos_id=1),
        meta(4, 1, 6, outputs=2, write=7),
        meta(4, 3, 7, outputs=1, read=4, write=4, eos_id=1, ignore_eos=True),
    ]
    values = plain(implementation.engine.prepare_sampler_inputs(metas, 3))
    assert values["selected_token_indices"] == ("int32", list(range(8)))
    assert values["sample_positions"] == ("int32", [5, 6, 5])
    assert values["mtp_first_token_positions"] == ("int32", [0, 4, 5])
    assert values["mtp_seqlens_q"] == ("int32", [4, 1, 3])
    assert values["mtp_info_read_rows"] == ("int32", [6, 7, 8, 0, 0, 12, 13, 0])
    assert values["mtp_info_write_slots"] == ("int32", [2, 7, 4])
    assert values["stop_token_ids"] == ("int32", [[1, -1], [-1, -1], [-1, -1]])


def test_golden_tokens(implementation: ModuleType, meta: Make) -> None:
    prepare = implementation.engine.prepare_sampler_inputs
    golden = [40, 41, 42, 43]
    metas = [meta(4, 3, 7, outputs=1, golden=golden), meta(4, 2, 7, outputs=2), meta(4, 3, 9, outputs=3, golden=golden)]
    assert prepare(metas, 2)["golden_output"].tolist() == [41, 42, 43, -1, -1, 43, -1, -1]
    assert prepare([meta(4, 1, 8, outputs=4, golden=golden)], 2)["golden_output"] is None, "none are left"
    assert prepare([meta(4, 1, 5, outputs=1, golden=[])], 2)["golden_output"] is None
    assert prepare([meta(4, 4, 4, golden=golden), meta(4, 4, 4)], 2)["golden_output"].tolist() == [40, -1]


def test_wrong_steps(implementation: ModuleType, meta: Make) -> None:
    prepare = implementation.engine.prepare_sampler_inputs
    for metas, arguments, message in (
        ([], (0,), "metas must not be empty"),
        ([meta(3, 3, 3), meta(3, 1, 4, outputs=1)], (0,), "all in prefill or all in decode"),
        ([meta(3, 3, 4)], (0,), r"seqlen_k \(4\) is beyond the sequence's 3 tokens"),
        ([meta(3, 3, 6, outputs=1)], (1,), r"seqlen_q \(3\) is more than max_mtp_tokens \+ 1 \(2\)"),
        ([meta(3, 2, 6, outputs=1, read=2**30)], (2,), "reads draft 2147483648, more than fits 32 bits"),
        ([meta(3, 3, 3)], (-1,), "max_mtp_tokens must be 0 to"),
        ([meta(3, 3, 3)], (0, "on"), "yoco_mode must be off, mask or compact, not 'on'"),
        ([meta(3, 3, 3)], (0, "mask", -1), "keep must be 0 to"),
    ):
        with pytest.raises(ValueError, match=message):
            prepare(metas, *arguments)
    for metas in ([None], [3], [meta(3, 3, 3), None]):
        with pytest.raises(TypeError):
            prepare(metas, 0)


def test_the_twin_agrees_everywhere(native_c: ModuleType) -> None:
    from deepinfer import _python

    number = st.integers(0, 12)

    @settings(max_examples=200)
    @given(st.data(), st.booleans(), st.integers(0, 4), st.sampled_from(["off", "mask", "compact"]), number)
    def compare(data: st.DataObject, is_prompt: bool, drafts: int, mode: str, keep: int) -> None:
        steps = data.draw(st.lists(st.tuples(*[number] * 6), min_size=1, max_size=4))
        tops = data.draw(st.floats(0, 1, width=32))

        def outcome(engine: Any) -> Any:
            metas = []
            for prompt, outputs, q, k, slot, golden in steps:
                tokens = engine.SequenceData(range(prompt + 1))
                for token in range(outputs):
                    tokens.append(token)
                params = engine.SamplingValues(
                    temperature=golden / 4, top_p=tops, seq_seed=slot - 5, top_logprobs=q, prompt_logprobs=q > 3,
                    first_n_token_no_eos=k % 3, eos_id=slot - 1, ignore_eos=slot > 6,
                )  # fmt: skip
                rows = 1 + (q if is_prompt else min(q, drafts))
                place = {"seqlen_q": rows, "seqlen_k": min(rows + k, max(prompt + 1 + outputs, rows))}
                slots = {"mtp_info_read_slot": slot, "mtp_info_write_slot": k}
                told = range(golden) if golden % 2 else None
                kind = is_prompt if slot != 12 else not is_prompt
                metas.append(
                    engine.SequenceMetadata(tokens, params, is_prompt=kind, golden_token_ids=told, **place, **slots)
                )
            try:
                return plain(engine.prepare_sampler_inputs(metas, drafts, mode, keep))
            except ValueError as problem:
                return str(problem)

        assert outcome(native_c.engine) == outcome(_python.engine)

    compare()
