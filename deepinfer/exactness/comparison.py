"""Engine and oracle over one prompt: with the same choices, and with each its own."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from deepinfer.exactness.choices import FACTOR, Differences, first_differences
from deepinfer.exactness.engine_run import EngineRun, run_engine
from deepinfer.exactness.noise import Noise, choices_of, distance, measure
from deepinfer.exactness.subject import ORACLES, Subject
from deepinfer.model.threads import fitting_threads
from deepinfer.reference import Output

LIMIT = 5e-3
"""What the logits may be off by, relative to their length, however small the noise is."""


@dataclass(frozen=True)
class Comparison:
    """expected: the oracle's run, `rounded`. forced: the engine's with the oracle's choices; free: with its own."""

    expected: Output
    noise: Noise
    forced: EngineRun
    free: EngineRun
    differences: Differences

    @property
    def allowed(self) -> float:
        """Of the logits' relative error."""
        return max(2 * self.noise.relative, LIMIT)

    @property
    def error(self) -> float:
        """Of the logits with the oracle's choices."""
        return distance(self.forced.logits, self.expected.logits)

    @property
    def free_error(self) -> float:
        """Of the logits of the rows before every choice that differs; 0 where there is none."""
        rows = self.differences.rows
        return distance(self.free.logits[:rows], self.expected.logits[:rows]) if rows else 0.0

    def hidden_error(self, run: EngineRun, layer: int, rows: int | None = None) -> float:
        """Of the trunk that enters a layer."""
        return distance(run.hidden[layer][:rows], self.expected.hidden[layer][:rows])

    def clear_rows(self) -> torch.Tensor:
        """bool [n]: where the oracle's best token is ahead of the second by more than `FACTOR` times the noise."""
        best = self.expected.logits.topk(2).values
        return best[:, 0] - best[:, 1] > FACTOR * self.noise.absolute

    def same_tokens(self, run: EngineRun) -> float:
        """The share of rows whose best token is the oracle's, clear or not."""
        return float((run.logits.argmax(-1) == self.expected.logits.argmax(-1)).float().mean())

    def wrong_tokens(self, run: EngineRun, rows: int | None = None) -> list[int]:
        """Rows whose best token is another than the oracle's, although that one is clear."""
        other = run.logits.argmax(-1) != self.expected.logits.argmax(-1)
        found: list[int] = (other & self.clear_rows())[:rows].nonzero()[:, 0].tolist()
        return found

    def faults(self) -> list[str]:
        """What noise does not explain; empty where the engine is exact."""
        found = []
        for name, error in (("with the oracle's choices", self.error), ("free-running", self.free_error)):
            if not error <= self.allowed:  # NaN is a fault
                found.append(f"{name} the logits are off by {error:.1e}, {self.allowed:.1e} is allowed")
        for name, rows in (
            ("with the oracle's choices", self.wrong_tokens(self.forced)),
            ("free-running", self.wrong_tokens(self.free, self.differences.rows)),
        ):
            if rows:
                found.append(f"{name} {len(rows)} rows have another best token than the oracle, first row {rows[0]}")
        for one in self.differences.beyond:
            found.append(
                f"layer {one.layer} chooses other {one.kind} in row {one.row}, where the oracle is no near-tie: "
                f"a gap of {one.gap:.1e}, {one.allowed:.1e} is allowed"
            )
        return found


def compare(subject: Subject, tokens: list[int], *, chunk: int = 0, decoded: int = 0) -> Comparison:
    """Run both. chunk, decoded: how the engine takes the prompt, as `run_engine` has it."""
    with fitting_threads(subject.config.hidden, ORACLES):
        expected = subject.oracle()(torch.tensor(tokens))
        choices = choices_of(expected)
        noise = measure(subject, tokens, expected)
        forced = run_engine(subject.model, tokens, forced=choices, chunk=chunk, decoded=decoded)
        free = run_engine(subject.model, tokens, chunk=chunk, decoded=decoded)
        return Comparison(expected, noise, forced, free, first_differences(subject.config, expected, free, noise))
