"""`python3 -m build.gpu --gpus N`: the GPU stage under this very Python, without an image or a prefix of ours.

For a machine that was set up by hand. DEEPINFER_HOME names the prefix with deep_gemm and deep_ep, if there is one.
Exit code 0 when every row passed, 1 for a mistake of the command line, 5 otherwise.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from build.arguments import Parser
from build.call import call
from build.errors import UsageError
from build.gpu.stage import as_table, run_stage, tell


def launch_here(argv: Sequence[str], limit: float) -> subprocess.CompletedProcess[str]:
    """Run with this Python, in the environment as it is."""
    return call(sys.executable, *argv[1:], timeout=limit, quiet=True, check=False)


def _version_of(folder: str) -> str:
    """The version of the Triton in a folder, by its dist-info. Raises UsageError where it holds none, or several."""
    found = sorted(Path(folder).glob("triton-*.dist-info"))
    if len(found) != 1:
        raise UsageError(
            f"--triton {folder} holds no single unpacked Triton (triton-X.dist-info)",
            next_step=f"python3 -m pip install --no-deps --target {folder} triton==X",
        )
    return found[0].name.removeprefix("triton-").removesuffix(".dist-info")


def main() -> int:
    """Parse, run, print."""
    parser = Parser(prog="python3 -m build.gpu", description="run the GPU stage with this Python")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--triton", action="append", default=[], metavar="DIR", help="a folder with an unpacked Triton")
    parser.add_argument("--unsupported", action="append", default=[], metavar="NAME=REASON")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON, alone on stdout")
    try:
        args = parser.parse_args()
        if args.gpus < 1:
            parser.error("--gpus needs at least 1")
        tritons = {_version_of(folder): str(Path(folder).absolute()) for folder in args.triton}
    except UsageError as problem:
        print(problem, file=sys.stderr)
        return problem.exit_code
    unsupported = dict(entry.partition("=")[::2] for entry in args.unsupported)

    rows = run_stage(launch_here, args.gpus, tritons, unsupported=unsupported, on_row=tell)
    print(as_table(rows), file=sys.stderr if args.json else sys.stdout)
    if args.json:
        print(json.dumps([row.to_json() for row in rows], indent=2))
    return 0 if all(row.ok for row in rows) else 5


if __name__ == "__main__":
    sys.exit(main())
