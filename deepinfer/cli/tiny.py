"""`deepinfer tiny`: write a small checkpoint in the real format."""

from __future__ import annotations

import argparse
from pathlib import Path

from deepinfer import interrupts

HELP = "write a small model in the real checkpoint format, with random weights, to try everything on"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's arguments."""
    parser.add_argument("folder", metavar="DIR", type=Path, help="a folder that is not there yet, or empty")
    parser.add_argument("--seed", type=int, default=0, help="of the weights (default: 0)")


def run(args: argparse.Namespace) -> int:
    """Write it and say how large it is."""
    from deepinfer.loading.tiny import write_tiny

    with interrupts.termination_too():
        size = write_tiny(args.folder, args.seed)
    print(f"{args.folder}: {size / 1e6:.1f} MB of random weights")
    return 0
