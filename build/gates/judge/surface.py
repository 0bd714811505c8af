"""The gate on what a user meets first: the entrypoint, the health check, the user, the labels."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from build.containers import LABEL
from build.gates.judge.rows import Ending, Row, Verdicts
from build.inspection import Inspection
from build.plan import TargetPlan

_OCI = "org.opencontainers.image."
REQUIRED = tuple(
    _OCI + name for name in ("title", "version", "revision", "created", "source", "base.name", "base.digest")
)
MANIFEST_LABEL = f"{LABEL}.manifest"
"""Holds the digest of image.json, which the image carries and the manifest repeats."""


@dataclass(frozen=True)
class Surface:
    """answer: of the entrypoint to `env --json`.  health: of the health check's command, None without one.

    user, labels: from the image's configuration.  document: the text of image.json, "" if it cannot be read.
    """

    answer: Ending
    health: Ending | None
    user: str
    labels: Mapping[str, str]
    document: str


def judge_entrypoint(
    verdicts: Verdicts, surface: Surface, plan: TargetPlan, inspection: Inspection, modules: Sequence[str]
) -> None:
    """Each of the four by itself; `env` also has to agree with plan and labels."""
    rows = [_user(surface.user), _health(surface.health)]
    report = _report(surface.answer)
    if report is None:
        rows.append(_no_report(surface.answer))
        rows += _labels(surface.labels, surface.document, "", {})
    else:
        parts = {row["name"]: row for row in report["parts"]}
        if not surface.answer.ok:
            rows.append(Row(False, f"`deepinfer env --json`: {surface.answer.problem()}"))
        rows += _parts(parts, plan, inspection, modules)
        rows += _labels(surface.labels, surface.document, str(report["deepinfer"]["version"]), parts)
    verdicts.add("entrypoint", rows, seconds=surface.answer.seconds)


def judge_command(
    verdicts: Verdicts, answer: Ending, plan: TargetPlan, inspection: Inspection, modules: Sequence[str]
) -> None:
    """A prefix has a command only: its `env` has to agree with the plan."""
    report = _report(answer)
    if report is None:
        rows = [_no_report(answer)]
    else:
        rows = _parts({row["name"]: row for row in report["parts"]}, plan, inspection, modules)
    verdicts.add("entrypoint", rows, seconds=answer.seconds)


def _report(answer: Ending) -> Mapping[str, Any] | None:
    """What `env --json` printed, None if that is no report."""
    try:
        report: dict[str, Any] = answer.document()
        complete = bool(report["deepinfer"]["version"]) and all("status" in row for row in report["parts"])
    except (ValueError, KeyError, TypeError):
        return None
    return report if complete else None


def _no_report(answer: Ending) -> Row:
    said = answer.problem() if not answer.ok else "it printed something else than its report"
    return Row(False, f"`deepinfer env --json`: {said}", "deepinfer")


def _user(user: str) -> Row:
    name = user.split(":")[0]
    if name in ("", "0", "root"):
        return Row(False, "the image's programs run as root: USER is missing")
    return Row(True, f"user {name}")


def _health(health: Ending | None) -> Row:
    if health is None:
        return Row(False, "the image has no HEALTHCHECK")
    return Row(True, "health check") if health.ok else Row(False, f"the health check fails: {health.problem()}")


def _parts(
    parts: Mapping[str, Mapping[str, Any]], plan: TargetPlan, inspection: Inspection, modules: Sequence[str]
) -> list[Row]:
    """`env` finds what the plan put in, in the planned versions, on the torch that the base has."""
    rows = []
    versions = {cell.component.module: cell.component.version for cell in plan.cells if cell.component.kind == "wheel"}
    for module in modules:
        if module == "deepinfer":
            continue
        part = parts.get(module)
        wanted = versions.get(module)
        if part is None:
            rows.append(Row(None, f"`env` does not speak of {module}"))
        elif part["status"] != "present":
            rows.append(Row(False, f"`env` says that {module} is {part['status']}: {part['reason']}", module))
        elif wanted and str(part["version"]).partition("+")[0] != wanted:
            rows.append(Row(False, f"`env` says that {module} is {part['version']}, the plan {wanted}", module))
    torch = parts.get("torch", {"status": "not listed", "version": "", "details": {}})
    if torch["version"] != inspection.torch:
        told = torch["version"] or torch["status"]
        rows.append(Row(False, f"`env` says that torch is {told}, not {inspection.torch}"))
    nccl = (torch["details"].get("nccl") or {}).get("version")
    overlay = [c.component.version for c in plan.cells if c.component.provides == "nccl" and c.status != "unsupported"]
    if overlay and nccl != overlay[0]:
        rows.append(Row(False, f"torch loads NCCL {nccl}, the plan put {overlay[0]} in its place"))
    agrees = [] if any(row.ok is False for row in rows) else [Row(True, "env agrees with the plan")]
    return rows + agrees


def _labels(
    labels: Mapping[str, str], document: str, version: str, parts: Mapping[str, Mapping[str, Any]]
) -> list[Row]:
    rows = [
        Row(False, f"the label {name} is missing or empty")
        for name in (*REQUIRED, MANIFEST_LABEL, LABEL)
        if not labels.get(name)
    ]
    if version and labels.get(_OCI + "version", version) != version:
        rows.append(Row(False, f"the label {_OCI}version says {labels[_OCI + 'version']}, `env` says {version}"))
    digest = f"sha256:{hashlib.sha256(document.encode()).hexdigest()}"
    if labels.get(MANIFEST_LABEL, digest) != digest:
        rows.append(
            Row(False, f"the label {MANIFEST_LABEL} is not the digest of the image's own image.json ({digest})")
        )
    created = labels.get(_OCI + "created", "")
    try:
        datetime.datetime.fromisoformat(created.replace("Z", "+00:00"))
    except ValueError:
        if created:
            rows.append(Row(False, f"the label {_OCI}created is no time: {created}"))
    known = {name.lower().replace("deepinfer.", ""): part["version"] for name, part in parts.items()}
    torch = parts.get("torch", {}).get("details", {})
    known |= {"nccl": (torch.get("nccl") or {}).get("version") or "", "cuda": torch.get("cuda") or ""}
    for name, told in labels.items():
        part = name.removeprefix(f"{LABEL}.").replace("-", "_")
        if name.startswith(f"{LABEL}.") and part in known and part != "_c" and told not in (known[part], "none", ""):
            rows.append(Row(False, f"the label {name} says {told}, `env` says {known[part] or 'nothing'}", part))
    return rows or [Row(True, f"{len(labels)} labels")]
