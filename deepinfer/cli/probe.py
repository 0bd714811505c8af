"""`deepinfer probe`: does this Triton make right code for Hopper?"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from deepinfer.probe import Report, as_text, run_probe

HELP = "check that Triton compiles right code for Hopper (sm_90a), and runs it where a Hopper GPU is"

_PASSED, _USAGE, _FAILED = 0, 1, 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's own options."""
    parser.add_argument("--json", action="store_true", help="print the report as JSON, alone on stdout")
    parser.add_argument("--compile-only", action="store_true", help="run nothing, even where a Hopper GPU is")
    parser.add_argument(
        "--triton",
        action="append",
        default=[],
        metavar="DIR[,DIR...]",
        help="probe the Triton unpacked in DIR instead; may be repeated (pip install --no-deps --target DIR triton==X)",
    )
    parser.add_argument(
        "--timeout", type=float, default=300.0, metavar="SECONDS", help="time limit for each Triton (default 300)"
    )


def run(args: argparse.Namespace) -> int:
    """Probe this Python's Triton, or each folder of --triton. 0: all that could be done passed; 5: not; 1: usage."""
    folders = [folder for given in args.triton for folder in given.split(",") if folder]
    problem = _usage_problem(folders, args)
    if problem:
        print(problem, file=sys.stderr)
        return _USAGE
    reports: list[Report] = []
    for folder in folders or [""]:
        reports.append(run_probe(folder, compile_only=args.compile_only, timeout=args.timeout))
        print(as_text(reports[-1]), file=sys.stderr if args.json else sys.stdout, flush=True)
    passed = all(report.ok for report in reports)
    if args.json:
        probes = [report.to_json() for report in reports]
        print(json.dumps({"ok": passed, "probes": probes} if args.triton else probes[0], indent=2))
    return _PASSED if passed else _FAILED


def _usage_problem(folders: list[str], args: argparse.Namespace) -> str:
    if args.triton and not folders:
        return "error: --triton needs a folder\n  next step: deepinfer probe --triton DIR"
    if not args.timeout > 0:
        return f"error: --timeout {args.timeout:g} is not a time\n  next step: give seconds, for example --timeout 300"
    for folder in folders:
        if not Path(folder, "triton", "__init__.py").is_file():
            return (
                f"error: {folder} holds no Triton (there is no file triton/__init__.py in it)\n"
                f"  next step: pip install --no-deps --target {folder} triton==3.7.1"
            )
    return ""
