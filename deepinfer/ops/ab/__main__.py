"""Command line of the A/B harness."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence

from deepinfer.ops.ab.compare import compare
from deepinfer.ops.cases import cases
from deepinfer.ops.names import FAMILIES


def main(argv: Sequence[str]) -> int:
    """Compare, print, and return the exit code: 0 where every case agrees, else 1."""
    parser = argparse.ArgumentParser(prog="python -m deepinfer.ops.ab", description=__doc__)
    parser.add_argument("names", nargs="*", help="families (default: all)")
    parser.add_argument("--expected", default="reference", help="the backend that is right (default: reference)")
    parser.add_argument("--got", default="triton", help="the backend that is examined (default: triton)")
    parser.add_argument("--device", default="cuda", help="cpu needs TRITON_INTERPRET=1 for triton (default: cuda)")
    parser.add_argument("--json", action="store_true", help="print JSON alone on stdout")
    options = parser.parse_args(argv)
    chosen = [case for case in cases(options.names or FAMILIES) if options.device != "cpu" or not case.large]
    rows = []
    for row in compare(chosen, options.expected, options.got, options.device):
        rows.append(row)
        print(f"{'ok   ' if row.ok else 'WRONG'} {row.factory} {row.case}", file=sys.stderr, flush=True)
        for problem in row.problems:
            print(f"      {problem}", file=sys.stderr, flush=True)
    if options.json:
        print(json.dumps([dataclasses.asdict(row) for row in rows]))
    return 0 if all(row.ok for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
