"""The GPU stage: start each program where the GPU is, read its verdict, and put all of them together as rows.

A row that could not be done is a failure with its reason (fewer GPUs than asked for, no folder with a Triton), unless
the plan says that the part is unsupported there: then the row says so and the stage can still pass.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from build.call import CallFailed
from build.gpu.shipping import as_text

TRITONS = ("3.5.1", "3.6.0", "3.7.1")
"""The Tritons under which the probe has to run: those of the three vendor images."""

DEEP_GEMM, DEEP_EP = "deep_gemm", "deep_ep"
_TAIL = 8


class Ended(Protocol):
    """How a program ended: `subprocess.CompletedProcess[str]` and `build.container.RunResult` are such."""

    @property
    def returncode(self) -> int: ...
    @property
    def stdout(self) -> str: ...
    @property
    def stderr(self) -> str: ...


Launch = Callable[[Sequence[str], float], Ended]
"""(argv, seconds) -> how it ended. argv[0] is "python3": the Python that has the engine, in the host prefix or in a
container (`docker run --gpus all --ipc=host --ulimit memlock=-1 --ulimit stack=67108864`). The launcher passes
NCCL_NVLS_ENABLE and its like through, and may raise CallFailed or return status 124 when the time is over."""


@dataclass(frozen=True)
class StageResult:
    """One row. ok: it passed, or the plan says that it cannot be (then `skipped` says why). reason: why it is not ok.

    figures: what the program measured, JSON values; times and rates carry their unit in the name.
    """

    name: str
    ok: bool
    reason: str = ""
    skipped: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def state(self) -> str:
        """The word for a table: passed, failed or unsupported."""
        if not self.ok:
            return "failed"
        return "unsupported" if self.skipped else "passed"

    def to_json(self) -> dict[str, Any]:
        """For `check --json` and the manifest."""
        return {
            "name": self.name,
            "state": self.state,
            "ok": self.ok,
            "reason": self.reason,
            "skipped_reason": self.skipped,
            "figures": dict(self.figures),
            "seconds": round(self.seconds, 1),
        }


def run_stage(
    launch: Launch,
    gpus: int,
    tritons: Mapping[str, str],
    *,
    unsupported: Mapping[str, str] | None = None,
    warm: bool = False,
    on_row: Callable[[StageResult], None] = lambda row: None,
) -> list[StageResult]:
    """Run the whole stage; never stops at a failure.

    Args:
        gpus: how many GPUs were asked for (at least 1): DeepEP runs with as many ranks.
        tritons: version -> folder with that Triton unpacked, as the launched program sees it.
        unsupported: parts that the plan says cannot be here, with the plan's reason: "deep_gemm", "deep_ep",
            "probe 3.5.1".
        warm: the programs run in an image with warm caches, where the probe's own run has nothing to compile.
        on_row: called with each row as it is known.
    """
    rows: list[StageResult] = []
    for row in _rows(launch, gpus, tritons, unsupported or {}, warm):
        rows.append(row)
        on_row(row)
    return rows


def _rows(
    launch: Launch, gpus: int, tritons: Mapping[str, str], unsupported: Mapping[str, str], warm: bool
) -> Iterator[StageResult]:
    devices = _program(launch, "gpus", "devices", (), 120)
    found = int(devices.figures.get("count", 0))
    if devices.ok and found < gpus:
        devices = _with(devices, f"{gpus} GPUs were asked for, {found} {'is' if found == 1 else 'are'} here")
    yield devices
    absent = "" if found else (devices.reason or "no GPU")

    own = _lacking("probe", absent) if absent else _probe(launch, "probe", None, "", warm=warm)
    yield own
    for version in TRITONS:
        name = f"probe {version}"
        folder = tritons.get(version)
        if name in unsupported:
            yield _unsupported(name, unsupported[name])
        elif absent:
            yield _lacking(name, absent)
        elif folder:
            yield _probe(launch, name, version, folder)
        elif own.figures.get("triton") == version:
            yield StageResult(name, own.ok, own.reason, figures=own.figures)
        else:
            yield _lacking(name, f"no folder with Triton {version} was given")

    for name, arguments, needed in ((DEEP_GEMM, (), 1), (DEEP_EP, ("--ranks", str(gpus)), gpus)):
        if name in unsupported:
            yield _unsupported(name, unsupported[name])
        elif absent or found < needed:
            yield _lacking(name, absent or f"needs {needed} GPUs, {found} {'is' if found == 1 else 'are'} here")
        else:
            yield _program(launch, name, f"{name}_check", arguments, 600)


def _unsupported(name: str, reason: str) -> StageResult:
    return StageResult(name, True, skipped=reason or "the plan does not say why")


def _lacking(name: str, reason: str) -> StageResult:
    return StageResult(name, False, f"not run: {reason}")


def _with(row: StageResult, reason: str) -> StageResult:
    return StageResult(row.name, False, reason, figures=row.figures, seconds=row.seconds)


def _run(launch: Launch, argv: Sequence[str], limit: float) -> tuple[dict[str, Any] | None, str, float]:
    """The JSON object of the program's stdout, why there is none or how it ended badly, and the seconds it took."""
    start = time.monotonic()
    try:
        ended = launch(argv, limit)
    except CallFailed as failed:
        return None, f"ended with status {failed.returncode}: {_last_lines(failed.output)}", time.monotonic() - start
    seconds = time.monotonic() - start
    found = last_json(ended.stdout)
    if found is None:
        late = f"still running after {limit:.0f} s, killed" if ended.returncode == 124 else ""
        what = late or f"ended with status {ended.returncode} and printed no verdict"
        return None, f"{what}: {_last_lines(ended.stderr or ended.stdout)}".rstrip(": "), seconds
    wrong = "" if ended.returncode in (0, 5) else f"printed a verdict but ended with status {ended.returncode}"
    return found, wrong, seconds


