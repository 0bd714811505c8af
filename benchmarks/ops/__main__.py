"""Command line of the kernels' benchmarks."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.arguments import counts
from benchmarks.ops import dry, run, table
from benchmarks.ops.entries import entries
from benchmarks.ops.facts import ROOT
from benchmarks.ops.plan import Column, Order
from deepinfer.command_line import Parser, exit_code
from deepinfer.errors import DeepInferError, UsageError
from deepinfer.ops.ab.selection import factories
from deepinfer.ops.names import FAMILIES

UPSTREAM = "deepinfer.model_executor.layers.tilelang_ops.cuda"
SHARES = {"triton": 4.0, "reference": 1.5, "compiled": 2.0, "upstream": 2.0}
"""How the time is shared between columns; another Triton counts as "triton" by half."""
REFUSED = 5
"""The exit code where a kernel does not accept a call, or does not compile."""
EXAMPLES = """examples:
  python -m benchmarks.ops --dry-run                          build every call and run the reference, on a CPU
  python -m benchmarks.ops norm 'gather*' --rows 64,16384     some families or kernels
  python -m benchmarks.ops --triton T351 --triton T371 --upstream UP --seconds 540 --out results
                                                              all there is, in less than ten minutes
  python -m benchmarks.ops --report results                   table, JSON and plot again, as after a run that was killed
