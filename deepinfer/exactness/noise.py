"""What the order of sums alone changes, measured on the oracle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from deepinfer.exactness.subject import Subject
from deepinfer.reference import Forced, Output, Precision


@dataclass(frozen=True)
class Noise:
    """The differences of two `rounded` runs with the same choices, whose sums are float32 in two orders.

    relative: of the logits, as `distance` has it. absolute: the largest of a logit. hidden: by layer, `distance` of
    the trunk that enters it. scores: by layer, the largest of a gate's score; entries: by index source, of a logit.
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


def measure(subject: Subject, tokens: list[int], forced: Forced) -> Noise:
    """The noise of a prompt under the choices `forced`."""
    ids = torch.tensor(tokens)
    first, second = (subject.oracle(Precision(sums=order))(ids, forced=forced) for order in ("fp32", "fp32-reversed"))
    return Noise(
        distance(first.logits, second.logits),
        largest(first.logits, second.logits),
        {layer: distance(first.hidden[layer], trunk) for layer, trunk in second.hidden.items()},
        {layer: largest(first.routing[layer].scores, one.scores) for layer, one in second.routing.items()},
        {layer: largest(first.choices[layer].logits, one.logits) for layer, one in second.choices.items()},
    )
