"""Which differences of choices count, and which of them are near-ties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from deepinfer.exactness import Differences, EngineRun, Noise, first_differences
from deepinfer.reference import Output
from deepinfer.reference.attention import Choice
from deepinfer.reference.layers import Routing
from tests.engine.model_runs import config

ROWS, LAYERS = 6, (0, 2, 6, 8)
SCORES = torch.tensor([1.0, 0.9, 0.8999, 0.5, 0.1])
LOGITS = torch.tensor([5.0, 4.0, 3.9999, 1.0] + [0.5] * 20)
NOISE = Noise(0, 0, {}, dict.fromkeys(LAYERS, 1e-4), dict.fromkeys(LAYERS, 1e-4))


def _run(
    experts: Mapping[tuple[int, int], Sequence[int]], entries: Mapping[tuple[int, int], Sequence[int]]
) -> Differences:
    """Oracle and engine, which choose alike but for what is given by (layer, row)."""
    routing = {layer: torch.tensor([[0, 1]] * ROWS) for layer in LAYERS}
    chosen = {layer: torch.tensor([[0, 1]] * ROWS) for layer in LAYERS[1:]}
    blocks = torch.tensor([[0, 2]] * ROWS)
    expected = Output(
        torch.zeros(ROWS, 3),
        routing={layer: Routing(ids, SCORES.repeat(ROWS, 1)) for layer, ids in routing.items()},
        choices={
            layer: Choice(ids, LOGITS.repeat(ROWS, 1), blocks if layer == 6 else None) for layer, ids in chosen.items()
        },
    )
    own = EngineRun(
        torch.zeros(ROWS, 3),
        {},
        {layer: ids.clone().int() for layer, ids in routing.items()},
        {layer: ids.clone().int() for layer, ids in chosen.items()},
    )
    for given, held in ((experts, own.routing), (entries, own.entries)):
        for (layer, row), value in given.items():
            held[layer][row] = torch.tensor(value)
    return first_differences(config(), expected, own, NOISE)


def test_none_differ() -> None:
    found = _run({}, {})
    assert found.first == () and found.rows == ROWS
    assert found.experts == dict.fromkeys(LAYERS, 0) and found.entries == dict.fromkeys(LAYERS[1:], 0)


def test_a_near_tie_and_one_that_is_none() -> None:
    found = _run({(0, 3): (0, 2)}, {})
    (one,) = found.first
    assert (one.layer, one.row, one.kind) == (0, 3, "experts") and one.near_tie and found.beyond == ()
    assert abs(one.gap - 1e-4) < 1e-6 and one.allowed == 4e-4 and found.rows == 3
    for experts in ((0, 3), (1, 0)):  # another expert, and the same two in the other order
        (one,) = _run({(0, 3): experts}, {}).beyond
        assert one.gap > 0.09
    (one,) = _run({}, {(2, 1): (0, 2)}).first
    assert one.kind == "entries" and one.near_tie
    (one,) = _run({}, {(2, 1): (0, 3)}).beyond
    assert abs(one.gap - 3) < 1e-6
    (one,) = _run({}, {(2, 1): (0, -1)}).beyond  # one too few
    assert one.gap > one.allowed


def test_only_what_no_other_explains_counts() -> None:
    found = _run({(0, 3): (0, 2), (2, 2): (3, 4), (2, 4): (3, 4), (8, 5): (4, 3)}, {(2, 3): (5, 6)})
    assert [(one.layer, one.row) for one in found.first] == [(0, 3), (2, 2)]
    assert [(one.layer, one.row) for one in found.beyond] == [(2, 2)]
    assert found.rows == 2 and found.experts[2] == 2 and found.entries[2] == 1
    # Within a layer, entries come before experts, and change their own row alone.
    found = _run({(2, 1): (3, 4), (2, 2): (3, 4)}, {(2, 1): (0, 2)})
    assert [(one.row, one.kind) for one in found.first] == [(1, "entries"), (2, "experts")]


def test_candidate_blocks_may_be_near_ties_too() -> None:
    """Of three blocks of eight the oracle keeps 0 and 2, the last; block 1, just as good as 0, is not there later."""
    best = LOGITS.clone()
    best[8] = 5.0
    found = _candidates(best)
    assert found.beyond == ()
    best[8] = 3.0
    assert [(one.layer, one.row) for one in _candidates(best).beyond] == [(8, 4)]


def _candidates(best: torch.Tensor) -> Differences:
    later = LOGITS.clone()
    later[8:16] = float("-inf")
    ids = torch.tensor([[0, 1]] * ROWS)
    expected = Output(
        torch.zeros(ROWS, 3),
        routing={8: Routing(ids, SCORES.repeat(ROWS, 1))},
        choices={
            6: Choice(ids, best.repeat(ROWS, 1), torch.tensor([[0, 2]] * ROWS)),
            8: Choice(ids, later.repeat(ROWS, 1)),
        },
    )
    entries = ids.clone().int()
    entries[4] = torch.tensor([1, 9])
    own = EngineRun(torch.zeros(ROWS, 3), {}, {8: ids.int()}, {6: ids.int(), 8: entries})
    return first_differences(config(), expected, own, NOISE)
