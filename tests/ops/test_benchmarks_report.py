"""What `python -m benchmarks.ops` makes of measured rows: bars, document, table and plot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.ops import plot, results, table
from benchmarks.ops.entries import entries
from deepinfer.ops.names import FAMILIES, FAMILY_OF

ENTRIES = entries([name for names in FAMILIES.values() for name in names])


def row(name: str, factory: str, entry: str, rows: int, seconds: float, moved: int, **more: object) -> dict:
    known = {"column": name, "kind": "row", "key": f"{factory}/{entry}@{rows}", "family": FAMILY_OF[factory]}
    measured = {"seconds": seconds, "best_seconds": seconds, "moved_bytes": moved, "samples": 5, "how": "graph"}
    rest = {"buffers": 2, "beyond_cache": True, "first_seconds": 1.0, "compile_seconds": 0.5}
    return {**known, "factory": factory, "entry": entry, "rows": rows, "problem": "", **measured, **rest,
            "variants": [f"_kernel:{seconds}"], **more}  # fmt: skip


def facts(name: str, implementation: str) -> list[dict]:
    """A column's lines before its rows; its copy reaches 4 TB/s."""
    known = {"device": "a <GPU>", "driver": "580", "torch": "2", "triton": "3", "ptxas": "12", "commit": "abc",
             "date": "today"}  # fmt: skip
    return [
        {"column": name, "kind": "facts", "implementation": implementation, **known},
        {"column": name, "kind": "copy", "bytes_per_second": 4e12},
    ]


MEASURED = [
    row("triton", "gather_tl", "embedding", 16384, 100e-6, 10**8),  # a quarter of the copy
    row("triton", "norm_tl", "hidden", 16384, 28e-6, 10**8),
    row("triton", "norm_tl", "hidden", 1, 1e-6, 100),
    row("triton", "expand_sampling_params_tl", "decode", 256, 12e-6, 1000),
    row("triton", "fused_sample_tl", "top-p-0.95-top-k-128", 64, 0.25e-3, 10**7),
    row("triton", "fused_sample_tl", "top-p-0.95-top-k-128", 256, 0.5e-3, 10**8),
    row("reference", "gather_tl", "embedding", 16384, 90e-6, 10**8, how="stream", variants=[]),
    row("upstream", "norm_tl", "hidden", 16384, 26e-6, 10**8, variants=[], beyond_cache=False),
    {**row("upstream", "gather_tl", "embedding", 16384, 1.0, 1), "problem": "RuntimeError: no"},
]
LINES = [*facts("triton", "triton"), *MEASURED[:6], *facts("reference", "reference"), MEASURED[6],
         *facts("upstream", "upstream"), *MEASURED[7:],
         {"column": "upstream", "kind": "problem", "problem": "it crashed"}]  # fmt: skip


def test_bars() -> None:
    found = {(bar["bar"], bar["key"]): bar["kept"] for bar in results.document(LINES, ENTRIES, [])["bars"]}
    gather, norm = "gather_tl/embedding@16384", "norm_tl/hidden@16384"
    assert found["fraction of the copy", gather] is False and found["fraction of the copy", norm] is True
    assert ("fraction of the copy", "norm_tl/hidden@1") not in found
    assert found["decode metadata", "expand_sampling_params_tl/decode@256"] is False
    assert found["sampling", "fused_sample_tl/top-p-0.95-top-k-128@64"] is False
    assert found["sampling", "fused_sample_tl/top-p-0.95-top-k-128@256"] is True
    assert found["no slower than reference", gather] is False
    assert found["no slower than upstream", norm] is True, "8 % slower is within 10 %"
    assert ("no slower than upstream", gather) not in found
    assert found["compiled variants", "norm_tl, _kernel"] is True


def test_document_and_table() -> None:
    found = json.loads(json.dumps(results.document(LINES, ENTRIES, ["--rows", "1"])))
    assert found["schema"] == results.SCHEMA
    assert found["rows"][0]["bytes_per_second"] == pytest.approx(1e12) and found["rows"][0]["fraction"] == 0.25
    assert found["variants"]["triton"]["norm_tl"] == {"variants": 2, "compile_seconds": 1.0}
    assert [(one["column"], one["problem"]) for one in found["columns"]][1:] == [
        ("reference", ""), ("upstream", "it crashed"),
    ]  # fmt: skip
    text = table.markdown(found)
    assert "| gather | embedding | 16384 | 100 | 100 g | 1,000 | 0.25 | 90.0 s | failed |" in text
    assert "| norm | hidden | 1 | 0.0001 | 1.00 g | 0 | 0.00 | - | - |" in text
    assert "| norm | hidden | 16384 | 100 | 28.0 g | 3,571 | 0.89 | - | 26.0 g* |" in text
    assert "- upstream, gather_tl/embedding@16384: RuntimeError: no" in text and "- upstream: it crashed" in text
    assert "| gather_tl/embedding@16384 | fraction of the copy | 0.25 | 0.8 |" in text
    assert "4.00 TB/s" in text and "driver 580" in text
    assert table.markdown(results.document([], ENTRIES, [])).startswith("# Kernels")


def test_plot(tmp_path: Path) -> None:
    found = results.document(LINES, ENTRIES, [])
    assert [name for name, _ in plot.bars(found)] == [
        "norm_tl/hidden@16384", "gather_tl/embedding@16384", "fused_sample_tl/top-p-0.95-top-k-128@256"
    ]  # fmt: skip
    drawn = plot.svg(plot.bars(found), "<title>")
    assert drawn.startswith("<svg") and drawn.endswith("</svg>\n") and "&lt;title&gt;" in drawn
    assert drawn.count("<rect") == 4 and "0.89" in drawn
    assert plot.draw(found, tmp_path).stat().st_size > 0
    assert plot.svg([], "empty").count("<rect") == 1
