"""Gates on installed software: vendor, pins, flaggems_off, toolchain, probe, warm."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from build.gates.judge.rows import Ending, Row, Verdicts
from build.gates.place import Place
from build.inspection import Inspection

_FLAGGEMS = re.compile(r"flag_?gems", re.IGNORECASE)
_SWITCHES = {"VLLM_PLUGINS"}
_CHECKS = 7
_TORCH_FAMILY = ("torch", "torchvision", "torchaudio", "triton", "pytorch-triton", "tokenspeed-triton")


def judge_vendor(
    verdicts: Verdicts, place: Place, inspection: Inspection, now: Ending, before: Ending | None, chosen: Sequence[str]
) -> None:
    """The vendor's modules in a process without ours. before: the same process in the base, asked only after a failure.

    chosen: the modules that the inspection knows as installed.
    """
    lines = now.lines()
    then = {line["module"]: line["error"] for line in before.lines() if "module" in line} if before else {}
    ended = {line["module"]: line for line in lines if "module" in line}
    rows = []
    for name in chosen:
        line = ended.get(name)
        error = line["error"] if line is not None else now.problem()
        if not error and line is not None:
            rows.append(_version(name, line["version"], inspection))
        elif then.get(name):
            rows.append(Row(None, f"{name} does not import in the base either, without a GPU: {then[name]}"))
        elif before is not None and name not in then:
            rows.append(Row(None, f"{name} does not import in the base either, without a GPU: {before.problem()}"))
        else:
            rows.append(Row(False, f"import {name} without deepinfer: {error}"))
    last = next((line for line in lines if "origins" in line), None)
    rows += [] if last is None else _origins(place, last)
    paths: list[str] = next((line["paths"] for line in lines if "paths" in line), [])
    if place.site in paths:
        rows.append(Row(False, f"{place.site} is on the path of every program (a .pth file, or PYTHONPATH)"))
    verdicts.add("vendor", rows, seconds=now.seconds)


def _version(name: str, version: str, inspection: Inspection) -> Row:
    known = {"torch": inspection.torch, "triton": inspection.triton, "tokenspeed_triton": inspection.tokenspeed_triton}
    before = known.get(name) or inspection.distributions.get(name.replace("_", "-"))
    # A module may say less than its metadata (3.8.10 for 3.8.10.post20260721); `pins` compares the metadata itself.
    if before and version and before != version and not before.startswith((f"{version}.", f"{version}+")):
        return Row(False, f"{name} is {version} now; the base has {before}")
    return Row(True, f"{name} {version or before or ''}".strip())


def _origins(place: Place, last: Mapping[str, Any]) -> list[Row]:
    rows = []
    for name, origin in last["origins"].items():
        if origin.startswith(place.root + "/"):
            rows.append(Row(False, f"without deepinfer, `import {name}` leads to {origin}, which is ours"))
        else:
            rows.append(Row(True, f"{name} leads to {origin or 'nothing'}"))
    if last["engine_loaded"]:
        rows.append(Row(False, "deepinfer was imported by a process that did not ask for it"))
    return rows


def judge_pins(
    verdicts: Verdicts, inspection: Inspection, lines: Sequence[Mapping[str, Any]], replaced: Mapping[str, str]
) -> None:
    """Distributions on the common path against the base's. replaced: normalised name -> version that we put there."""
    step = next((line for line in lines if "distributions" in line), None)
    if step is None:
        verdicts.add("pins", [Row(False, "the distributions could not be listed: the image's Python did not start")])
        return
    now: dict[str, list[Mapping[str, str]]] = defaultdict(list)
    for one in step["distributions"]:
        now[one["name"]].append(one)
    rows = [_pin(name, version, now.get(name, []), replaced) for name, version in inspection.distributions.items()]
    added = sorted(
        f"{name} {found[0]['version']}" for name, found in now.items() if name not in inspection.distributions
    )
    kept = sum(row.ok is True for row in rows)
    changed = ", ".join(f"{name} {version}" for name, version in replaced.items() if name in now) or "none"
    ours = len(step["ours"])
    note = f"{kept} kept; replaced as declared: {changed}; added: {', '.join(added) or 'none'}; {ours} in our folder"
    verdicts.add("pins", rows, note=note)


def _pin(name: str, before: str, now: Sequence[Mapping[str, str]], replaced: Mapping[str, str]) -> Row:
    """One distribution of the base. now: those of that name, in the order of the path: the first counts."""
    wanted = replaced.get(name, before)
    family = "torch's family: " if name in _TORCH_FAMILY or name.startswith("nvidia-") else ""
    if not now:
        return Row(False, f"{family}{name} {before} of the base is gone")
    folder, version = now[0]["folder"], now[0]["version"]
    beside = [one["version"] for one in now if one["folder"] == folder]
    if len(beside) > 1:
        return Row(False, f"{family}{folder} holds {name} {len(beside)} times: {', '.join(beside)}")
    if version == wanted:
        return Row(True, name)
    declared = f", and {wanted} was declared" if name in replaced else ""
    return Row(False, f"{family}{name} is {version} in {folder}; the base has {before}{declared}")


