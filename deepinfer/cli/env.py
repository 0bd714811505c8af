"""`deepinfer env`: what the engine finds on this machine."""

from __future__ import annotations

import argparse
import json

from deepinfer import environment
from deepinfer.environment.report import DEFAULT_TIMEOUT_S

HELP = "show versions, GPUs and driver, optional parts, and the variables in effect"


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's own options."""
    parser.add_argument("--json", action="store_true", help="print everything as JSON, alone on stdout")
    parser.add_argument(
        "--timeout", type=_seconds, default=DEFAULT_TIMEOUT_S, metavar="SECONDS",
        help=f"how long each part may take to answer (default {DEFAULT_TIMEOUT_S:g})",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Print the report. 0 whatever it says: what is absent is a row, not a failure of this command."""
    report = environment.collect(args.timeout)
    print(json.dumps(report, indent=2) if args.json else environment.render(report))
    return 0
