"""The options that say how tokens are chosen, and the same as fields of a JSON object."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from deepinfer.cli.prompt_text import check_argument, check_text
from deepinfer.errors import DeepInferError, InputError, UsageError
from deepinfer.json_text import strict_json

if TYPE_CHECKING:
    from deepinfer.sampling import SamplingParams


def add_sampling_arguments(parser: argparse.ArgumentParser, *, max_tokens: int, several: bool) -> None:
    """Add them. max_tokens: the default. several: also those that make more than a text of a prompt.

    Values are left to SamplingParams to judge: argparse takes any number.
    """
    group = parser.add_argument_group("sampling")
    group.add_argument(
        "--max-tokens",
        type=int,
        default=max_tokens,
        metavar="N",
        help=f"tokens to make at most (default: {max_tokens})",
    )
    group.add_argument("--min-tokens", type=int, metavar="N", help="do not stop before as many (default: 0)")
    group.add_argument("--temperature", type=float, metavar="T", help="0 takes the likeliest token (default: 1)")
    group.add_argument("--top-p", type=float, metavar="P", help="keep the likeliest tokens of this mass (default: 1)")
    group.add_argument("--top-k", type=int, metavar="K", help="keep the K likeliest tokens (default: all)")
    group.add_argument(
        "--seed",
        type=int,
        metavar="S",
        help="the same prompt, options and seed give the same text (default: drawn at random)",
    )
    group.add_argument("--stop", action="append", metavar="TEXT", help="end before this text; may be repeated")
    group.add_argument(
        "--stop-token-id",
        action="append",
        type=int,
        dest="stop_token_ids",
        metavar="ID",
        help="end at this token; may be repeated",
    )
    group.add_argument("--ignore-eos", action="store_true", default=None, help="go on past the model's end token")
    group.add_argument(
        "--structure",
        nargs=2,
        metavar=("KIND", "GRAMMAR"),
        help="what the text has to match: json SCHEMA, regex R, ebnf G, or choice 'A|B' (needs xgrammar)",
    )
    if several:
        group.add_argument("--n", type=int, metavar="N", help="completions of each prompt (default: 1)")
        group.add_argument(
            "--logprobs",
            type=int,
            metavar="N",
            help="tell log-probabilities: of the chosen token (0), and of the N likeliest",
        )
        group.add_argument("--prompt-logprobs", type=int, metavar="N", help="the same for the prompt's tokens")
        group.add_argument(
            "--logprobs-mode",
            choices=("raw", "processed"),
            help="before or after temperature and filters (default: raw)",
        )


def given_options(args: argparse.Namespace) -> dict[str, Any]:
    """The sampling options that were given, by their fields' names, as JSON could hold them.

    Raises:
        ValueError: a choice is written as JSON.
    """
    names = [field for field in field_names() if getattr(args, field, None) is not None]
    found = {name: getattr(args, name) for name in names}
    if "structure" in found:
        kind, grammar = found["structure"]
        found["structure"] = {"kind": kind, "grammar": _choice(grammar) if kind == "choice" else grammar}
    return found


def _choice(text: str) -> list[str]:
    """The texts of a choice. ValueError: it is a JSON list of texts, which would be a single one."""
    try:
        value = strict_json(text)
    except ValueError:
        return text.split("|")
    if not (isinstance(value, list) and value and all(isinstance(one, str) for one in value)):
        return text.split("|")
    example = "" if any("|" in one for one in value) else f": {shlex.quote('|'.join(value))}"
    raise ValueError(
        f"structure: a choice is written 'A|B' here{example}; it is a list in a Structure of Python and in a line for "
        "generate"
    )


def field_names() -> tuple[str, ...]:
    """What a request may say of sampling."""
    from deepinfer.sampling import SamplingParams

    return tuple(field.name for field in dataclasses.fields(SamplingParams) if field.init)


def params_of(values: Mapping[str, Any]) -> SamplingParams:
    """Sampling parameters of fields by name.

    Raises:
        TypeError, ValueError: a field is unknown, or its value is not allowed; the message names it.
    """
    from deepinfer.sampling import SamplingParams, Structure

    known = field_names()
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            raise ValueError(f"there is no field {name!r}: {hint}")
    fields = dict(values)
    for name, value in fields.items():
        for text in _texts_in(value):
            check_text(text, name, as_it_is=True)
    structure = fields.get("structure")
    if isinstance(structure, Mapping):
        if set(structure) != {"kind", "grammar"}:
            raise ValueError('structure must have the fields "kind" and "grammar", and no other')
        fields["structure"] = Structure(**structure)
    return SamplingParams(**fields)


def _texts_in(value: object) -> Iterator[str]:
    """Every text in a value of JSON, names of fields among them."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, Mapping):
            left += [*one.keys(), *one.values()]
        elif isinstance(one, list):
            left += one


def params_of_options(args: argparse.Namespace) -> SamplingParams:
    """Sampling parameters of a command line.

    Raises:
        UsageError: a value is not allowed; the message names the option's field.
    """
    _check_locale(args)
    try:
        params = params_of(given_options(args))
        check_structure_of(params)
    except InputError as problem:
        raise _bad_option(problem.what, args) from problem
    except DeepInferError:
        raise
    except (TypeError, ValueError) as problem:
        raise _bad_option(str(problem), args) from problem
    return params


def _check_locale(args: argparse.Namespace) -> None:
    for option, texts in (("--stop", args.stop), ("--structure", args.structure)):
        for text in texts or ():
            try:
                check_argument(text, option)
            except InputError as problem:
                raise UsageError(problem.what, cause=problem.cause, next_step=problem.next_step) from problem


def _bad_option(what: str, args: argparse.Namespace) -> UsageError:
    kind, grammar = args.structure or ("", "")
    file = _file_meant(kind, grammar) if what.startswith("structure") else ""
    itself = "the schema" if kind == "json" else "the grammar"
    return UsageError(
        f"the options cannot be taken: {what}",
        cause=f"{kind} is followed by {itself} itself, not by the name of a file" if file else "",
        next_step="correct this option" + (f': --structure {kind} "$(cat {shlex.quote(file)})"' if file else ""),
    )


def _file_meant(kind: str, grammar: str) -> str:
    """The file that was named in the place of a grammar, with or without the @ that some commands want before one."""
    schema = grammar.lstrip().startswith(("{", "[", '"')) or grammar.strip() in ("true", "false")
    if (kind == "json" and not schema) or (kind == "ebnf" and "::=" not in grammar):
        name = grammar.strip().removeprefix("@")
        return name if "\n" not in name else ""
    return ""


def check_structure_of(params: SamplingParams) -> None:
    """What can be said of their structure, if they have one, without a model.

    Raises:
        ValueError: it is wrong; the message begins with "structure".
        DeepInferError: what it needs is not installed.
    """
    if params.structure is not None:
        from deepinfer.structured_output import check_structure

        check_structure(params.structure)


def told(problem: Exception, where: str) -> InputError:
    """The error of a request that the engine does not take. where: how it names the request."""
    return InputError(f"{where} cannot be taken: {problem}", next_step="correct what the message names")