def last_json(text: str) -> dict[str, Any] | None:
    """The JSON object with which a program's output ends: its last line, or lines from the last one that is `{`."""
    lines = text.rstrip().splitlines()
    starts = [len(lines) - 1, *(at for at in range(len(lines) - 1, -1, -1) if lines[at] == "{")]
    for start in starts[:2]:
        try:
            found = json.loads("\n".join(lines[start:])) if start >= 0 else None
        except ValueError:
            continue
        if isinstance(found, dict):
            return found
    return None


def _last_lines(text: str) -> str:
    return " | ".join(line.strip() for line in text.strip().splitlines()[-_TAIL:])[-800:]


def _program(launch: Launch, name: str, program: str, arguments: Sequence[str], limit: float) -> StageResult:
    found, wrong, seconds = _run(launch, ["python3", "-c", as_text(program), *arguments], limit)
    if found is None:
        return StageResult(name, False, wrong, seconds=seconds)
    reason = wrong or str(found.get("reason") or "")
    ok = found.get("ok") is True and not wrong
    if not ok and not reason:
        reason = "the program says that it failed and gives no reason"
    figures = found.get("figures")
    return StageResult(
        name, ok, "" if ok else reason, figures=figures if isinstance(figures, dict) else {}, seconds=seconds
    )


def _probe(launch: Launch, name: str, version: str | None, folder: str, *, warm: bool = False) -> StageResult:
    """The probe must have *run* 7/7: on a GPU box "not run" is a failure too."""
    argv = ["python3", "-m", "deepinfer.probe", "--json", *(("--triton", folder) if folder else ())]
    found, wrong, seconds = _run(launch, argv, 600)
    if found is None:
        return StageResult(name, False, wrong, seconds=seconds)
    report = found["probes"][0] if folder and found.get("probes") else found
    figures = {key: report.get(key) for key in ("triton", "torch", "device", "compiled", "ran")}
    cache = report.get("cache") or {}
    figures |= {f"{kind}_{way}": cache[kind][way] for kind in cache for way in ("compiled", "found")}
    checks = report.get("checks") or []
    problems = [f"Triton {figures['triton']} is not {version}"] if version and figures["triton"] != version else []
    problems += [str(report["error"])] if report.get("error") else []
    for check in checks:
        for column in ("compiled", "ran"):
            if check[column]["ok"] is not True:
                problems.append(f"{check['name']}: {column}: {check[column]['reason']}")
    made = [f"{cache[kind]['compiled']} {kind}" for kind in cache if cache[kind]["compiled"]]
    if warm and (made or not cache):
        problems.append(f"in an image with warm caches the run compiled {' and '.join(made) or 'nobody knows what'}")
    if wrong or not checks:
        problems.append(wrong or "the report has no checks")
    return StageResult(name, not problems, "; ".join(problems)[:1000], figures=figures, seconds=seconds)


def tell(row: StageResult) -> None:
    """Say on stderr how a row ended, as soon as it is known."""
    print(f"{row.name}: {row.state} {row.reason or row.skipped}", file=sys.stderr, flush=True)


def as_table(rows: Sequence[StageResult]) -> str:
    """A line a row with its figures, the reasons below, and the verdict."""
    width = max((len(row.name) for row in rows), default=0)
    lines = []
    for row in rows:
        flat = ", ".join(f"{key} {_number(value)}" for key, value in row.figures.items() if not isinstance(value, dict))
        lines.append(f"  {row.name:<{width}}  {row.state:<11}  {row.skipped or flat}".rstrip())
        for key, value in row.figures.items():
            if isinstance(value, dict):
                inner = ", ".join(f"{name} {_number(part)}" for name, part in value.items())
                lines.append(f"  {'':<{width}}               {key}: {inner}")
        if row.reason:
            lines.append(f"  {'':<{width}}               {row.reason}")
    failed = [row.name for row in rows if not row.ok]
    lines.append(f"  GPU stage {'failed: ' + ', '.join(failed) if failed else 'passed'}")
    return "\n".join(lines)


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
