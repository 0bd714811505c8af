"""The summary of when tokens came, against figures worked out by hand."""

from __future__ import annotations

import json

import pytest

from deepinfer.engine.outputs import Completion, RequestOutput
from deepinfer.engine.timing import RequestTimes, Spread, Stopwatch, Summary, percentile


def test_times_of_one_request() -> None:
    one = RequestTimes(arrival=10.0, prompt_tokens=5, tokens=[10.5, 10.75, 11.5])
    assert (one.ttft, one.tpot, one.itl, one.e2e) == (0.5, 0.5, [0.25, 0.75], 1.5)
    single = RequestTimes(arrival=1.0, prompt_tokens=5, tokens=[1.5])
    assert (single.ttft, single.tpot, single.itl) == (0.5, None, [])
    nothing = RequestTimes(arrival=1.0, prompt_tokens=5)
    assert (nothing.ttft, nothing.tpot, nothing.itl, nothing.e2e) == (None, None, [], None)


def test_percentiles_lie_between_the_nearest_ranks() -> None:
    assert percentile([7.0], 99) == 7.0
    assert percentile([1.0, 2.0, 3.0, 4.0], 50) == 2.5
    assert percentile([float(value) for value in range(101)], 99) == 99.0
    assert percentile([0.0, 1.0], 99) == pytest.approx(0.99)
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(2.0, 2.0, pytest.approx(2.98))
    assert Spread.of([]) == Spread(None, None, None)


def test_the_summary_adds_up_and_leaves_out_what_there_is_none_of() -> None:
    times = [
        RequestTimes(arrival=0.0, prompt_tokens=10, cached_tokens=4, tokens=[1.0, 2.0, 4.0]),
        RequestTimes(arrival=1.0, prompt_tokens=6, tokens=[3.0]),
    ]
    summary = Summary.of(times, failed=1, seconds=4.0)
    assert (summary.requests, summary.failed, summary.prompt_tokens, summary.cached_tokens) == (2, 1, 16, 4)
    assert (summary.request_rate, summary.output_rate, summary.total_rate) == (0.5, 1.0, 5.0)
    assert summary.ttft == Spread(1.5, 1.5, pytest.approx(1.99))
    assert summary.tpot == Spread(1.5, 1.5, 1.5)
    assert summary.itl.mean == 1.5
    text = summary.as_text()
    assert "(1 more failed)" in text and "(4 of them cached)" in text
    assert any(line.split() == ["TTFT", "(ms)", "1500.00", "1500.00", "1990.00"] for line in text.splitlines())
    assert json.loads(json.dumps(summary.to_json()))["output_rate"] == 1.0


def test_a_summary_of_nothing_divides_by_nothing() -> None:
    summary = Summary.of([], failed=0, seconds=0.0)
    assert (summary.output_rate, summary.request_rate) == (0.0, 0.0)
    assert summary.as_text().splitlines()[-1].split() == ["end", "to", "end", "(ms)", "-", "-", "-"]


def output(name: str, *tokens: int, error: str = "") -> RequestOutput:
    reason = "error" if error else None
    completions = [
        Completion(index, token_ids=[7] * count, finish_reason=reason, error=error)
        for index, count in enumerate(tokens)
    ]
    return RequestOutput(name, None, [1, 2, 3], completions, cached_tokens=2)


def test_a_stopwatch_stamps_what_is_new_and_leaves_failures_out() -> None:
    now = iter([0.0, 1.0, 3.0, 4.0, 6.0])
    watch = Stopwatch(lambda: next(now))
    watch.arrived("a", watch.now())
    watch.arrived("b", watch.now())
    watch.seen([output("a", 1, 0), output("b", 1)])  # at 3
    watch.seen([output("a", 1, 1)])  # at 4: its first completion had nothing new
    watch.seen([output("a", 3, 2), output("b", 1, error="no number")])  # at 6
    summary = watch.summary()
    assert (summary.requests, summary.failed, summary.seconds) == (1, 1, 6.0)
    assert (summary.prompt_tokens, summary.cached_tokens, summary.output_tokens) == (3, 2, 5)
    assert summary.ttft == Spread(3.5, 3.5, pytest.approx(3.99))
    assert summary.itl.mean == pytest.approx((3 + 0 + 2) / 3)
    assert Stopwatch().summary().seconds == 0
