"""`deepinfer probe`: does this Triton make right code for Hopper?"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path

from deepinfer.errors import UsageError
from deepinfer.probe import Report, as_text, run_probe

HELP = "check that Triton compiles right code for Hopper (sm_90a), and runs it where a Hopper GPU is"

_PASSED, _FAILED = 0, 5


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
    """Probe this Python's Triton, or each folder of --triton. 0: all that could be done passed; 5: not."""
    folders = [folder for given in args.triton for folder in given.split(",") if folder]
    _check_usage(folders, args)
    reports: list[Report] = []
    for folder in folders or [""]:
        reports.append(run_probe(folder, compile_only=args.compile_only, timeout=args.timeout))
        if not args.json:
            print(as_text(reports[-1]), flush=True)
        elif not reports[-1].ok:  # a terminal mixes both streams: where all is well there is JSON alone
            print(as_text(reports[-1]), file=sys.stderr, flush=True)
    passed = all(report.ok for report in reports)
    if args.json:
        probes = [report.to_json() for report in reports]
        print(json.dumps({"ok": passed, "probes": probes} if args.triton else probes[0], indent=2))
    return _PASSED if passed else _FAILED


def _check_usage(folders: list[str], args: argparse.Namespace) -> None:
    if args.triton and not folders:
        raise UsageError("--triton needs a folder", next_step="deepinfer probe --triton DIR")
    if not 0 < args.timeout <= 86400:
        raise UsageError(
            f"--timeout {args.timeout:g} is not a time", next_step="give seconds, for example --timeout 300"
        )
    for folder in folders:
        if not Path(folder, "triton", "__init__.py").is_file():
            raise UsageError(
                f"{folder} holds no Triton (there is no file triton/__init__.py in it)",
                next_step=f"pip install --no-deps --target {shlex.quote(folder)} triton==3.7.1",
            )
