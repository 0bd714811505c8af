"""What the order of sums alone changes, measured on the oracle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from deepinfer.exactness.subject import Subject
from deepinfer.reference import Forced, Output, Precision


@dataclass(frozen=True)
class Noise:
    """The differences of `rounded` runs with the same choices: two whose sums are float32 in two orders.

    relative: of the logits, as `distance` has it. absolute: the largest of a logit.
    The others are the largest between any two of these and the run in float64, for the two have in common whatever
    float32 does beside sums. hidden: by layer, `distance` of the trunk that enters it. scores: by layer, the largest
    of a gate's score; entries: by index source, of a logit.
    """

    relative: float
    absolute: float
    hidden: Mapping[int, float] = field(default_factory=dict)
    scores: Mapping[int, float] = field(default_factory=dict)
    entries: Mapping[int, float] = field(default_factory=dict)


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative L2: |found - expected| / |expected|."""
    wide = expected.double()
    return float((found.double().cpu() - wide).norm() / wide.norm())


def largest(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference of two values, both of which are finite."""
    both = found.isfinite() & expected.isfinite()
    differences = (found.double() - expected.double()).abs()[both]
    return float(differences.max()) if differences.numel() else 0.0


def choices_of(output: Output) -> Forced:
    """What a run of the oracle chose, to be forced upon others."""
    routing = {layer: one.ids for layer, one in output.routing.items()}
    return Forced(routing, {layer: one.entries for layer, one in output.choices.items()})


def measure(subject: Subject, tokens: list[int], expected: Output) -> Noise:
    """The noise of a prompt, with the choices of `expected`, the oracle's `rounded` run of it in float64."""
    ids, forced = torch.tensor(tokens), choices_of(expected)
    first, second = (subject.oracle(Precision(sums=order))(ids, forced=forced) for order in ("fp32", "fp32-reversed"))
    pairs = ((first, second), (first, expected), (second, expected))
    return Noise(
        distance(first.logits, second.logits),
        largest(first.logits, second.logits),
        {layer: max(distance(a.hidden[layer], b.hidden[layer]) for a, b in pairs) for layer in expected.hidden},
        {layer: max(largest(a.routing[layer].scores, b.routing[layer].scores) for a, b in pairs)
         for layer in expected.routing},
        {layer: max(largest(a.choices[layer].logits, b.choices[layer].logits) for a, b in pairs)
         for layer in expected.choices},
    )  # fmt: skip