Run it from the project's root. What is measured is in OUT/rows.jsonl at once, and after each column in
OUT/results.json, OUT/table.md and OUT/fraction.svg (or .png). A missed bar is shown and is no failure.
exit code 5: with --dry-run a call was not accepted, with --compile one did not compile."""


def main(argv: Sequence[str]) -> int:
    """Measure, print the table, and return the exit code."""
    parser = _parser()
    try:
        given = parser.parse_args(argv)
    except SystemExit as done:  # --help
        return int(done.code or 0)
    chosen = factories(given.names or list(FAMILIES))
    if given.report:
        if not (given.report / run.ROWS).is_file():
            raise UsageError(f"{given.report} has no {run.ROWS}", next_step="name the --out folder of a run")
        return _show(run.report(given.report, chosen, list(argv)), as_json=given.json)
    if given.compile:
        return _compile(chosen, as_json=given.json)
    if given.dry_run:
        return _dry(chosen, as_json=given.json)
    if given.device == "cuda" and not torch.cuda.is_available():
        raise DeepInferError(
            "PyTorch sees no GPU", next_step="python -m benchmarks.ops --dry-run, or a machine with a GPU"
        )
    if not Path("benchmarks/ops").resolve().is_relative_to(ROOT):
        raise UsageError("this is not the project's root", next_step=f"cd {ROOT}")
    order = Order(Column("", ""), chosen, given.rows, given.device, "", str(given.cache or ""))
    found = run.run(
        _columns(given), order, given.out, lambda text: print(text, file=sys.stderr, flush=True), list(argv)
    )
    return _show(found, as_json=given.json)


def _show(found: dict[str, Any], *, as_json: bool) -> int:
    print(json.dumps(found) if as_json else table.markdown(found))
    return 0


def _columns(given: argparse.Namespace) -> list[Column]:
    """Ours first, then what is beside it; each with its share of the time."""
    found = [(Column("triton", "triton"), SHARES["triton"])]
    wanted = given.columns.split(",") if given.columns else []
    if unknown := sorted(set(wanted) - {"reference", "compiled"}):
        raise UsageError(f"--columns has no {unknown[0]!r}", next_step="use reference, compiled, both or ''")
    found += [(Column(kind, kind), SHARES[kind]) for kind in ("reference", "compiled") if kind in wanted]
    for path in given.triton:
        folder = _folder(path)
        found.append((Column(f"triton {_triton_version(folder)}", "triton", str(folder)), SHARES["triton"] / 2))
    if given.upstream:
        path = os.pathsep.join(str(_folder(Path(one))) for one in given.upstream.split(os.pathsep))
        found.append((Column("upstream", "upstream", path, given.upstream_module), SHARES["upstream"]))
    labels = [column.label for column, _ in found]
    if len(set(labels)) < len(labels):
        raise UsageError("two folders of --triton hold one version", next_step="leave one of them out")
    total = sum(share for _, share in found)
    return [
        Column(one.label, one.kind, one.path, one.module, max(given.seconds * share / total - run.START, 1.0))
        for one, share in found
    ]


def _folder(path: Path) -> Path:
    if not path.is_dir():
        raise UsageError(f"{path} is no folder", next_step="name the folder that goes on PYTHONPATH")
    return path.resolve()


def _triton_version(folder: Path) -> str:
    try:
        text = (folder / "triton" / "__init__.py").read_text(encoding="utf-8")
    except OSError:
        text = ""
    found = re.search(r"^__version__\s*=\s*['\"]([^'\"]+)", text, re.MULTILINE)
    if found is None:
        raise UsageError(
            f"there is no Triton in {folder}", next_step=f"pip install --no-deps --target {folder} triton==3.5.1"
        )
    return found[1]


def _dry(chosen: Sequence[str], *, as_json: bool) -> int:
    rows = []
    for key, problem in dry.check(entries(chosen)):
        rows.append({"key": key, "problem": problem})
        print(f"{'ok   ' if not problem else 'WRONG'} {key} {problem}".rstrip(), file=sys.stderr, flush=True)
    wrong = sum(bool(row["problem"]) for row in rows)
    if as_json:
        print(json.dumps({"rows": rows}))
    else:
        print(f"{len(rows) - wrong} of {len(rows)} calls accepted")
    return REFUSED if wrong else 0


def _compile(chosen: Sequence[str], *, as_json: bool) -> int:
    import triton  # here: the rest of this program goes without

    from benchmarks.ops import compiling

    count = compiling.compile_entries(entries(chosen))
    variants = {name: len(hashes) for name, hashes in sorted(count.variants.items())}
    for problem in count.problems:
        print(problem, file=sys.stderr, flush=True)
    if as_json:
        told = {"triton": triton.__version__, "variants": variants, "seconds": count.seconds}
        print(json.dumps({**told, "problems": count.problems}))
    else:
        print("\n".join(f"{number:4d}  {name}" for name, number in variants.items()))
        print(f"{sum(variants.values())} variants under Triton {triton.__version__}, {count.seconds:.1f} s to compile")
    return REFUSED if count.problems else 0


def _parser() -> Parser:
    parser = Parser(
        prog="python -m benchmarks.ops",
        description="Measure the kernels at the shapes of the real model.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="families or kernels; globs (default: all)")
    add("--rows", type=counts, default=(), metavar="N,N", help="only these numbers of rows (default: all there are)")
    add("--columns", default="reference,compiled", metavar="KIND,KIND",
        help="what is measured beside Triton: reference, compiled (torch.compile of it); '' for neither")  # fmt: skip
    add("--triton", action="append", type=Path, default=[], metavar="DIR",
        help="another Triton, unpacked in DIR, as a column of its own; may be repeated")  # fmt: skip
    add("--upstream", metavar="DIR", help="upstream's package in DIR, as a column of its own; DIR:DIR with TileLang's")
    add("--upstream-module", default=UPSTREAM, metavar="MODULE",
        help=f"its module of factories, or a package of such modules (default: {UPSTREAM})")  # fmt: skip
    add("--seconds", type=_seconds, default=540.0, metavar="N", help="for all columns together (default: 540)")
    add("--out", type=Path, default=ROOT / "benchmarks" / "results" / "ops", metavar="DIR", help="folder for results")
    add(
        "--cache", type=Path, metavar="DIR", help="Triton's caches, kept; compiled kernels then cost no time to compile"
    )
    add("--device", default="cuda", choices=("cuda", "cpu"), help="cpu: the interpreter or the reference, for tests")
    add("--dry-run", action="store_true", help="few rows on a CPU, the reference only, nothing is measured")
    add("--compile", action="store_true", help="compile for a Hopper GPU, without one; count variants and seconds")
    add("--report", type=Path, metavar="DIR", help="measure nothing: make the files of a run in DIR from its rows")
    add("--json", action="store_true", help="print JSON alone on stdout")
    return parser


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 1e5:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 1 on")
    return seconds


if __name__ == "__main__":
    sys.exit(exit_code(lambda: main(sys.argv[1:])))
