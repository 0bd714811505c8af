"""Cases of the verification itself: `get_accept_result_tl` and `finalize_verification_tl` (kernel_spec A.3)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import product

import torch

from deepinfer.ops.case import Argument, Call, Case
from deepinfer.ops.tolerance import Tolerance

VOCABULARY = 129280
_SUM = Tolerance(absolute=1e-5, relative=1e-5)


@dataclass(frozen=True)
class Batch:
    """R requests of 1 to max_steps rows each, and rows and requests of none after them."""

    ftp: torch.Tensor
    seqlen_q: torch.Tensor
    row_to_req: torch.Tensor
    local_step: torch.Tensor
    is_verify: torch.Tensor

    @property
    def q(self) -> int:
        """Query rows."""
        return self.row_to_req.shape[0]

    @property
    def live(self) -> torch.Tensor:
        """[q] bool: rows of a request."""
        return (self.row_to_req >= 0) & (self.row_to_req < self.ftp.shape[0])


def batch(generator: torch.Generator, r: int, max_steps: int, padding: int = 0) -> Batch:
    """A batch with `padding` rows, whose request is -1 or far too large, and as many requests without rows."""
    lengths = torch.randint(1, max_steps + 1, (r,), dtype=torch.int32, generator=generator)
    starts = lengths.cumsum(0, dtype=torch.int32) - lengths
    requests = torch.arange(r, dtype=torch.int32).repeat_interleave(lengths)
    steps = torch.arange(requests.shape[0], dtype=torch.int32) - starts[requests.long()]
    verify = steps + 1 < lengths[requests.long()]
    nobody = torch.tensor([-1, 998244353], dtype=torch.int32).repeat(padding)[:padding]

    def padded(value: torch.Tensor, fill: int) -> torch.Tensor:
        return torch.nn.functional.pad(value, (0, padding), value=fill)

    requests = torch.cat([requests, nobody])
    return Batch(padded(starts, -1), padded(lengths, 0), requests, padded(steps, 0), padded(verify, 1))


def tokens(generator: torch.Generator, *shape: int, high: int = VOCABULARY) -> torch.Tensor:
    """int32 token ids."""
    return torch.randint(0, high, shape, dtype=torch.int32, generator=generator)


def chance(generator: torch.Generator, share: float, *shape: int) -> torch.Tensor:
    """bool, true for about a share of the places."""
    return torch.rand(shape, generator=generator) < share


def _accept(generator: torch.Generator, *, r: int, max_steps: int, golden: bool, padding: int, outside: bool) -> Call:
    rows = batch(generator, r, max_steps, padding)
    pool = tokens(generator, 2 * rows.q + 3)
    pool[chance(generator, 0.1, pool.shape[0])] = -1
    read = torch.randperm(pool.shape[0], generator=generator)[: rows.q].int()
    if outside:
        read[::3], read[1::5] = -2, pool.shape[0]
    given = torch.where(chance(generator, 0.5, rows.q), pool[read.long() % pool.shape[0]], tokens(generator, rows.q))
    given[chance(generator, 0.3, rows.q)] = -1
    candidates = tokens(generator, rows.q)
    arguments = [
        Argument("raw_accept", chance(generator, 0.85, rows.q)),
        Argument("golden", given if golden else candidates),
        Argument("draft_token_ids_pool", pool),
        Argument("read_rows", read),
        Argument("candidate_token_ids", candidates),
        Argument("is_verify", rows.is_verify),
        Argument("ftp", rows.ftp),
        Argument("row_to_req", rows.row_to_req),
        Argument("token_ids_out", torch.full((rows.q,), -77, dtype=torch.int32), output=True),
        Argument("accept_out", chance(generator, 0.5, rows.q), output=True),
        Argument("is_final_out", chance(generator, 0.5, rows.q), output=True),
    ]
    return Call(arguments, (golden,))


def _finalize(
    generator: torch.Generator, *, r: int, max_steps: int, k: int | None, ssp: bool, confidence: bool, padding: int,
    counters: int = 0, stops: int = 2,
) -> Call:  # fmt: skip
    rows = batch(generator, r, max_steps, padding)
    q, requests, num_steps = rows.q, rows.ftp.shape[0], counters or max_steps
    # Accepted prefixes as get_accept_result gives them: every request accepts a random number of its drafts.
    kept = (torch.rand(requests, generator=generator) * rows.seqlen_q).int()
    live = rows.live
    ends = torch.zeros_like(rows.row_to_req)
    ends[live] = kept[rows.row_to_req[live].long()]
    pool = torch.rand(2 * q + 3, generator=generator)
    read = torch.randint(-1, pool.shape[0] + 1, (q,), dtype=torch.int32, generator=generator)
    stop = tokens(generator, requests, stops, high=30)
    stop[chance(generator, 0.3, requests, stops)] = -1
    width = 0 if k is None else k

    def junk(*shape: int, dtype: torch.dtype = torch.float32, wanted: bool = True) -> torch.Tensor | None:
        return torch.full(shape, -77, dtype=dtype) if wanted else None

    def wide(value: torch.Tensor) -> torch.Tensor | None:
        return None if k is None else value[:, :width]

    i32, tops = torch.int32, k is not None
    inputs = {
        "effective_accept": live & (rows.local_step < ends),
        "is_final_input": live & (rows.local_step == ends),
        "effective_token_ids": tokens(generator, q, high=32) - 1,
        "token_logprobs": -torch.rand(q, generator=generator),
        "sum_smaller_probs": torch.rand(q, generator=generator) if ssp else None,
        "top_logprobs": wide(-torch.rand(q, width + 3, generator=generator)),
        "top_token_ids": wide(tokens(generator, q, width + 5)),
        "ftp": rows.ftp,
        "seqlen_q": rows.seqlen_q,
        "row_to_req": rows.row_to_req,
        "is_verify": rows.is_verify,
        "accept_probs": torch.rand(q, generator=generator) if confidence else None,
        "confidence_pool": pool if confidence else None,
        "mtp_info_read_rows": read if confidence else None,
        "stop_token_ids": stop if confidence else None,
    }
    outputs = {
        "last_valid_offset": junk(requests, dtype=i32),
        "num_generated_tokens": junk(num_steps, dtype=i32),
        "num_verified_tokens": junk(num_steps, dtype=i32),
        "batch_confidence_error": junk(1),
        "emitted_stop_token": chance(generator, 0.5, requests) if confidence else None,
        "sampled_token_ids": junk(requests, dtype=i32),
        "sampled_token_logprobs": junk(requests),
        "sampled_sum_smaller_probs": junk(requests, wanted=ssp),
        "sampled_top_logprobs": junk(requests, width, wanted=tops),
        "sampled_top_token_ids": junk(requests, width, dtype=i32, wanted=tops),
        "verified_token_ids": junk(q, dtype=i32),
        "verified_token_logprobs": junk(q),
        "verified_sum_smaller_probs": junk(q, wanted=ssp),
        "verified_top_logprobs": junk(q, width, wanted=tops),
        "verified_top_token_ids": junk(q, width, dtype=i32, wanted=tops),
    }
    arguments = [Argument(name, value) for name, value in inputs.items()]
    for name, value in outputs.items():
        arguments.append(
            Argument(name, value, True, _SUM) if name == "batch_confidence_error" else Argument(name, value, True)
        )
    return Call(arguments, (ssp, confidence, num_steps, stops if confidence else 0))


def cases() -> list[Case]:
    """Up to 33 drafts, padding rows and requests after the live ones, all optional parts, top values of any width."""
    found = []
    for name, r, max_steps, padding, outside in (
        ("1", 60, 1, 0, False),
        ("3", 59, 3, 0, False),
        ("6", 59, 6, 0, False),
        ("34", 9, 34, 0, False),
        ("padded", 2, 3, 3, False),
        ("outside", 30, 4, 2, True),
        ("none", 0, 3, 0, False),
        ("all-padding", 0, 3, 8, False),
        ("decode", 259, 34, 5, True),
    ):
        for golden in (False, True):
            make = partial(_accept, r=r, max_steps=max_steps, golden=golden, padding=padding, outside=outside)
            suffix = "-golden" if golden else ""
            case = Case(
                "get_accept_result_tl", f"accept-{name}{suffix}", make, large=name == "decode", engine=name == "6"
            )
            found.append(case)
    for confidence, ssp, k, max_steps in product((False, True), (False, True), (None, 0, 64, 1000), (1, 3, 5)):
        make = partial(_finalize, r=259, max_steps=max_steps, k=k, ssp=ssp, confidence=confidence, padding=0)
        name = f"finalize-{max_steps}-k{k}{'-ssp' * ssp}{'-confidence' * confidence}"
        found.append(Case("finalize_verification_tl", name, make, large=True))
    for name, r, max_steps, k, ssp, confidence, padding, counters, stops in (
        ("decode", 9, 6, None, False, True, 0, 0, 2),
        ("decode-top", 5, 6, 20, False, True, 0, 0, 2),
        ("decode-wide-top", 4, 6, 1000, False, True, 0, 0, 2),
        ("engine", 256, 6, None, False, True, 0, 0, 2),
        ("engine-top", 256, 6, 20, False, True, 0, 0, 2),
        ("engine-wide-top", 256, 6, 1000, False, True, 0, 0, 2),
        ("all", 7, 4, 70, True, True, 0, 0, 3),
        ("bare", 7, 4, None, False, False, 0, 0, 0),
        ("ssp", 7, 1, 0, True, False, 0, 0, 0),
        ("34", 3, 34, None, False, True, 0, 0, 2),
        ("many-rows", 20, 34, None, False, True, 0, 5, 1),
        ("few-counters", 9, 6, None, False, False, 0, 2, 0),
        ("padded", 3, 3, 8, False, True, 4, 0, 2),
        ("no-stops", 3, 3, None, False, True, 0, 0, 0),
        ("none", 0, 3, 8, True, True, 0, 0, 2),
        ("all-padding", 0, 3, 8, True, True, 3, 0, 2),
    ):
        make = partial(
            _finalize, r=r, max_steps=max_steps, k=k, ssp=ssp, confidence=confidence, padding=padding,
            counters=counters, stops=stops,
        )  # fmt: skip
        engine = name.startswith(("decode", "engine"))
        large = name.startswith("engine")
        found.append(Case("finalize_verification_tl", f"finalize-{name}", make, large=large, engine=engine))
    return found
