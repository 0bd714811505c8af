"""When tokens came, and the usual summary of it: TTFT, TPOT, ITL and rates."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from deepinfer.engine.outputs import RequestOutput


@dataclass
class RequestTimes:
    """Of one completion, in seconds of one clock: when its request arrived, and when each of its tokens did.

    A token arrives when the step that made it is done. index: which completion of its request it is.
    prompt_tokens: its prompt's length; cached_tokens: of them, those that were cached already.
    """

    arrival: float
    prompt_tokens: int
    cached_tokens: int = 0
    tokens: list[float] = field(default_factory=list)
    index: int = 0

    @property
    def ttft(self) -> float | None:
        """Time to the first token; None without any."""
        return self.tokens[0] - self.arrival if self.tokens else None

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first; None with fewer than two."""
        if len(self.tokens) < 2:
            return None
        return (self.tokens[-1] - self.tokens[0]) / (len(self.tokens) - 1)

    @property
    def itl(self) -> list[float]:
        """Times between a token and the next; those that one step made have 0 between them."""
        return [after - before for before, after in zip(self.tokens, self.tokens[1:], strict=False)]

    @property
    def e2e(self) -> float | None:
        """Time to the last token; None without any."""
        return self.tokens[-1] - self.arrival if self.tokens else None


@dataclass(frozen=True)
class Spread:
    """Mean, median and 99th percentile of some times in seconds; None without any."""

    mean: float | None
    median: float | None
    p99: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of some values."""
        if not values:
            return cls(None, None, None)
        ordered = sorted(values)
        return cls(sum(ordered) / len(ordered), percentile(ordered, 50), percentile(ordered, 99))


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The percentile of values in ascending order, at least one: linear between the two nearest ranks."""
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


@dataclass(frozen=True)
class Summary:
    """What some requests took together. seconds: from the first one's arrival to the last token."""

    requests: int
    failed: int
    seconds: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    ttft: Spread
    tpot: Spread
    itl: Spread
    e2e: Spread

    @classmethod
    def of(cls, times: Sequence[RequestTimes], *, failed: int, seconds: float) -> Summary:
        """Of the completions that did not fail, of which `times` tells. The prompt of several counts once."""
        firsts = [one for one in times if one.index == 0]
        return cls(
            requests=len(firsts),
            failed=failed,
            seconds=seconds,
            prompt_tokens=sum(one.prompt_tokens for one in firsts),
            cached_tokens=sum(one.cached_tokens for one in firsts),
            output_tokens=sum(len(one.tokens) for one in times),
            ttft=Spread.of([one.ttft for one in times if one.ttft is not None]),
            tpot=Spread.of([one.tpot for one in times if one.tpot is not None]),
            itl=Spread.of([gap for one in times for gap in one.itl]),
            e2e=Spread.of([one.e2e for one in times if one.e2e is not None]),
        )

    @property
    def output_rate(self) -> float:
        """Output tokens a second."""
        return self.output_tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def total_rate(self) -> float:
        """Tokens a second, those of the prompts included."""
        return (self.prompt_tokens + self.output_tokens) / self.seconds if self.seconds > 0 else 0.0

    @property
    def request_rate(self) -> float:
        """Requests a second."""
        return self.requests / self.seconds if self.seconds > 0 else 0.0

    def to_json(self) -> dict[str, Any]:
        """As an object of JSON; times in seconds."""
        rates = {name: getattr(self, name) for name in ("request_rate", "output_rate", "total_rate")}
        return {**asdict(self), **rates}

    def as_text(self) -> str:
        """The block to read; times in milliseconds."""
        lines = [
            f"{'requests':<28}{self.requests:>12}" + (f"  ({self.failed} more failed)" if self.failed else ""),
            f"{'duration (s)':<28}{self.seconds:>12.2f}",
            f"{'prompt tokens':<28}{self.prompt_tokens:>12}"
            + (f"  ({self.cached_tokens} of them cached)" if self.cached_tokens else ""),
            f"{'output tokens':<28}{self.output_tokens:>12}",
            f"{'requests/s':<28}{self.request_rate:>12.2f}",
            f"{'output tokens/s':<28}{self.output_rate:>12.2f}",
            f"{'prompt + output tokens/s':<28}{self.total_rate:>12.2f}",
            f"{'':<28}{'mean':>12}{'median':>12}{'P99':>12}",
        ]
        for title, spread in (
            ("TTFT (ms)", self.ttft),
            ("TPOT (ms, after the first)", self.tpot),
            ("ITL (ms)", self.itl),
            ("end to end (ms)", self.e2e),
        ):
            cells = "".join(f"{_ms(value):>12}" for value in (spread.mean, spread.median, spread.p99))
            lines.append(f"{title:<28}{cells}")
        return "\n".join(lines)


class Stopwatch:
    """Notes when requests arrive and when their tokens do.

    clock: seconds of a clock that only goes forward.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._arrivals: dict[str, float] = {}
        self._times: dict[str, dict[int, RequestTimes]] = {}
        self._failed: set[str] = set()
        self._last = 0.0

    def now(self) -> float:
        """Seconds of the clock."""
        return self._clock()

    def arrived(self, request_id: str, at: float) -> None:
        """The engine has taken a request; it came at that time of the clock."""
        self._arrivals[request_id] = at

    def seen(self, outputs: Sequence[RequestOutput]) -> None:
        """A step is done, and gave these: tokens that were not there before arrive now."""
        self._last = now = self._clock()
        for output in outputs:
            arrival = self._arrivals.get(output.request_id, now)
            of_request = self._times.setdefault(output.request_id, {})
            for one in output.outputs:
                times = of_request.setdefault(
                    one.index, RequestTimes(arrival, len(output.prompt_token_ids), index=one.index)
                )
                times.cached_tokens = output.cached_tokens
                times.tokens += [now] * (len(one.token_ids) - len(times.tokens))
                if one.finish_reason == "error":
                    self._failed.add(output.request_id)

    @property
    def failed(self) -> int:
        """Requests of which a completion ended in an error."""
        return len(self._failed)

    def times(self) -> list[RequestTimes]:
        """Of every completion of the requests that did not fail."""
        good = [of_request for name, of_request in self._times.items() if name not in self._failed]
        return [one for of_request in good for one in of_request.values()]

    def summary(self) -> Summary:
        """Of all that was seen."""
        seconds = self._last - min(self._arrivals.values(), default=self._last)
        return Summary.of(self.times(), failed=self.failed, seconds=max(seconds, 0.0))


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.2f}"
