"""Acceptance of drafts and what a step emits (kernel_spec A.3, #34 and #35), against a walk in plain Python."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.ops.case import Case
from deepinfer.ops.cases.verification import cases
from deepinfer.ops.dispatch import using
from deepinfer.ops.execution import run
from deepinfer.ops.sampler import (
    FinalizedVerification,
    finalize_verification,
    get_accept_result,
    prepare_verification_metadata,
)

SMALL = [case for case in cases() if not case.large]


def ints(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def bools(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.bool)


def walk(
    lengths: list[int], accept: list[bool], tokens: list[int], golden: list[int], drafts: list[int]
) -> tuple[list[int], list[bool], list[bool]]:
    """Requests one after another, their rows one after another, until a draft does not hold."""
    out, accepted, final = [], [], []
    row = 0
    for length in lengths:
        going = True
        for step in range(length):
            holds, token = accept[row], tokens[row]
            if golden[row] != -1:
                holds, token = golden[row] == drafts[row], golden[row]
            passes = going and step + 1 < length and holds
            out.append(token)
            accepted.append(passes)
            final.append(going and not passes)
            going, row = passes, row + 1
    return out, accepted, final


@pytest.mark.parametrize("case", SMALL, ids=[case.name for case in SMALL])
def test_reference_against_a_walk(case: Case) -> None:
    call = case.call()
    results = run(case.factory, call, "reference", "cpu").results
    values = {one.name: one.value for one in call.arguments}
    if case.factory == "get_accept_result_tl":
        expected = accepted_by_loops(values, call.parameters[0])
    else:
        expected = finalized_by_loops(values, *call.parameters[:3])
    for name, value in expected.items():
        if name == "batch_confidence_error":
            assert results[name].item() == pytest.approx(value, rel=1e-5, abs=1e-5)
        else:
            assert results[name].tolist() == value, name


def accepted_by_loops(values: dict[str, torch.Tensor], has_golden: bool) -> dict[str, list[Any]]:
    pool = values["draft_token_ids_pool"].tolist()
    drafts = [pool[row] if 0 <= row < len(pool) else -1 for row in values["read_rows"].tolist()]
    owners = values["row_to_req"].tolist()
    golden = values["golden"].tolist() if has_golden else [-1] * len(owners)
    lengths = [owners.count(request) for request in range(len(values["ftp"]))]
    tokens, accepted, final = walk(
        lengths, values["raw_accept"].tolist(), values["candidate_token_ids"].tolist(), golden, drafts
    )
    for row in range(sum(lengths), len(owners)):
        tokens.append(golden[row] if golden[row] != -1 else values["candidate_token_ids"][row].item())
    none = [False] * (len(owners) - sum(lengths))
    return {"token_ids_out": tokens, "accept_out": accepted + none, "is_final_out": final + none}


def finalized_by_loops(
    values: dict[str, torch.Tensor], has_ssp: bool, has_confidence: bool, num_steps: int
) -> dict[str, Any]:
    given = {name: None if value is None else value.tolist() for name, value in values.items()}
    expected = {name: given[name] for name in list(given)[15:] if given[name] is not None}
    expected["num_generated_tokens"], expected["num_verified_tokens"] = [0] * num_steps, [0] * num_steps
    expected["batch_confidence_error"] = 0.0
    columns = [("token_ids", "effective_token_ids", -1), ("token_logprobs", "token_logprobs", 0.0)]
    columns += [("sum_smaller_probs", "sum_smaller_probs", 0.0)] if has_ssp else []
    if given["top_logprobs"] is not None:
        width = values["top_logprobs"].shape[1]
        columns += [("top_logprobs", "top_logprobs", [0.0] * width), ("top_token_ids", "top_token_ids", [0] * width)]
    for row, request in enumerate(given["row_to_req"]):
        accepted = given["effective_accept"][row]
        for name, source, otherwise in columns:
            expected[f"verified_{name}"][row] = given[source][row] if accepted else otherwise
        if not 0 <= request < len(given["ftp"]):
            continue
        step = row - given["ftp"][request]
        if accepted and step < num_steps:
            expected["num_generated_tokens"][step] += 1
        if given["is_verify"][row]:
            expected["num_verified_tokens"][min(step, num_steps - 1)] += 1
            if has_confidence and 0 <= given["mtp_info_read_rows"][row] < len(given["confidence_pool"]):
                confidence = given["confidence_pool"][given["mtp_info_read_rows"][row]]
                expected["batch_confidence_error"] += abs(given["accept_probs"][row] - confidence)
        if given["is_final_input"][row]:
            expected["last_valid_offset"][request] = step
            for name, source, _ in columns:
                expected[f"sampled_{name}"][request] = given[source][row]
            if has_confidence:
                stops = set(given["stop_token_ids"][request]) - {-1}
                emitted = given["effective_token_ids"][row - step : row + 1]
                expected["emitted_stop_token"][request] = not stops.isdisjoint(emitted)
    error = expected["batch_confidence_error"]
    assert math.isfinite(error)
    return expected


def test_conformance_vector_21() -> None:
    lengths = ints([3, 1])
    ftp = ints([0, 3])
    owners, _, verify = prepare_verification_metadata(ftp, lengths, 4, 3)
    tokens, accepted, final = get_accept_result(
        bools([1, 0, 1, 1]), None, ints([0] * 4), ints([0] * 4), ints([5, 7, 8, 9]), verify, ftp, owners
    )
    assert accepted.tolist() == [True, False, False, False] and final.tolist() == [False, True, False, True]
    found = finalize_verification(
        accepted, final, tokens, torch.zeros(4), None, None, None, ftp, lengths, owners, verify, 5
    )
    assert found.last_valid_offset.tolist() == [1, 0] and found.sampled_token_ids.tolist() == [7, 9]
    assert found.verified_token_ids.tolist() == [5, -1, -1, -1]
    assert found.num_generated_tokens.tolist() == [1, 0, 0, 0, 0]
    assert found.num_verified_tokens.tolist() == [1, 1, 0, 0, 0]
    assert found.batch_confidence_error.shape == () and found.batch_confidence_error.item() == 0
    assert found.emitted_stop_token is None and found.sampled_top_logprobs is None


REQUEST = st.lists(
    st.tuples(st.booleans(), st.integers(-1, 3), st.integers(-1, 3), st.integers(-1, 3)), min_size=1, max_size=34
)


@settings(max_examples=60)
@given(requests=st.lists(REQUEST, max_size=6), padding=st.integers(0, 4), has_golden=st.booleans())
def test_what_is_emitted_is_what_a_walk_finds(
    requests: list[list[tuple[bool, int, int, int]]], padding: int, has_golden: bool
) -> None:
    rows = [row for request in requests for row in request] + [(True, 1, 1, 1)] * padding
    lengths = [len(request) for request in requests]
    accept, tokens, golden, drafts = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [], [])
    ftp = ints([sum(lengths[:request]) for request in range(len(lengths))])
    owners, _, verify = prepare_verification_metadata(ftp, ints(lengths), len(rows), 34)
    found, accepted, final = get_accept_result(
        bools(accept), ints(golden) if has_golden else None, ints([*drafts, -1]), ints(range(len(rows))),
        ints(tokens), verify, ftp, owners,
    )  # fmt: skip
    expected = walk(lengths, accept, tokens, golden if has_golden else [-1] * len(rows), drafts)
    live = sum(lengths)
    assert (found[:live].tolist(), accepted[:live].tolist(), final[:live].tolist()) == expected
    assert not accepted[live:].any() and not final[live:].any()

    done = finalize_verification(
        accepted, final, found, torch.zeros(len(rows)), None, None, None, ftp, ints(lengths), owners, verify, 34,
        torch.zeros(len(rows)), torch.ones(1), ints([0] * len(rows)), ints([[2, -1]] * len(lengths)).view(-1, 2),
    )  # fmt: skip
    emitted = []
    for first, length in zip(ftp.tolist(), lengths, strict=True):
        count = expected[2][first : first + length].index(True)
        emitted.append(expected[0][first : first + count + 1])
    assert done.last_valid_offset.tolist() == [len(one) - 1 for one in emitted]
    assert done.sampled_token_ids.tolist() == [one[-1] for one in emitted]
    assert done.emitted_stop_token is not None and done.emitted_stop_token.tolist() == [2 in one for one in emitted]
    assert int(done.num_generated_tokens.sum()) == sum(len(one) - 1 for one in emitted)
    assert int(done.num_verified_tokens.sum()) == live - len(lengths) == done.batch_confidence_error.item()
    assert (done.verified_token_ids >= 0).sum() <= accepted.sum()


@pytest.mark.gpu
def test_captured_in_a_graph() -> None:
    """Nothing waits for the device: captured once, replayed with other verdicts and tokens."""
    lengths, padding = [6, 1, 3], 2
    live, rows = sum(lengths), sum(lengths) + padding
    ftp, seqlen_q = ints([0, 6, 7]).cuda(), ints(lengths).cuda()
    verdicts, tokens = torch.ones(rows, dtype=torch.bool, device="cuda"), ints(range(rows)).cuda()
    read = torch.zeros(rows, dtype=torch.int32, device="cuda")
    logprobs = torch.zeros(rows, device="cuda")

    def step() -> tuple[torch.Tensor, torch.Tensor, FinalizedVerification]:
        owners, _, verify = prepare_verification_metadata(ftp, seqlen_q, rows, 6)
        found, accepted, final = get_accept_result(verdicts, None, read[:1], read, tokens, verify, ftp, owners)
        rest = (None, None, None, ftp, seqlen_q, owners, verify, 6)
        return accepted, final, finalize_verification(accepted, final, found, logprobs, *rest)

    with using("triton"):
        step()  # what is compiled and loaded first cannot be captured
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            accepted, final, done = step()
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        given = torch.rand(rows, generator=generator) < 0.7
        drawn = torch.randint(0, 100, (rows,), dtype=torch.int32, generator=generator)
        verdicts.copy_(given)
        tokens.copy_(drawn)
        graph.replay()
        _, expected, ends = walk(lengths, given.tolist(), drawn.tolist(), [-1] * rows, [-1] * rows)
        assert (accepted.tolist(), final.tolist()) == (expected + [False] * padding, ends + [False] * padding)
        assert done.sampled_token_ids.tolist() == [int(drawn[row]) for row in range(live) if ends[row]]
        assert int(done.num_generated_tokens.sum()) == sum(expected)


def good() -> dict[str, Any]:
    return {
        "effective_accept": bools([1, 0]),
        "is_final": bools([0, 1]),
        "effective_token_ids": ints([4, 5]),
        "token_logprobs": torch.zeros(2),
        "sum_smaller_probs": None,
        "top_logprobs": torch.ones(2, 0),
        "top_token_ids": torch.ones(2, 0, dtype=torch.int32),
        "ftp": ints([0]),
        "seqlen_q": ints([2]),
        "row_to_req": ints([0, 0]),
        "is_verify": bools([1, 0]),
        "num_steps": 1,
    }


def test_top_values_of_no_width() -> None:
    found = finalize_verification(**good())
    assert found.sampled_top_logprobs is not None and found.sampled_top_logprobs.shape == (1, 0)
    assert found.verified_top_token_ids is not None and found.verified_top_token_ids.shape == (2, 0)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"num_steps": 0}, ValueError, "finalize_verification: num_steps must be at least 1, not 0"),
        ({"top_token_ids": None}, ValueError, "top_token_ids must come together with top_logprobs"),
        ({"top_token_ids": ints([[1], [2]])}, ValueError, "top_token_ids has the shape"),
        ({"accept_probs": torch.zeros(2)}, ValueError, "accept_probs and the three arguments after it must come"),
        ({"is_final": ints([0, 1])}, TypeError, "is_final must be bool, not int32"),
        ({"ftp": ints([0, 1])}, ValueError, "seqlen_q has the shape"),
    ],
)
def test_finalize_refuses(change: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        finalize_verification(**{**good(), **change})


def test_get_accept_result_refuses() -> None:
    rows = (ints([0, 0]), ints([3, 4]), bools([1, 0]), ints([0]), ints([0, 0]))
    with pytest.raises(ValueError, match="get_accept_result: golden has the shape"):
        get_accept_result(bools([1, 0]), ints([1]), ints([1]), *rows)
    with pytest.raises(TypeError, match="raw_accept must be bool, not int32"):
        get_accept_result(ints([1, 0]), None, ints([1]), *rows)
