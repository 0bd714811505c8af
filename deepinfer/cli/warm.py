"""`deepinfer warm`: compile the Triton kernels of a run now instead of at the first request."""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from deepinfer import envs
from deepinfer.errors import DeepInferError, UsageError

if TYPE_CHECKING:
    from deepinfer.warm.providers import Provider
    from deepinfer.warm.work import Result

HELP = "compile the Triton kernels of a run for sm_90a into Triton's cache; needs no GPU"

_DONE, _FAILED = 0, 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's own options."""
    parser.add_argument("--json", action="store_true", help="print the report as JSON, alone on stdout")
    parser.add_argument(
        "--only", default="", metavar="NAME[,NAME...]", help="these alone, as the report names them (default: all)"
    )


def run(args: argparse.Namespace) -> int:
    """Fill the cache. 0: every kernel is in it; 5: some did not compile."""
    if envs.read(envs.TRITON_INTERPRET) not in ("", "0"):
        raise UsageError("TRITON_INTERPRET is set: nothing is compiled then", next_step="unset TRITON_INTERPRET")
    try:
        from deepinfer.warm import work
        from deepinfer.warm.providers import PROVIDERS
    except ImportError as problem:
        raise DeepInferError(
            f"kernels cannot be compiled: {problem}",
            cause="Triton or torch is absent, or cannot be imported",
            next_step="`deepinfer env` says what is here",
        ) from problem
    report = work.fill(_chosen(PROVIDERS, args.only), on_result=_tell)
    print(json.dumps(report.to_json(), indent=2) if args.json else _as_text(report.to_json()))
    return _DONE if report.ok else _FAILED


def _chosen(providers: Sequence[Provider], only: str) -> Sequence[Provider]:
    named = {provider.name: provider for provider in providers}
    wanted = [name.strip() for name in only.split(",") if name.strip()]
    for name in wanted:
        if name not in named:
            near = difflib.get_close_matches(name, named, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(named)}"
            raise UsageError(f"--only {name}: no kernels have this name", next_step=hint)
    return [named[name] for name in wanted] or providers


def _tell(result: Result) -> None:
    """A line on stderr as each is done: all of them take minutes where nothing is found."""
    state = f", {len(result.problems)} FAILED" if result.problems else ""
    print(f"{result.name}: {result.kernels} kernels, {result.seconds:.1f} s{state}", file=sys.stderr, flush=True)


def _as_text(report: dict[str, object]) -> str:
    kernels, modules, providers = report["kernels"], report["modules"], report["providers"]
    assert isinstance(kernels, dict)
    assert isinstance(modules, dict)
    assert isinstance(providers, list)
    lines = [f"Triton {report['triton']} for {report['target']}, cache {report['folder']}"]
    if report["warm"]:
        lines.append(f"  warm entries, read only: {report['warm']}")
    lines.append(f"  kernels: {kernels['compiled']} compiled, {kernels['found']} found")
    lines.append(f"  C modules: {modules['compiled']} compiled, {modules['found']} found")
    if report["without_modules"]:
        lines.append(f"  C modules are left to the first launch: {report['without_modules']}")
    for provider in providers:
        lines.append(f"  {provider['name']}: {provider['kernels']} kernels")
        lines += [f"    FAILED: {problem}" for problem in provider["problems"]]
    return "\n".join(lines)
