"""The figures as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.ops.table import micro

Row = Mapping[str, Any]


def markdown(found: Row) -> str:
    """Facts, and a table for each forward."""
    return "\n\n".join([_facts(found), *(_forward(one) for one in found["forwards"])]) + "\n"


def _facts(found: Row) -> str:
    model = found["model"]
    used = "limit" if model["candidates_limit"] else "do not limit"
    return "\n".join(
        [
            "# Kernels of a step",
            "",
            f"{found['device']}, driver {found['driver'] or 'none'}, torch {found['torch']}, CUDA "
            f"{found['cuda'] or 'none'}, Triton {found['triton']}, ptxas {found['ptxas']}, commit {found['commit']}, "
            f"{found['date']}.",
            f"{model['layers']} of {model['of_layers']} layers ({model['kinds']}), hidden {model['hidden']}, "
            f"{model['experts']} experts, dummy weights of {model['weight_bytes'] / 2**30:.1f} GiB, n-gram tables of "
            f"at most {model['engram_rows']} rows; {model['context']} tokens of context, at which candidate blocks "
            f"{used} what the later layers choose from. Backend {found['backend']}, {found['gemm']} products.",
            f"Copy of the same run: {found['copy_bytes_per_second'] / 1e12:.2f} TB/s, read and written; product in "
            f"bfloat16: {found['product_operations_per_second'] / 1e12:.3g} TFLOP/s. Times are medians in us of all "
            "calls of a forward together, with cold caches. The floor is the longer of the bytes that have to move at "
            "the copy's speed (of the weights of experts, those that rows were sent to) and the operations at the "
            "product's. `g`: in a CUDA graph; `s`: launched one by one.",
        ]
    )


def _forward(one: Row) -> str:
    title = "Decode step" if one["kind"] == "decode" else "Prefill chunk"
    lines = [f"## {title}, {one['rows']} {'row' if one['rows'] == 1 else 'rows'}", ""]
    graph = one["graph_seconds"]
    shown = f"{micro(graph)} us" if graph is not None else f"none ({one['graph_problem']})"
    lines.append(
        f"Whole: {micro(one['eager_seconds'])} us launched from the host, in a CUDA graph {shown}. All kernels: "
        f"{micro(one['kernels_seconds'])} us, their floors {micro(one['floor_seconds'])} us."
    )
    if one["experts"]:
        each = sum(one["experts"]) / len(one["experts"])
        lines.append(f"Experts that a layer's rows were sent to: {each:.1f} on average, of {one['of_experts']}.")
    lines += ["", "| kernel | calls | us | MB | GFLOP | floor us | of floor |", "|---|---:|---:|---:|---:|---:|---:|"]
    for row in one["kernels"]:
        cells = [
            row["kernel"].removesuffix("_tl"),
            str(row["calls"]),
            f"{micro(row['seconds'])} {row['how'][0]}",
            f"{row['bytes'] / 1e6:.3g}",
            f"{row['operations'] / 1e9:.3g}" if row["operations"] else "",
            micro(row["floor_seconds"]),
            f"{row['fraction']:.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
