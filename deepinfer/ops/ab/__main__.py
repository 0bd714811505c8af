"""Command line of the A/B harness."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from deepinfer.command_line import Parser, exit_code
from deepinfer.errors import UsageError

EXAMPLES = """examples:
  python -m deepinfer.ops.ab                                 reference against triton, every case, on this GPU
  python -m deepinfer.ops.ab 'gather*' norm_tl               some families or kernels
  TRITON_INTERPRET=1 python -m deepinfer.ops.ab --device cpu Triton's interpreter, without a GPU
  python -m deepinfer.ops.ab --dump DIR                      keep what triton makes of the cases here ...
  python -m deepinfer.ops.ab --compare DIR                   ... and compare there, or under another Triton
  python -m deepinfer.ops.ab --backend deepinfer.ops --path UPSTREAM
                                                             another package's kernels, in a process of its own
exit codes: 0 AB_OK; 1 something differs, or a mistake on the command line; 4 this machine cannot"""


def main(argv: Sequence[str]) -> int:
    """Compare or dump, print, and return the exit code."""
    parser = _parser()
    try:
        given = parser.parse_args(argv)
    except SystemExit as done:  # --help
        return int(done.code or 0)
    if (given.backend is None) != (given.path is None):
        raise UsageError("--backend and --path go together", next_step="name the module, and the folder it is in")
    if given.path is not None and not given.path.is_dir():
        raise UsageError(
            f"--path {given.path} is no folder", next_step=f"name the folder in which {given.backend} is found"
        )
    if given.dump is not None and given.compare is not None:
        raise UsageError("--dump and --compare exclude each other", next_step="dump first, compare elsewhere")
    from deepinfer.ops.ab.work import (
        Options,
        compare_sides,
        make_dump,
    )  # with PyTorch, whose lack is told by the caller

    options = Options(
        names=given.names,
        expected=given.expected,
        got=given.got,
        device=given.device,
        module=given.backend or "",
        path=given.path or Path(),
        timeout=given.timeout,
        skips=[_skip(text) for text in given.skip],
        json=given.json,
        events=given.events,
    )
    if given.dump is not None:
        return make_dump(options, given.dump)
    return compare_sides(options, given.compare)


def _parser() -> Parser:
    parser = Parser(
        prog="python -m deepinfer.ops.ab",
        description="Run the kernels' cases on two sides and compare the results element by element.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="families or kernels; globs (default: all)")
    add("--expected", default="reference", metavar="BACKEND", help="the side that is right (default: reference)")
    add("--got", default="triton", metavar="BACKEND", help="the side that is examined or dumped (default: triton)")
    add("--device", default="cuda", choices=("cuda", "cpu"), help="where both run (default: cuda)")
    add("--dump", type=Path, metavar="DIR", help="write inputs, outputs and versions of --got, compare nothing")
    add("--compare", type=Path, metavar="DIR", help="compare --got with what a dump holds, on the dump's inputs")
    add("--backend", metavar="MODULE", help="a module that has factories of the same names, as the expected side; "
        "with --dump or --compare as the examined one")  # fmt: skip
    add("--path", type=Path, metavar="DIR", help="PYTHONPATH of that module's process")
    add("--skip", action="append", default=[], metavar="GLOB=REASON",
        help="leave out FACTORY or FACTORY/CASE for a reason; may be repeated")  # fmt: skip
    add("--timeout", type=_seconds, default=3600.0, metavar="SECONDS", help="for that process (default: 3600)")
    add("--json", action="store_true", help="print JSON alone on stdout")
    add("--events", action="store_true", help="print a line of JSON on stdout as each case begins and ends")
    return parser


def _skip(text: str) -> tuple[str, str]:
    pattern, _, reason = text.partition("=")
    if not pattern.strip() or not reason.strip():
        raise UsageError(
            f"--skip {text!r} lists no reason", next_step="--skip 'norm_tl/odd*=upstream has no odd widths'"
        )
    return pattern.strip(), reason.strip()


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


if __name__ == "__main__":
    sys.exit(exit_code(lambda: main(sys.argv[1:])))
