"""A step's sampling inputs on the device: the containers (kernel_spec C.3), filled by the compiled part (C.7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from deepinfer import native
from deepinfer.cache.prefix import Truncation
from deepinfer.model.transfer import to_device
from deepinfer.ops.fused_sample import LogitsTransformInputs, SamplingKernelInputs
from deepinfer.sampling.params import SamplingParams

if TYPE_CHECKING:
    from deepinfer._python.sequences import SamplingValues, SequenceMetadata


@dataclass(frozen=True)
class PromptLogprobInputs:
    """P rows of prompts whose next tokens' log-probabilities are wanted.

    prompt_tokens: int32 [P], the tokens that follow. prompt_logprobs_lens: how many rows are each sequence's; enabled:
    whether it has any. logits: parameters of each of the P rows.
    """

    prompt_tokens: torch.Tensor
    prompt_logprobs_lens: list[int]
    enabled: list[bool]
    logits: LogitsTransformInputs


@dataclass(frozen=True)
class PrefillSamplingInputs:
    """Of prefill alone. eos_suppression_rows, eos_token_ids: int32 [E], sampled rows and what they must not give."""

    prompt_logprobs: PromptLogprobInputs | None
    eos_suppression_rows: torch.Tensor
    eos_token_ids: torch.Tensor


@dataclass(frozen=True)
class DecodeSamplingInputs:
    """First row and number of rows of each sequence: int32 [R]."""

    mtp_first_token_positions: torch.Tensor
    mtp_seqlens_q: torch.Tensor


@dataclass(frozen=True)
class SpeculativeSamplingInputs:
    """Of decode with drafts. nextn_tokens: N. mtp_info_read_rows: int32 [Q], the pool's row of each row's draft.
    mtp_info_write_slots: int32 [R]. stop_token_ids: int32 [R, 2], -1 for none.
    """

    nextn_tokens: int
    mtp_info_read_rows: torch.Tensor
    mtp_info_write_slots: torch.Tensor
    stop_token_ids: torch.Tensor


@dataclass(frozen=True)
class DriverSamplingInputs:
    """What the sampler needs. kernel: by sequence. golden_output: int32 [Q], -1 where nothing is laid down."""

    kernel: SamplingKernelInputs
    max_top_logprobs: int
    golden_output: torch.Tensor | None
    prefill: PrefillSamplingInputs | None
    speculative: SpeculativeSamplingInputs | None


@dataclass(frozen=True)
class SamplerInputs:
    """selected_token_indices: int32 [Q], rows of the model's output to sample. selected_prompt_indices: int32 [P]."""

    selected_token_indices: torch.Tensor
    selected_prompt_indices: torch.Tensor | None
    decode: DecodeSamplingInputs | None
    driver: DriverSamplingInputs


def values_of(params: SamplingParams, *, completion: int = 0, eos_id: int = -1) -> SamplingValues:
    """A request's parameters as the kernels take them, of its completion of that number.

    They are those that `Sampler` takes: greedy keeps one token (`SamplingParams.limits`). SamplingValues by itself
    follows kernel_spec B.1, which turns top_k off there.
    """
    temperature, top_p, top_k = params.limits
    values: SamplingValues = native.engine.SamplingValues(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seq_seed=params.seed_in_effect + completion,
        top_logprobs=params.logprobs or 0,
        prompt_logprobs=params.prompt_logprobs is not None,
        first_n_token_no_eos=int(params.min_tokens > 0),
        eos_id=eos_id,
        ignore_eos=params.ignore_eos,
    )
    return values


def prepare_sampler_inputs(
    metas: Sequence[SequenceMetadata],
    max_mtp_tokens: int,
    yoco_mode: Truncation = "off",
    keep: int = 0,
    *,
    device: torch.device | str,
) -> SamplerInputs:
    """The sampler's inputs of a step, on the device; a GPU gets them in one transfer, which nothing waits for.

    Args and errors: those of `deepinfer._python.sampler_inputs.prepare_sampler_inputs`.
    """
    values = native.engine.prepare_sampler_inputs(metas, max_mtp_tokens, yoco_mode, keep)
    lens = values.pop("prompt_logprobs_lens", None)
    asked = lens is not None and bool(lens.any())
    if asked:
        for name in ("temperatures", "top_ps", "top_ks"):
            values[f"prompt_{name}"] = np.repeat(values[name], lens)
    moved = to_device({name: one for name, one in values.items() if isinstance(one, np.ndarray)}, torch.device(device))

    def logits(prefix: str = "") -> LogitsTransformInputs:
        return LogitsTransformInputs(*(moved[f"{prefix}{name}"] for name in ("temperatures", "top_ps", "top_ks")))

    prefill = speculative = decode = None
    if lens is not None:
        told = None
        if asked:
            counts = lens.tolist()
            told = PromptLogprobInputs(moved["prompt_tokens"], counts, [one > 0 for one in counts], logits("prompt_"))
        prefill = PrefillSamplingInputs(told, moved["eos_suppression_rows"], moved["eos_token_ids"])
    else:
        decode = DecodeSamplingInputs(moved["mtp_first_token_positions"], moved["mtp_seqlens_q"])
        if max_mtp_tokens:
            names = ("mtp_info_read_rows", "mtp_info_write_slots", "stop_token_ids")
            speculative = SpeculativeSamplingInputs(max_mtp_tokens, *(moved[name] for name in names))
    kernel = SamplingKernelInputs(logits(), moved["seq_seeds"], moved["sample_positions"])
    driver = DriverSamplingInputs(kernel, values["max_top_logprobs"], moved.get("golden_output"), prefill, speculative)
    rows = moved["prompt_rows"] if asked else None
    return SamplerInputs(moved["selected_token_indices"], rows, decode, driver)
