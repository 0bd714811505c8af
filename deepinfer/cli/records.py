"""A request's result as an object of JSON."""

from __future__ import annotations

import math
from typing import Any

from deepinfer.command_line import flag
from deepinfer.engine.outputs import Completion, RequestOutput, TokenLogprobs


def record(output: RequestOutput) -> dict[str, Any]:
    """What JSON lines and `ask --json` hold. Fields that were not asked for are left out."""
    found: dict[str, Any] = {
        "prompt_tokens": len(output.prompt_token_ids),
        "cached_tokens": output.cached_tokens,
        "outputs": [_completion(one) for one in output.outputs],
    }
    if output.prompt_logprobs is not None:
        found["prompt_logprobs"] = [None if one is None else _logprobs(one) for one in output.prompt_logprobs]
    return found


def failures(output: RequestOutput) -> list[str]:
    """What went wrong with its completions, with options as they are typed; [] where nothing did."""
    failed = [one for one in output.outputs if one.finish_reason == "error"]
    return [one.problem.told(flag) if one.problem is not None else one.error or "it failed" for one in failed]


def _completion(one: Completion) -> dict[str, Any]:
    found: dict[str, Any] = {"text": one.text, "token_ids": one.token_ids, "finish_reason": one.finish_reason}
    if one.stop is not None:
        found["stop"] = one.stop
    if one.error:
        found["error"] = one.error
    if one.logprobs is not None:
        found["logprobs"] = [_logprobs(token) for token in one.logprobs]
    return found


def _logprobs(one: TokenLogprobs) -> dict[str, Any]:
    return {
        "token_id": one.token_id,
        "logprob": _number(one.logprob),
        "rank": one.rank,
        "top": [[token, _number(value)] for token, value in one.top],
    }


def _number(value: float) -> float | None:
    """JSON has no infinity: a token that was filtered out has None."""
    return value if math.isfinite(value) else None
