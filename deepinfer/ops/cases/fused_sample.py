"""Cases of `fused_sample_tl` (kernel_spec A.1), and how two backends' results are compared."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from deepinfer.ops.case import Argument, Call, Case, Results
from deepinfer.ops.cases.padding import padded
from deepinfer.ops.fused_sample import DRAFT_SEED_OFFSET
from deepinfer.ops.reference import philox
from deepinfer.ops.reference.exponential import exp
from deepinfer.ops.reference.fused_sample import judge_rows
from deepinfer.ops.reference.inverse_cdf import draw, fixed_point
from deepinfer.ops.tolerance import Tolerance, difference

INF, NAN = float("inf"), float("nan")
VOCABULARY = 129280
_CLOSE = Tolerance(absolute=1e-5, relative=3e-7)
_NEAR_TOP_P = 1e-4
_SEEDS = (0, 1, 12345, 2**63 - 1, 2**63, 2**64 - 1)
Rows = tuple[torch.Tensor, list[float], list[float], list[int]]
"""Logits [Q, V], temperatures, top_p and top_k."""


def judge(expected: Results, got: Results, *, seed_offset: int, sample: bool, reject: bool) -> str:
    """What a tolerance cannot say: equal kept sets but for tokens right at top_p, log-probabilities within 1e-5 where
    the sets are equal, and on either side tokens and verdicts that follow, bit by bit, from its own log-probabilities.
    """
    mine, other = expected["logprobs"], got["logprobs"]
    wrong = mine.isnan().any(1)
    if not torch.equal(wrong, other.isnan().all(1)) or not torch.equal(wrong, mine.isnan().all(1)):
        return (
            f"rows of NaN: {other.isnan().any(1).nonzero()[:, 0].tolist()}, expected {wrong.nonzero()[:, 0].tolist()}"
        )
    differing = (mine > -INF) != (other > -INF)
    for row in differing.any(1).nonzero()[:, 0].tolist():
        if beyond := _beyond_top_p(expected, row, differing[row]):
            return f"kept set of row {row}: {beyond}"
    same = ~differing.any(1)
    if text := difference("logprobs", mine[same], other[same], _CLOSE):
        return text
    first, second = (torch.where(differing, -INF, side)[~same].log_softmax(1) for side in (mine, other))
    if text := difference("logprobs of shared tokens", first, second, _CLOSE):
        return text
    for side, results in (("expected side", expected), ("examined side", got)) if sample else ():
        if text := _follows(results, seed_offset, reject):
            return f"{side}: {text}"
    return ""


def _beyond_top_p(results: Results, row: int, differing: torch.Tensor) -> str:
    """'' if all tokens that differ lie at the edge of top-p in the descending order, where rounding decides."""
    logits = results["logits"][row]
    order = logits.argsort(descending=True, stable=True)
    share = torch.softmax(logits.double() / results["temperatures"][row].double().clamp(min=1e-5), 0)
    after = torch.empty_like(share)
    after[order] = share[order].cumsum(0)
    before = after - share
    top_p = results["top_p"][row].double()
    far = differing & ((before > top_p + _NEAR_TOP_P) | (after < top_p - _NEAR_TOP_P))
    return "" if not far.any() else f"{int(far.sum())} tokens differ away from top_p, first {int(far.nonzero()[0, 0])}"


def _follows(results: Results, seed_offset: int, reject: bool) -> str:
    logprobs, positions = results["logprobs"], results["sample_positions"]
    seeds = results["seq_seeds"].view(torch.int64) + seed_offset
    if not reject:
        tokens = draw(fixed_point(exp(logprobs)), seeds, philox.subsequence(positions, 0))
        return difference("candidate_token_ids", tokens, results["candidate_token_ids"])
    read_rows = results.get("mtp_info_read_rows", torch.arange(len(positions)))
    pool, drafts = results["last_nextn_token_logprobs"], results["last_next_n_token_ids"]
    verdict = judge_rows(logprobs, results["logits"], seeds, positions, results["is_verify"], pool, read_rows, drafts)
    pairs = (
        ("accept_result_verify", verdict.accept),
        ("candidate_token_ids", verdict.candidates),
        ("accept_probs", verdict.accept_probs),
        ("draft_selected_logprobs", verdict.draft_selected),
    )
    return next(filter(None, (difference(name, value, results[name]) for name, value in pairs)), "")


def call_of(
    rows: Rows,
    generator: torch.Generator,
    *,
    sample: bool = True,
    reject: bool = True,
    tag_offset: int = 0,
    identity: bool = False,
) -> Call:
    """A call on these rows: every second one verifies a draft; drafts of -1, beyond the vocabulary, beyond the pool."""
    values, temperatures, top_p, top_k = rows
    count, width = values.shape
    pool_rows = count + (0 if identity else 3)
    pool = torch.log_softmax(torch.randn(pool_rows, width, generator=generator) * 2, 1)
    pool[torch.rand(pool.shape, generator=generator) < 0.25] = -INF
    drafts = torch.randint(0, width, (pool_rows,), generator=generator, dtype=torch.int32)
    drafts[1::4], drafts[2::9] = -1, width
    read_rows = torch.randint(0, pool_rows, (count,), generator=generator, dtype=torch.int32)
    read_rows[5::11], read_rows[6::11] = -1, pool_rows
    seeds = torch.tensor([_SEEDS[row % len(_SEEDS)] for row in range(count)], dtype=torch.uint64)
    positions = torch.randint(0, 2**31 - 1, (count,), generator=generator, dtype=torch.int32)
    positions[: count // 2] %= 4096
    limits = torch.full((count + 1, 3), 7.0)
    limits[:count, 0], limits[:count, 1] = torch.tensor(temperatures), torch.tensor(top_p)
    junk_int, junk = torch.full((count,), 77, dtype=torch.int32), torch.full((count,), 77.0)

    def given(name: str, value: torch.Tensor, wanted: bool, output: bool = False) -> Argument:
        return Argument(name, value if wanted else None, output=output, tolerance=None)

    arguments = [
        Argument("logits", padded(values)),
        Argument("temperatures", limits[:count, 0]),
        Argument("top_p", limits[:count, 1]),
        Argument("top_k", torch.tensor(top_k, dtype=torch.int32)),
        given("sample_positions", positions, sample),
        given("seq_seeds", seeds, sample),
        given("is_verify", torch.arange(count) % 2 == 0, reject),
        Argument("logprobs", padded(torch.full_like(values, 77.0)), output=True, tolerance=None),
        given("candidate_token_ids", junk_int, sample, output=True),
        Argument("last_nextn_token_logprobs", padded(pool) if reject else padded(values)),
        given("mtp_info_read_rows", read_rows, reject and not identity),
        given("last_next_n_token_ids", drafts, reject),
        given("accept_result_verify", torch.ones(count, dtype=torch.bool), reject, output=True),
        given("draft_selected_logprobs", junk, reject, output=True),
        given("accept_probs", junk.clone(), reject, output=True),
        Argument("seed_offset", tag_offset),
        Argument("lse_workspace", torch.full((count, 2), 77.0), output=True, tolerance=None),
    ]
    chosen = partial(judge, seed_offset=tag_offset, sample=sample, reject=reject)
    return Call(arguments, (width, sample, reject), judge=chosen)


def mixed(generator: torch.Generator, count: int, width: int, p: float | None = None, k: int | None = None) -> Rows:
    """Rows of normal, three-valued and nearly empty logits, with limits of every kind or the given ones."""
    values = torch.randn(count, width, generator=generator) * 2
    values[1::3] = torch.randint(-1, 2, values[1::3].shape, generator=generator).float()
    few = torch.rand(values[2::6].shape, generator=generator).argsort(1)[:, 16:] if width <= 8192 else None
    if few is not None and few.numel():
        values[2::6] = values[2::6].scatter(1, few, -INF)
    temperatures = (torch.rand(count, generator=generator) * 1.5 + 0.1).tolist()
    top_p = [(0.95, 0.5, 1.0, 2.2e-16)[row % 4] if p is None else p for row in range(count)]
    top_k = [(-1, width * 3 // 4, 5, 0, 20)[row % 5] if k is None else k for row in range(count)]
    return values, temperatures, top_p, top_k


def wrong_rows(generator: torch.Generator) -> Rows:
    """Rows without an answer beside rows with one; one of them has a single token left."""
    values = torch.randn(8, 50, generator=generator)
    values[1, 17], values[2, 3], values[4], values[5, 1:] = NAN, INF, -INF, -INF
    values[6] = torch.finfo(torch.float32).min
    return values, [1.0, 1.0, 1.0, NAN, 1.0, 1.0, 1.0, 0.7], [1.0] * 4 + [0.9, 0.9, 0.9, NAN], [-1, 3] * 4


def limits_at_their_ends(generator: torch.Generator) -> Rows:
    """top_p 0 and 1, top_k -1, 0, 1, V and V + 1, temperatures 0, 1e-6 and 1e-5; ties of -0 and +0."""
    values = torch.randn(10, 37, generator=generator)
    values[8] = torch.tensor([-0.0, 0.0] * 18 + [-0.0])
    values[9] = torch.where(torch.arange(37) % 3 == 0, -0.0, 0.0)
    temperatures = [1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1e-6, 1e-5, 1.0, 1.0]
    top_p = [0.0, 1.0, 1.0, 1.0, 1.0, 0.9, 1.0, 1.0, 0.75, 0.75 + 0.5 / 37]
    return values, temperatures, top_p, [-1, 0, 1, 37, 38, -1, -1, 5, 27, -1]


def two_chunks(generator: torch.Generator) -> Rows:
    """A row longer than a chunk: all but token 0 masked, a chunk of -inf, more ties than are collected, a far tail."""
    values = torch.randn(6, 8300, generator=generator) * 2
    values[1, 1:], values[2, 8192:], values[3] = -INF, -INF, 0.5
    values[3, 100] = 1.0
    values[5, 7] = 60.0
    return values, [1.0] * 6, [0.95, 0.95, 0.5, 1.0, 1.0, 1.0], [-1, 128, -1, 8250, 300, 40]


def cases() -> list[Case]:
    """Every mode on small rows, the edges, and the vocabulary of the real model."""
    found = []

    def add(name: str, rows: Callable[[torch.Generator], Rows], *, large: bool = False, **how: bool | int) -> None:
        engine = bool(how.pop("engine", False))
        found.append(
            Case("fused_sample_tl", name, lambda g: call_of(rows(g), g, **how), large=large, engine=engine)  # type: ignore[arg-type]
        )

    add("mixed-33", partial(mixed, count=6, width=33))
    add("mixed-1000-sample", partial(mixed, count=5, width=1000), reject=False)
    add("mixed-257-logprobs", partial(mixed, count=5, width=257), sample=False, reject=False)
    add("mixed-4096-drafts", partial(mixed, count=3, width=4096), reject=False, tag_offset=DRAFT_SEED_OFFSET)
    add("mixed-5000-identity", partial(mixed, count=3, width=5000), identity=True)
    add("no-rows", partial(mixed, count=0, width=64))
    add("wrong-rows", wrong_rows)
    add("wrong-rows-sample", wrong_rows, reject=False)
    add("ends-of-limits", limits_at_their_ends, reject=False)
    add("two-chunks", two_chunks)
    for reject in (True, False):
        kind = "verify" if reject else "sample"
        add(f"vocabulary-{kind}", partial(mixed, count=64, width=VOCABULARY, p=0.95, k=128), large=True, reject=reject,
            engine=True)  # fmt: skip
        add(f"vocabulary-256-{kind}", partial(mixed, count=256, width=VOCABULARY), large=True, reject=reject)
        add(f"1024-{kind}", partial(mixed, count=1536, width=1024), large=True, reject=reject)
    add("vocabulary-logprobs", partial(mixed, count=64, width=VOCABULARY), large=True, sample=False, reject=False,
        engine=True)  # fmt: skip
    add("vocabulary-identity", partial(mixed, count=64, width=VOCABULARY), large=True, identity=True)
    return found
