"""`TRITON_INTERPRET=1 python -m deepinfer.probe.interpreted`: the kernels in Triton's interpreter, on the CPU.

It proves kernels and answers against each other where no GPU is; it says nothing about the compiler. Prints one JSON
object: case name -> "ok", what is wrong, or "not interpreted: reason". Exit code 0 when nothing is wrong, 5 otherwise.
"""

import json
import sys

import triton

from deepinfer.probe.checks import CHECKS
from deepinfer.probe.work import run_case


def main() -> int:
    """Run every case that the interpreter can run."""
    if not triton.knobs.runtime.interpret:
        print("error: set TRITON_INTERPRET=1 before starting this program", file=sys.stderr)
        return 1
    results: dict[str, str] = {}
    passed = True
    for case in (case for check in CHECKS for case in check.cases):
        example = case.interpreted if case.interpreter_fault else case.example
        if example is None:
            results[case.name] = f"not interpreted: {case.interpreter_fault}"
            continue
        wrong, _ = run_case(case, example(), "cpu")
        results[case.name] = wrong or "ok"
        passed = passed and not wrong
    print(json.dumps(results))
    return 0 if passed else 5


if __name__ == "__main__":
    sys.exit(main())
