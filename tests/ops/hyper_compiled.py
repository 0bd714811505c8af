"""What settles the order of `hyper_step`'s sums in the kernels that few rows and many are given, compiled for sm_90a:
`python -m tests.ops.hyper_compiled` prints it as JSON, a row for each kernel.

A sum over an axis of more than two numbers is in an order that the layout decides, and the tile decides the layout; the
interpreter has no layouts and cannot tell.
"""

from __future__ import annotations

import json
import re
from typing import Any

import torch
import triton

from deepinfer.ops import using
from deepinfer.ops.hyper import hyper_step
from deepinfer.ops.launch import compiling
from deepinfer.ops.variants import HopperDriver

ROWS = (1, 300)
WIDTH = 5120
_REDUCTION = re.compile(
    r'"tt\.reduce"\((?P<of>%\w+)\) <\{axis = (?P<axis>\d+) : i32\}> \(\{(?P<body>.*?)\}\) : \(tensor<(?P<shape>[^>]*)>',
    re.DOTALL,
)


def addends(ttir: str) -> list[int]:
    """Of every sum of floats over an axis: how many it adds. None of one number among zeros, which has no order."""
    found = []
    for one in _REDUCTION.finditer(ttir):
        chosen = re.search(rf"{re.escape(one['of'])} = arith\.select %\w+, %\w+, %cst\w* ", ttir)
        if "arith.addf" in one["body"] and not chosen:
            found.append(int(one["shape"].split("x")[int(one["axis"])]))
    return found


def _facts(kernel: Any, compiled: Any, rows: int, given: bool) -> dict[str, Any]:
    ttir, ptx = compiled.asm["ttir"], compiled.asm["ptx"]
    zeros = set(re.findall(r"(%\w+) = arith\.constant dense<0\.0+e\+00> : tensor<\d+x\d+xf32>", ttir))
    starts = re.findall(r"tt\.dot %\w+, %\w+, (%\w+),", ttir)
    return {
        "kernel": kernel.__name__,
        "rows": rows,
        "after a sub-layer": given,
        "addends": addends(ttir),
        "products": len(starts),
        "products onto a sum": sum(start not in zeros for start in starts),
        "instructions of products": sorted(set(re.findall(r"\b(?:wg)?mma[.\w]*\.f32\.[.\w]+", ptx))),
        "fused additions": len(re.findall(r"\bfma\.rn\S*\.f32", ptx)),
    }


def facts() -> list[dict[str, Any]]:
    """For a process that does nothing else: Triton's driver is a stand-in afterwards."""
    triton.runtime.driver.set_active(HopperDriver())  # type: ignore[arg-type]  # what is used of DriverBase
    found: list[dict[str, Any]] = []
    for given in (True, False):
        for n in ROWS:
            rows = [torch.empty(n, 4, WIDTH, dtype=torch.bfloat16), None, None, None, torch.empty(n, 4)]
            if given:
                rows[1:4] = [torch.empty(n, WIDTH, dtype=torch.bfloat16), torch.empty(n, 4), torch.empty(n, 4, 4)]
            fixed = (torch.empty(24, 4 * WIDTH), torch.empty(24), torch.empty(3), torch.empty(WIDTH).bfloat16())
            launches: list[tuple[Any, Any]] = []
            with using("triton"), compiling(lambda *one, launches=launches: launches.append(one)):
                hyper_step(*rows, *fixed, 1e-20, 1e-6, 20)  # type: ignore[arg-type]  # a list has no types of its own
            found += [_facts(*one, n, given) for one in launches]
    return found


if __name__ == "__main__":
    print(json.dumps({"triton": triton.__version__, "kernels": facts()}))