def judge_flaggems(
    verdicts: Verdicts,
    environment: Mapping[str, str],
    before: Mapping[str, str],
    startup: Mapping[str, str] | None,
    lines: Sequence[Mapping[str, Any]],
) -> None:
    """environment, before: of image and base. startup: added .pth and sitecustomize files, None if not looked at."""
    rows = []
    for name, value in environment.items():
        if before.get(name) == value:
            continue
        if _FLAGGEMS.search(name) or (name in _SWITCHES and value not in ("", "none")):
            rows.append(Row(False, f"the image sets {name}={value}, the base has {before.get(name, 'it unset')}"))
    for path, text in (startup or {}).items():
        if _FLAGGEMS.search(text):
            rows.append(Row(False, f"{path} runs at the start of every Python and names FlagGems"))
    last = [line for line in lines if "flaggems" in line]
    if last and last[-1]["flaggems"]:
        rows.append(Row(False, f"`import deepinfer` loads {last[-1]['flaggems'][0]}"))
    if not rows:
        files = "added start-up files" if startup is not None else "start-up files not looked at"
        rows.append(Row(True, f"environment, {files}, loaded modules"))
    verdicts.add("flaggems_off", rows)


def judge_toolchain(
    verdicts: Verdicts, components: Sequence[str], homes: Sequence[str], facts: Mapping[str, Any], ending: Ending | None
) -> None:
    """components: those that compile at run time; the gate applies if there are any."""
    if not components:
        verdicts.skip("toolchain", "no component of this image compiles at run time")
        return
    if not homes:
        verdicts.add("toolchain", [Row(False, f"{', '.join(components)} compile at run time, and no nvcc is declared")])
        return
    if ending is None or not facts:
        problem = ending.problem() if ending else "it did not run"
        verdicts.add("toolchain", [Row(False, f"the compile did not end: {problem}")])
        return
    row = Row(True, f"{facts['nvcc']} {facts.get('version', '')}: a cubin of {facts.get('bytes', 0)} bytes for sm_90a")
    if facts["error"]:
        row = Row(False, f"nvcc failed: {facts['error']}")
    verdicts.add("toolchain", [row], seconds=ending.seconds)


def judge_probe(verdicts: Verdicts, ending: Ending, triton: str | None) -> None:
    """`deepinfer probe --json --compile-only` compiled every check."""
    if triton is None:
        verdicts.skip("probe", "the base has no Triton")
        return
    try:
        report = ending.document()
        checks = report["checks"]
        bad = [f"{c['name']}: {c['compiled']['reason']}" for c in checks if not c["compiled"]["ok"]]
    except (ValueError, KeyError, TypeError):
        said = ending.problem() if not ending.ok else "it printed something else than the report"
        verdicts.add("probe", [Row(False, f"`deepinfer probe --json --compile-only`: {said}", "deepinfer")])
        return
    rows = [Row(False, f"not compiled: {text}") for text in bad]
    if report.get("error"):
        rows.append(Row(False, str(report["error"])))
    if not rows and (len(checks) != _CHECKS or not ending.ok):
        rows.append(Row(False, f"{report.get('compiled')} compiled, status {ending.status}; {_CHECKS} are expected"))
    passed = Row(True, f"{report.get('compiled')} compiled by Triton {report.get('triton')}")
    verdicts.add("probe", rows or [passed], seconds=ending.seconds)


def judge_warm(verdicts: Verdicts, ending: Ending | None, document: str) -> None:
    """`deepinfer warm --json` found in the image what image.json says it carries, and compiled nothing."""
    if ending is None:
        verdicts.skip("warm", "it was not built with --warm")
        return
    try:
        report = ending.document()
        recorded = json.loads(document)["warm"]
        rows = [_warm_row(kind, report[kind], recorded[kind]) for kind in ("kernels", "modules")]
        rows += [Row(False, text) for provider in report["providers"] for text in provider["problems"]]
    except (ValueError, KeyError, TypeError):
        said = ending.problem() if not ending.ok else "it, or image.json, says something else than expected"
        rows = [Row(False, f"`deepinfer warm --json`: {said}", "deepinfer")]
    verdicts.add("warm", rows, seconds=ending.seconds)


def _warm_row(kind: str, counts: Mapping[str, int], recorded: int) -> Row:
    if counts["compiled"]:
        return Row(
            False, f"{kind}: {counts['compiled']} compiled, {counts['found']} found of {recorded} that it carries"
        )
    return Row(counts["found"] == recorded, f"{kind}: {counts['found']} found of {recorded}")
