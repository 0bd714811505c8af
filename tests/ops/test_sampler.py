"""`sampler`: metadata, parameters, look-ups and the draft's top-k (kernel_spec A.3, #30 to #33)."""

from __future__ import annotations

import math

import pytest
import torch

from deepinfer.ops.case import Case
from deepinfer.ops.cases import cases
from deepinfer.ops.cases.sampler import SEEDS
from deepinfer.ops.execution import run
from deepinfer.ops.fused_sample import LogitsTransformInputs, SamplingKernelInputs
from deepinfer.ops.sampler import (
    expand_sampling_params,
    map_lookup,
    prepare_verification_metadata,
    remap_draft_topk,
)
from tests.ops.three_ways import Interpreted, agrees_in_the_interpreter, agrees_on_a_gpu, every_case, small_cases


def ints(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@small_cases("sampler")
def test_interpreted(case: Case, interpreted: Interpreted) -> None:
    agrees_in_the_interpreter(case, interpreted)


@pytest.mark.gpu
@every_case("sampler")
def test_on_a_gpu(case: Case) -> None:
    agrees_on_a_gpu(case)


def metadata_by_loops(given: dict[str, torch.Tensor], _: object) -> dict[str, list[object]]:
    rows = len(given["row_to_req"])
    owner, step, verify = [-1] * rows, [0] * rows, [False] * rows
    for request, (first, length) in enumerate(zip(given["ftp"].tolist(), given["seqlen_q"].tolist(), strict=True)):
        for t in range(length):
            owner[first + t], step[first + t], verify[first + t] = request, t, t + 1 < length
    return {"row_to_req": owner, "local_step": step, "is_verify": verify}


def expanded_by_loops(given: dict[str, torch.Tensor], _: object) -> dict[str, list[object]]:
    names = ("temperatures", "top_ps", "top_ks", "sample_positions", "seq_seeds")
    neutral = {"temperatures": 1.0, "top_ps": 1.0, "top_ks": -1, "sample_positions": 0, "seq_seeds": 0}
    found: dict[str, list[object]] = {f"{name}_out": [] for name in names}
    for request, step in zip(given["row_to_req"].tolist(), given["local_step"].tolist(), strict=True):
        owned = 0 <= request < len(given["temperatures"])
        for name in names:
            value = given[name][request].item() if owned else neutral[name]
            if name == "sample_positions" and owned:
                value += step * 10000019
            found[f"{name}_out"].append(value)
    return found


def looked_up_by_loops(given: dict[str, torch.Tensor], parameters: tuple[int, str, torch.dtype]) -> dict[str, object]:
    missing = -1 if parameters[2] == torch.int32 else -math.inf
    found = []
    for row, (query,) in enumerate(given["query"].tolist()):
        values = given["value"][row].tolist()
        keys = range(len(values)) if given["key"] is None else given["key"][row].tolist()
        found.append(dict(zip(keys, values, strict=True)).get(query, missing))
    return {"out": found}


def remapped_by_loops(given: dict[str, torch.Tensor], parameters: tuple[int, int]) -> dict[str, object]:
    aligned: list[float] = []
    local: list[int] = []
    pool = given["draft_token_ids_pool"].tolist()
    for row, source in enumerate(given["read_rows"].tolist()):
        targets = given["target_topk_index"][row].tolist()
        known = 0 <= source < len(pool)
        drafts: dict[int, float] = {}
        if known:
            ids = given["draft_topk_index"][source].tolist()
            pairs = zip(ids, given["draft_topk_logprobs"][source].tolist(), strict=True)
            drafts = {token: logprob for token, logprob in pairs if 0 <= token < parameters[1]}
        aligned += [drafts.get(token, -math.inf) for token in targets]
        token = pool[source] if known else -1
        local.append(targets.index(token) if token >= 0 and token in targets else -1)
    return {"aligned_logprobs": aligned, "draft_local_ids": local, "identity_rows": list(range(len(local)))}


LOOPS = {
    "prepare_verification_metadata_tl": metadata_by_loops,
    "expand_sampling_params_tl": expanded_by_loops,
    "map_lookup_tl": looked_up_by_loops,
    "remap_draft_topk_tl": remapped_by_loops,
}
LOOPED = [case for case in cases(["sampler"]) if case.factory in LOOPS and not case.large]


@pytest.mark.parametrize("case", LOOPED, ids=[case.name for case in LOOPED])
def test_reference_against_a_loop(case: Case) -> None:
    """Those of the verification are in test_verification.py."""
    call = case.call()
    results = run(case.factory, call, "reference", "cpu").results
    expected = LOOPS[case.factory]({one.name: one.value for one in call.arguments}, call.parameters)  # type: ignore[operator]
    assert {name: results[name].flatten().tolist() for name in expected} == expected


def test_metadata_of_padded_rows() -> None:
    """A graph of 8 rows, 5 of them live; the two requests of none own no row."""
    ftp, lengths = ints([0, 3, -1, 5]), ints([3, 2, 1, 0])
    row_to_req, local_step, is_verify = prepare_verification_metadata(ftp, lengths, 8, 3)
    assert row_to_req.tolist() == [0, 0, 0, 1, 1, -1, -1, -1]
    assert local_step.tolist() == [0, 1, 2, 0, 1, 0, 0, 0]
    assert is_verify.tolist() == [True, True, False, True, False, False, False, False]


def test_positions_and_seeds_are_copied_exactly() -> None:
    """Conformance vector 3, and seeds that do not fit int64."""
    count = len(SEEDS)
    params = SamplingKernelInputs(
        LogitsTransformInputs(
            torch.full((count,), 0.5), torch.full((count,), 0.25), torch.full((count,), 40, dtype=torch.int32)
        ),
        torch.tensor(SEEDS, dtype=torch.uint64),
        torch.full((count,), 10, dtype=torch.int32),
    )
    rows = ints([*range(count), -1])
    found = expand_sampling_params(params, rows, torch.full((count + 1,), 2, dtype=torch.int32))
    assert found.seq_seeds.dtype == torch.uint64 and found.seq_seeds.tolist() == [*SEEDS, 0]
    assert found.sample_positions.tolist() == [20000048] * count + [0]
    assert found.logits.temperatures.tolist() == [0.5] * count + [1.0]
    assert found.logits.top_ps.tolist() == [0.25] * count + [1.0]
    assert found.logits.top_ks.tolist() == [40] * count + [-1]


def test_map_lookup() -> None:
    value = torch.tensor([[1.0, 2.0], [3.0, -0.0]])
    assert map_lookup(None, value, ints([[1], [2]]), "by_index").tolist() == [[2.0], [-math.inf]]
    assert map_lookup(ints([[9, 4], [4, 9]]), value, ints([[4], [7]])).tolist() == [[2.0], [-math.inf]]
    assert map_lookup(None, ints([[5], [6]]), ints([[-1], [0]]), "by_index").tolist() == [[-1], [6]]
    assert map_lookup(None, value[:0], ints([[1]])[:0], "by_index").shape == (0, 1)


def test_remap_draft_topk() -> None:
    aligned, local, identity = remap_draft_topk(
        ints([[7, 3, 5], [1, 2, 3]]), torch.tensor([[-1.0, -2.0, -3.0], [-4.0, -5.0, -6.0]]), ints([3, 9]),
        ints([[5, 6, 3], [3, 1, 0], [1, 2, 3]]), ints([0, 1, 9]), 10,
    )  # fmt: skip
    assert aligned.tolist() == [[-3.0, -math.inf, -2.0], [-6.0, -4.0, -math.inf], [-math.inf] * 3]
    assert local.tolist() == [2, -1, -1] and identity.tolist() == [0, 1, 2]


VALUE, QUERY = torch.zeros(2, 3), ints([[0], [0]])
POOL, LOGPROBS, TOKENS, TARGET, READ = ints([[1, 2]]), torch.zeros(1, 2), ints([1]), ints([[1, 2]]), ints([0])
SEEDLESS = LogitsTransformInputs(torch.ones(2), torch.ones(2), ints([1, 1]))
FIVE = SamplingKernelInputs(SEEDLESS, torch.zeros(2, dtype=torch.uint64), ints([1, 1]))


@pytest.mark.parametrize(
    ("function", "arguments", "error", "text"),
    [
        (prepare_verification_metadata, (ints([0]), ints([1, 2]), 3, 1), ValueError, "seqlen_q has the shape"),
        (prepare_verification_metadata, (ints([0]), ints([1]), -1, 1), ValueError, "total_q must be at least 0"),
        (prepare_verification_metadata, (ints([0]), ints([1]), 1, 0), ValueError, "num_steps must be at least 1"),
        (prepare_verification_metadata, (ints([0]).long(), ints([1]), 1, 1), TypeError, "ftp must be int32, not int64"),
        (
            expand_sampling_params,
            (SamplingKernelInputs(SEEDLESS, ints([0, 0]), ints([1, 1])), ints([0]), ints([0])),
            TypeError,
            "seq_seeds must be uint64 or int64, not int32",
        ),
        (expand_sampling_params, (FIVE, ints([0]), ints([0, 1])), ValueError, "local_step has the shape"),
        (map_lookup, (None, VALUE, QUERY, "by_name"), ValueError, "mode must be one of 'by_key', 'by_index'"),
        (map_lookup, (None, VALUE, QUERY), ValueError, "key must be given by_key"),
        (map_lookup, (VALUE.int(), VALUE, QUERY, "by_index"), ValueError, "key must not be given by_index"),
        (map_lookup, (VALUE.int(), VALUE.int(), QUERY), TypeError, "value must be float32, not int32"),
        (map_lookup, (None, VALUE.T, QUERY, "by_index"), ValueError, "the last dimension of value must be contiguous"),
        (map_lookup, (None, VALUE[:, :0], QUERY, "by_index"), ValueError, "value must have at least one column"),
        (remap_draft_topk, (POOL, LOGPROBS, TOKENS, TARGET, READ, 1), ValueError, "vocab_size must be at least 2"),
        (
            remap_draft_topk,
            (POOL[:, :1].contiguous(), LOGPROBS, TOKENS, TARGET, READ, 9),
            ValueError,
            "draft_topk_logprobs has the shape",
        ),
        (
            remap_draft_topk,
            (POOL[:0], LOGPROBS[:0], TOKENS[:0], TARGET, READ, 9),
            ValueError,
            "draft_topk_index must have at least one row",
        ),
        (
            remap_draft_topk,
            (ints([range(16385)]), torch.zeros(1, 16385), TOKENS, ints([range(16385)]), READ, 20000),
            ValueError,
            "target_topk_index must have 1 to 16384 columns, not 16385",
        ),
    ],
)
def test_refused(function: object, arguments: tuple[object, ...], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        function(*arguments)  # type: ignore[operator]
