"""Reference of `fused_sample_tl` (kernel_spec A.1, B.1 to B.3)."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.reference import philox
from deepinfer.ops.reference.exponential import exp
from deepinfer.ops.reference.inverse_cdf import ONE, draw, fixed_point

LOWEST_TEMPERATURE = 1e-5
DRAFT_PENALTY = 5e-5
_NO_TARGET = 2**40


@dataclass(frozen=True)
class Softmax:
    """Rows as log-softmax of logits / temperature: value(x) = (x + shift) * inverse + offset. wrong: rows without."""

    inverse: torch.Tensor
    shift: torch.Tensor
    offset: torch.Tensor
    wrong: torch.Tensor

    def value(self, logits: torch.Tensor) -> torch.Tensor:
        return (logits + self.shift[:, None]) * self.inverse[:, None] + self.offset[:, None]


def row_sums(values: torch.Tensor) -> torch.Tensor:
    """Sum of each row, the same bits whatever other rows there are: PyTorch adds up a lone one in a part a thread."""
    return torch.cat((values, values)).sum(1)[:1] if len(values) == 1 else values.sum(1)


def softmax_of(logits: torch.Tensor, temperatures: torch.Tensor, top_p: torch.Tensor) -> Softmax:
    """The log-softmax of every row; a wrong one has a NaN, +inf, no finite logit, or parameters that are no numbers."""
    inverse = 1.0 / torch.where(temperatures < LOWEST_TEMPERATURE, LOWEST_TEMPERATURE, temperatures)
    largest = logits.amax(1)
    shift = -torch.where(largest == -torch.inf, 0.0, largest)
    total = row_sums(((logits + shift[:, None]) * inverse[:, None]).exp())
    wrong = ~((total > 0) & (total < torch.inf) & (temperatures < torch.inf)) | top_p.isnan()
    return Softmax(inverse, shift, -total.log(), wrong)


def kept_of(logits: torch.Tensor, rows: Softmax, top_p: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """[Q, V] bool: the shorter of the prefixes of the descending order that top-p and top-k ask for."""
    width = logits.shape[1]
    by_mass, by_count = top_p < 1, (top_k > 0) & (top_k < width)
    mass_target = torch.where(by_mass, (top_p.clamp(0, 1) * float(ONE)).long() + 1, _NO_TARGET)
    count_target = torch.where(by_count, top_k.long(), _NO_TARGET)
    masses = (rows.value(logits).exp() * float(ONE)).nan_to_num(0.0).long()
    ordered, order = logits.sort(dim=1, descending=True, stable=True)
    counts = torch.arange(1, width + 1, device=logits.device)
    reached = (masses.gather(1, order).cumsum(1) >= mass_target[:, None]) | (counts >= count_target[:, None])
    first = torch.where(reached.any(1), reached.int().argmax(1), width - 1)
    threshold = torch.where(reached.any(1), ordered.gather(1, first[:, None])[:, 0], -torch.inf)
    above, tied = logits > threshold[:, None], logits == threshold[:, None]
    mass_left = (mass_target - (masses * above).sum(1)).float() / float(ONE)
    ties = torch.minimum(count_target - above.sum(1), torch.tensor(width, device=logits.device))
    each = rows.value(threshold[:, None])[:, 0].exp()
    by_division = (mass_left / each).clamp(max=width).ceil().nan_to_num(width).long()
    ties = torch.where(by_mass & (each > 0), torch.minimum(ties, by_division), ties)
    return above | (tied & (tied.cumsum(1) <= ties[:, None]))


def log_probabilities(
    logits: torch.Tensor, temperatures: torch.Tensor, top_p: torch.Tensor, top_k: torch.Tensor
) -> tuple[torch.Tensor, Softmax]:
    """Filtered and renormalised log-probabilities, NaN in wrong rows; and the rows before filtering."""
    rows = softmax_of(logits, temperatures, top_p)
    kept = kept_of(logits, rows, top_p, top_k)
    filtered = (top_p < 1) | ((top_k > 0) & (top_k < logits.shape[1]))
    mass = row_sums(rows.value(logits).double().exp() * kept).float()
    offset = torch.where(filtered, rows.offset - mass.log(), rows.offset)
    values = Softmax(rows.inverse, rows.shift, offset, rows.wrong).value(logits)
    values = torch.where(kept, values, -torch.inf)
    return torch.where(rows.wrong[:, None], torch.nan, values), rows


@dataclass(frozen=True)
class Verdict:
    """What sampling makes of log-probabilities; see `fused_sample_tl` for the fields."""

    candidates: torch.Tensor
    accept: torch.Tensor
    draft_selected: torch.Tensor
    accept_probs: torch.Tensor


def judge_rows(
    logprobs: torch.Tensor,
    logits: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    is_verify: torch.Tensor,
    pool: torch.Tensor,
    read_rows: torch.Tensor,
    drafts: torch.Tensor,
) -> Verdict:
    """Draw or verify every row of finished log-probabilities (kernel_spec B.2, B.3): the same bits on every device."""
    wrong = logprobs.isnan().any(1)
    inside = (read_rows >= 0) & (read_rows < pool.shape[0])
    read = torch.where(inside, read_rows, 0).long()
    draft_row = torch.where(inside[:, None], pool[read], -torch.inf)
    draft = torch.where(inside, drafts[read], -1).long()
    draft = torch.where(draft < logprobs.shape[1], draft, -1)
    column = draft.clamp(min=0)[:, None]
    selected = torch.where(draft >= 0, draft_row.gather(1, column)[:, 0], -torch.inf)
    target = logprobs.gather(1, column)[:, 0]
    uniform = philox.uniform(philox.word(seeds, philox.subsequence(positions, 2), 0))
    accept = (draft >= 0) & (target > -torch.inf) & (uniform < exp((target - selected).clamp(max=0)))
    probabilities = exp(logprobs)
    residual = fixed_point(probabilities - exp(draft_row - DRAFT_PENALTY))
    chances = (1 - residual.sum(1).float() / float(ONE)).clamp(min=0)
    again = draw(residual, seeds, philox.subsequence(positions, 1))
    again = torch.where(again < 0, (logits == logits.amax(1)[:, None]).int().argmax(1).int(), again)
    fresh = draw(fixed_point(probabilities), seeds, philox.subsequence(positions, 0))
    candidates = torch.where(is_verify, torch.where(accept, draft.int(), again), fresh)
    return Verdict(
        torch.where(wrong, -1, candidates),
        (accept | ~is_verify) & ~wrong,
        selected,
        torch.where(wrong, 0.0, torch.where(is_verify, chances, 1.0)),
    )


@functools.cache
def fused_sample_tl(vocab_size: int, do_sample: bool, do_reject_sampling: bool) -> Kernel:
    """Filter, renormalise, and draw or verify; arguments as kernel_spec A.1 lists them."""

    def run(
        logits: torch.Tensor,
        temperatures: torch.Tensor,
        top_p: torch.Tensor,
        top_k: torch.Tensor,
        sample_positions: torch.Tensor | None,
        seq_seeds: torch.Tensor | None,
        is_verify: torch.Tensor | None,
        logprobs: torch.Tensor,
        candidate_token_ids: torch.Tensor | None,
        last_nextn_token_logprobs: torch.Tensor,
        mtp_info_read_rows: torch.Tensor | None,
        last_next_n_token_ids: torch.Tensor | None,
        accept_result_verify: torch.Tensor | None,
        draft_selected_logprobs: torch.Tensor | None,
        accept_probs: torch.Tensor | None,
        seed_offset: int,
        lse_workspace: torch.Tensor,
    ) -> None:
        if logits.shape[0] == 0:
            return
        values, rows = log_probabilities(logits, temperatures, top_p, top_k)
        logprobs.copy_(values)
        lse_workspace.copy_(torch.stack((rows.offset, rows.shift), 1))
        if not do_sample:
            return
        assert sample_positions is not None and seq_seeds is not None and candidate_token_ids is not None
        seeds = seq_seeds.view(torch.int64) + seed_offset
        if not do_reject_sampling:
            masses = fixed_point(exp(values))
            candidate_token_ids.copy_(draw(masses, seeds, philox.subsequence(sample_positions, 0)))
            return
        assert is_verify is not None and last_next_n_token_ids is not None and accept_result_verify is not None
        assert draft_selected_logprobs is not None and accept_probs is not None
        if mtp_info_read_rows is None:
            mtp_info_read_rows = torch.arange(logits.shape[0], device=logits.device)
        verdict = judge_rows(
            values,
            logits,
            seeds,
            sample_positions,
            is_verify,
            last_nextn_token_logprobs,
            mtp_info_read_rows,
            last_next_n_token_ids,
        )
        candidate_token_ids.copy_(verdict.candidates)
        accept_result_verify.copy_(verdict.accept)
        draft_selected_logprobs.copy_(verdict.draft_selected)
        accept_probs.copy_(verdict.accept_probs)

    return run
