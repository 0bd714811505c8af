"""The probe's results: what they are, how they travel (JSON), how they read (a table).

Two columns never mix: `compiled` says that this Triton made PTX and a cubin for sm_90a, which needs no GPU; `ran` says
that a Hopper GPU gave the exact answer. "Not run" is neither passed nor failed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Compiled:
    """Did the check's kernels compile for sm_90a? With the PTX header's words and the size of the cubins."""

    ok: bool
    reason: str = ""
    ptx_target: str = ""
    ptx_version: str = ""
    cubin_bytes: int = 0


@dataclass(frozen=True)
class Ran:
    """Did a GPU give the exact answer? ok is None when it was not tried; then reason says why."""

    ok: bool | None
    reason: str = ""


@dataclass(frozen=True)
class CheckResult:
    """One of the seven rows."""

    name: str
    compiled: Compiled
    ran: Ran


@dataclass(frozen=True)
class Report:
    """One Triton's seven rows.

    triton, torch: versions, None where the import failed or never happened. device: the GPU's name and target, None
    without one. path: the folder given with --triton, empty for the Triton of this Python. error: empty, or how the
    child process that did the work ended ("killed by SIGSEGV while ...").
    cache: what the run found in Triton's cache and what it had to compile, {"kernels": {"compiled", "found"},
    "modules": likewise}; None where nothing ran, or it was not counted.
    """

    triton: str | None
    torch: str | None
    device: str | None
    checks: tuple[CheckResult, ...]
    path: str = ""
    error: str = ""
    cache: Mapping[str, Mapping[str, int]] | None = None

    @property
    def ok(self) -> bool:
        """All that could be done was done and right: everything compiled, and nothing that ran was wrong."""
        return (
            not self.error
            and all(check.compiled.ok for check in self.checks)
            and all(check.ran.ok is not False for check in self.checks)
        )

    def to_json(self) -> dict[str, Any]:
        """The JSON object documented in `deepinfer.probe`."""
        return {
            "triton": self.triton,
            "torch": self.torch,
            "device": self.device,
            "path": self.path or None,
            "error": self.error or None,
            "ok": self.ok,
            "compiled": f"{sum(check.compiled.ok for check in self.checks)}/{len(self.checks)}",
            "ran": f"{sum(check.ran.ok is True for check in self.checks)}/{len(self.checks)}",
            "cache": None if self.cache is None else {kind: dict(counts) for kind, counts in self.cache.items()},
            "checks": [
                {
                    "name": check.name,
                    "compiled": {
                        "ok": check.compiled.ok,
                        "reason": check.compiled.reason or None,
                        "ptx_target": check.compiled.ptx_target or None,
                        "ptx_version": check.compiled.ptx_version or None,
                        "cubin_bytes": check.compiled.cubin_bytes,
                    },
                    "ran": {"ok": check.ran.ok, "reason": check.ran.reason or None},
                }
                for check in self.checks
            ],
        }


def _word(ok: bool | None, reason: str) -> str:
    if ok is None:
        return f"not run ({reason})"
    return "ok" if ok else f"FAILED: {reason}"


def as_text(report: Report) -> str:
    """A table for people: one row a check, the two columns apart, and the totals."""
    if report.triton is None:
        return _without_triton(report)
    title = f"Triton {report.triton}, torch {report.torch or 'absent'}, {report.device or 'no GPU'}"
    lines = [title + (f" ({report.path})" if report.path else "")]
    if report.error:
        lines.append(f"  FAILED: {report.error}")
    rows: list[Sequence[str]] = [("check", "compiled for sm_90a", "ran")]
    for check in report.checks:
        compiled = _word(check.compiled.ok, check.compiled.reason)
        if check.compiled.ok:
            compiled = f"ok ({check.compiled.cubin_bytes} bytes)" if check.compiled.cubin_bytes else "ok"
        rows.append((check.name, compiled, _word(check.ran.ok, check.ran.reason)))
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines += [f"  {name:<{widths[0]}}  {compiled:<{widths[1]}}  {ran}" for name, compiled, ran in rows]
    totals = report.to_json()
    lines.append(f"  compiled {totals['compiled']}, ran {totals['ran']}")
    if report.cache is not None:
        told = (f"{kind} {counts['compiled']} new, {counts['found']} found" for kind, counts in report.cache.items())
        lines.append(f"  for the run Triton's cache had: {'; '.join(told)}")
    return "\n".join(lines)


def _without_triton(report: Report) -> str:
    """What there is to say where nothing was reached, torch and GPU among it."""
    lines = [
        f"Triton cannot be used{f' ({report.path})' if report.path else ''}",
        f"  FAILED: {report.error}",
        f"  none of the {len(report.checks)} checks was reached",
        "  next step: `deepinfer env` says whether Triton and torch are here; pip install triton, or --triton DIR for "
        "an unpacked one",
    ]
    return "\n".join(lines)
