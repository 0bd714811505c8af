"""What the sampler's kernels are given, from what is known of the sequences of a step; part of `engine`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, SupportsIndex

from deepinfer._python.integers import MAX_INT32, as_bounded
from deepinfer._python.sequences import SequenceMetadata

_MODES: Final = ("off", "mask", "compact")


def prepare_sampler_inputs(
    metas: Sequence[SequenceMetadata], max_mtp_tokens: SupportsIndex, yoco_mode: str = "off", keep: SupportsIndex = 0
) -> dict[str, Any]:
    """The sampler's inputs of a step, on the host (kernel_spec C.7).

    Args:
        metas: R sequences, all in prefill or all in decode.
        max_mtp_tokens: N, drafts a sequence has at most; 0 without drafting.
        yoco_mode, keep: "off", "mask" or "compact", and the tokens kept (model_spec 3.8): in compact mode the model's
            rows of a chunk are those kept, and with truncation on no log-probabilities of prompts are told.

    Returns:
        numpy arrays, R sequences, Q rows of sampling, P rows of prompts:
        selected_token_indices int32 [Q]: row of the model's output of each sampled one: a chunk's last, or all.
        temperatures, top_ps float32, top_ks int32, seq_seeds uint64, sample_positions int32: [R].
        max_top_logprobs: int.
        golden_output: int32 [Q], -1 where nothing is laid down; None where no sequence has golden tokens left.
        In prefill, where Q = R: prompt_rows, prompt_tokens int32 [P]: rows of the model's output and the tokens that
        follow them; prompt_logprobs_lens int32 [R]: how many are each sequence's. eos_suppression_rows, eos_token_ids
        int32 [E]: sampled rows of last chunks, and the token that they must not give.
        In decode: mtp_first_token_positions, mtp_seqlens_q int32 [R]: first row and rows of each; with N > 0 also
        mtp_info_read_rows int32 [Q], mtp_info_write_slots int32 [R], stop_token_ids int32 [R, 2].

    Raises:
        TypeError, ValueError: an argument is not as said; sequences of both kinds; a step that its sequence cannot
            have.
    """
    for meta in metas:
        if not isinstance(meta, SequenceMetadata):
            raise TypeError(f"metas must be a list of SequenceMetadata, not {type(meta).__name__}")
    drafts = as_bounded(max_mtp_tokens, "max_mtp_tokens", 0)
    kept = as_bounded(keep, "keep", 0)
    if yoco_mode not in _MODES:
        raise ValueError(f"yoco_mode must be off, mask or compact, not {yoco_mode!r}")
    if not metas:
        raise ValueError("metas must not be empty")
    is_prompt = metas[0].is_prompt
    for meta in metas:
        if meta.is_prompt != is_prompt:
            raise ValueError("metas must be all in prefill or all in decode")
        if is_prompt and meta.seqlen_k > meta.seq_data.get_len():
            raise ValueError(f"seqlen_k ({meta.seqlen_k}) is beyond the sequence's {meta.seq_data.get_len()} tokens")
        if not is_prompt and meta.seqlen_q > drafts + 1:
            raise ValueError(f"seqlen_q ({meta.seqlen_q}) is more than max_mtp_tokens + 1 ({drafts + 1})")
    values = _values(metas)
    values |= _prefill(metas, yoco_mode, kept) if is_prompt else _decode(metas, drafts)
    values["golden_output"] = _golden(metas, is_prompt)
    return values


def _int32(values: Sequence[int]) -> Any:
    import numpy as np  # here: the package imports without numpy

    return np.array(values, dtype=np.int32)


def _values(metas: Sequence[SequenceMetadata]) -> dict[str, Any]:
    import numpy as np

    params = [meta.sampling_params for meta in metas]
    return {
        "temperatures": np.array([one.temperature for one in params], dtype=np.float32),
        "top_ps": np.array([one.top_p for one in params], dtype=np.float32),
        "top_ks": _int32([one.top_k for one in params]),
        "seq_seeds": np.array([one.seq_seed for one in params], dtype=np.uint64),
        "max_top_logprobs": max(one.top_logprobs for one in params),
    }


def _prefill(metas: Sequence[SequenceMetadata], yoco_mode: str, keep: int) -> dict[str, Any]:
    selected: list[int] = []
    prompt_rows: list[int] = []
    prompt_tokens: list[int] = []
    lens: list[int] = []
    no_eos: list[int] = []
    eos: list[int] = []
    base = 0
    for place, meta in enumerate(metas):
        data, params = meta.seq_data, meta.sampling_params
        begin = meta.seqlen_k - meta.seqlen_q
        clip = min(max(data.get_len() - keep - begin, 0), meta.seqlen_q - 1) if yoco_mode == "compact" else 0
        if base + meta.seqlen_q - clip > MAX_INT32:
            raise ValueError("the step has more rows than fit 32 bits")
        selected.append(base + meta.seqlen_q - clip - 1)
        # Tokens that follow rows of the chunk: those of the prompt, which ends where a recomputed sequence goes on.
        told = max(min(meta.seqlen_q, data.get_prompt_len() - 1 - begin), 0)
        lens.append(told if params.prompt_logprobs and yoco_mode == "off" else 0)
        prompt_rows += range(base, base + lens[-1])
        prompt_tokens += data.get_token_ids()[begin + 1 : begin + 1 + lens[-1]]
        if params.first_n_token_no_eos == 1 and params.eos_id >= 0 and meta.seqlen_k == data.get_len():
            no_eos.append(place)
            eos.append(params.eos_id)
        base += meta.seqlen_q - clip
    return {
        "selected_token_indices": _int32(selected),
        "sample_positions": _int32([meta.seqlen_k for meta in metas]),
        "prompt_rows": _int32(prompt_rows),
        "prompt_tokens": _int32(prompt_tokens),
        "prompt_logprobs_lens": _int32(lens),
        "eos_suppression_rows": _int32(no_eos),
        "eos_token_ids": _int32(eos),
    }


def _decode(metas: Sequence[SequenceMetadata], drafts: int) -> dict[str, Any]:
    first, rows, total = [], [], 0
    for meta in metas:
        first.append(total)
        total += meta.seqlen_q
        for row in (meta.mtp_info_read_slot * drafts + step for step in range(meta.seqlen_q - 1)):
            if row > MAX_INT32:
                raise ValueError(f"the step reads draft {row}, more than fits 32 bits")
            rows.append(row)
        rows.append(0)
    values = {
        "selected_token_indices": _int32(range(total)),
        "sample_positions": _int32([meta.seqlen_k - meta.seqlen_q + 1 for meta in metas]),
        "mtp_first_token_positions": _int32(first),
        "mtp_seqlens_q": _int32([meta.seqlen_q for meta in metas]),
    }
    if drafts:
        ends = [-1 if meta.sampling_params.ignore_eos else meta.sampling_params.eos_id for meta in metas]
        values["mtp_info_read_rows"] = _int32(rows)
        values["mtp_info_write_slots"] = _int32([meta.mtp_info_write_slot for meta in metas])
        values["stop_token_ids"] = _int32([token for end in ends for token in (end, -1)]).reshape(-1, 2)
    return values


def _golden(metas: Sequence[SequenceMetadata], is_prompt: bool) -> Any:
    rows: list[int] = []
    found = False
    for meta in metas:
        count = 1 if is_prompt else meta.seqlen_q
        left = meta.golden_left()[:count]
        found = found or bool(left)
        rows += left + [-1] * (count - len(left))
    return _int32(rows) if found else None
