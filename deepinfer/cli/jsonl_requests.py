"""Requests as lines of JSON: what `deepinfer generate` reads.

A line is an object: "prompt" (a text, or token ids), optionally "id" (a text or a number; else "line-N" by the line's
number, counted from 1), and any field of SamplingParams, which goes before the command line's options. A line may also
be a text alone: its prompt. Empty lines are passed over. Every line is checked before the first is answered.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deepinfer.cli.prompt_text import UTF16, check_text, decode
from deepinfer.cli.sampling_options import check_structure_of, params_of
from deepinfer.errors import InputError
from deepinfer.json_text import strict_json
from deepinfer.sampling import SamplingParams

_IMAGES = ("image", "images", "multi_modal_data")
_SHOWN = 12
"""Bad lines that an error lists before it counts the rest."""


@dataclass(frozen=True)
class LineRequest:
    """One request. line: its number, from 1. key: changes with the prompt and the parameters, and with nothing else."""

    line: int
    id: str
    prompt: str | list[int]
    params: SamplingParams
    key: str


def parse_requests(data: bytes, where: str, options: Mapping[str, Any], *, as_it_is: bool = False) -> list[LineRequest]:
    """The requests of a file's bytes. where: its name in errors. options: sampling fields that a line may override.

    Raises:
        InputError: some lines are bad: each is named with its number and its fault.
    """
    if data.startswith(UTF16):
        decode(data, where)
    found: dict[str, LineRequest] = {}
    problems: list[str] = []
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            request = _request(number, line, options, as_it_is)
        except (TypeError, ValueError) as problem:
            what = problem.what if isinstance(problem, InputError) else problem
            problems.append(f"line {number}: {what}")
            continue
        except RecursionError:
            problems.append(f"line {number}: it is nested too deeply")
            continue
        before = found.setdefault(request.id, request)
        if before is not request:
            problems.append(f"line {number}: its id {request.id!r} is that of line {before.line} already")
    if problems:
        listed = "\n".join(f"  - {problem}" for problem in problems[:_SHOWN])
        rest = f"\n  and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise InputError(
            f"{where}: {len(problems)} bad line{'s' if len(problems) > 1 else ''}, nothing was run:\n{listed}{rest}",
            next_step="correct them; `deepinfer generate --help` shows what a line looks like",
        )
    if not found:
        raise InputError(f"{where} holds no request", next_step='write a line for each: {"prompt": "…"}')
    return list(found.values())


def _request(number: int, line: bytes, options: Mapping[str, Any], as_it_is: bool) -> LineRequest:
    """One line. TypeError, ValueError, RecursionError: it cannot be taken."""
    try:
        value = strict_json(line)
    except UnicodeDecodeError as problem:
        raise ValueError(f"it is not UTF-8: its byte {problem.start + 1} is 0x{line[problem.start]:02x}") from problem
    except ValueError as problem:
        raise ValueError(f"it is not JSON that can be used: {problem}") from problem
    if isinstance(value, str):
        value = {"prompt": value}
    if not isinstance(value, dict):
        raise ValueError("it is neither an object nor a text")
    if "prompt" not in value:
        raise ValueError('it has no "prompt"')
    if found := next((name for name in _IMAGES if name in value), None):
        raise ValueError(f"it has {found!r}: images are not supported yet, prompts are text")
    fields = {**options, **value}
    prompt = _prompt(fields.pop("prompt"), as_it_is)
    name = _id(fields.pop("id", f"line-{number}"))
    params = params_of(fields)
    if "structure" in value:  # the command line's own was checked
        check_structure_of(params)
    return LineRequest(number, name, prompt, params, _key(prompt, fields))


def _prompt(value: object, as_it_is: bool) -> str | list[int]:
    if isinstance(value, str):
        if not value:
            raise ValueError('its "prompt" is empty')
        return check_text(value, 'its "prompt"', as_it_is=as_it_is)
    if not isinstance(value, list) or not all(isinstance(one, int) and not isinstance(one, bool) for one in value):
        raise ValueError('its "prompt" is neither a text nor a list of token ids')
    if not value:
        raise ValueError('its "prompt" is empty')
    return value


def _id(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError('its "id" is neither a text nor a whole number')
    if value == "":
        raise ValueError('its "id" is empty: leave it out, or name the line')
    return check_text(str(value), 'its "id"', as_it_is=True)


def _key(prompt: str | list[int], fields: Mapping[str, Any]) -> str:
    text = json.dumps([prompt, {name: value for name, value in fields.items() if value is not None}], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
