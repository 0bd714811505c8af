"""The report of `deepinfer env`: gathering it, and showing it as text.

Schema 1 of the JSON form. Keys are only ever added; a change of meaning raises "schema".

    schema      1
    deepinfer   {version, path, home, home_source, site or null}
    python      {version, executable}
    parts       [{name, status, version, path, reason, details}]
                name: gpu torch triton tokenspeed_triton numpy safetensors tokenizers deepinfer._C deep_gemm deep_ep
                deep_cluster xgrammar toolchain. status: present absent failed crashed timeout. reason: '' where
                present. details:
                gpu {driver_cuda, devices: [{name, sm, sm_count, memory_bytes}]}; its version is the driver's
                torch {git_version, cuda or null, cuda_available, nccl: {version, files} or null, cudart: [files]}
                deepinfer._C {abi: {python, torch, torch_git, cuda, compiler}, graph_timer}
                toolchain {home, nvcc, nvcc_version, host_compiler, host_compiler_version, problem}
                xgrammar {needed: the versions that fit, unfit: why this one does not, or ''}
                The others and rows that are not present have {}.
    infiniband  {devices: [names], gin: bool, reason}: whether DeepEP will start GIN
    cache       {path, source, warm}: source is default, DEEPINFER_CACHE_DIR, temporary or "not writable"; warm is the
                folder of Triton kernels that came with the image, or null
    variables   [{name, value, source, meaning}]: source is environment, default, or "deepinfer: REASON"
    image       what the image's build wrote into HOME/image.json, or null
    notices     [text]: what may not work and why
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import deepinfer
from deepinfer import activation, envs, packages, platform
from deepinfer.environment.children import examine_all
from deepinfer.environment.requirements import RANGES
from deepinfer.errors import VariableError
from deepinfer.ops import dispatch

SCHEMA = 1
DEFAULT_TIMEOUT_S = 120.0


def collect(timeout_s: float = DEFAULT_TIMEOUT_S) -> dict[str, Any]:
    """Examine everything; see the module's text for what comes back. Each part gets `timeout_s` seconds."""
    active = activation.activate()
    image, image_problem = _image(active.home / "image.json")
    parts = _without_toolchain([_explain(row, image) for row in examine_all(timeout_s)])
    ops, ops_problem = _ops(parts)
    report = {
        "schema": SCHEMA,
        "deepinfer": {
            "version": deepinfer.__version__,
            "path": str(activation.PACKAGE),
            "home": str(active.home),
            "home_source": active.home_source,
            "site": _path(active.site),
        },
        "python": {"version": sys.version.split()[0], "executable": sys.executable},
        "parts": parts,
        "infiniband": _infiniband(),
        "ops": ops,
        "cache": {"path": str(active.cache), "source": active.cache_source, "warm": _path(active.warm)},
        "variables": list(_variables(active)),
        "image": image,
    }
    notices = [*active.notices, *image_problem, *_variable_notices(), *ops_problem, *_part_notices(parts)]
    report["notices"] = list(dict.fromkeys(notices))
    return report


def _path(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _image(path: Path) -> tuple[dict[str, Any] | None, list[str]]:
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return None, []
    except (OSError, ValueError) as problem:
        return None, [f"{path} cannot be read: {problem}"]
    if not isinstance(found, dict):
        return None, [f"{path} is not a JSON object"]
    return found, []


def _explain(row: dict[str, Any], image: dict[str, Any] | None) -> dict[str, Any]:
    """An absent part takes the reason that the image's build recorded for leaving it out, if it did."""
    recorded = dict(image or {})
    if row["name"] != "toolchain":
        recorded = _object(recorded.get("components"))
    built = _object(recorded.get(row["name"].removeprefix("deepinfer.")))
    if row["status"] == "absent" and built.get("status") != "installed" and built.get("reason"):
        row = {**row, "reason": f"left out of this image: {built['reason']}"}
    return row


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _without_toolchain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """DeepGEMM and DeepEP compile their kernels when they are called: without a compiler they are as good as absent."""
    (toolchain,) = (row for row in rows if row["name"] == "toolchain")
    if toolchain["status"] == "present":
        return rows
    absent = {"status": "absent", "reason": f"it cannot compile its kernels: {toolchain['reason']}"}
    jit = ("deep_gemm", "deep_ep")
    return [{**row, **absent} if row["name"] in jit and row["status"] == "present" else row for row in rows]


def _infiniband() -> dict[str, Any]:
    devices = platform.infiniband_devices()
    disabled = envs.read(envs.EP_DISABLE_GIN) not in ("", "0")
    if disabled:
        reason = "EP_DISABLE_GIN is set" if devices else "no InfiniBand device: DeepEP uses NVLink only"
    else:
        reason = "" if devices else "EP_DISABLE_GIN=0 was set, and there is no InfiniBand device: DeepEP will not start"
    return {"devices": list(devices), "gin": not disabled, "reason": reason}


def _ops(parts: list[dict[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """Where kernels come from. The GPU's row answers for the driver, which might hang this process."""
    (gpu,) = (row for row in parts if row["name"] == "gpu")
    without = "" if gpu["status"] == "present" else gpu["reason"] or gpu["status"]
    try:
        chosen, reason = dispatch.of_environment(without)
    except VariableError as problem:
        row = {"backend": "", "reason": problem.what, "fallbacks": [], "strict": False, "trace": ""}
        return row, [str(problem)]
    row = {**asdict(chosen), "reason": reason, "fallbacks": sorted(chosen.fallbacks)}
    return row, []


def _variables(active: activation.Activation) -> Iterator[dict[str, str]]:
    given = active.given
    resolved = {envs.HOME.name: str(active.home), envs.CACHE_DIR.name: str(active.cache)}
    for variable in envs.VARIABLES:
        if variable.reader == "engine" or variable.is_set:
            source = "environment" if variable.is_set else "default"
            value = variable.text if variable.is_set else resolved.get(variable.name, variable.shown_default)
            yield {"name": variable.name, "value": value, "source": source, "meaning": variable.meaning}
    for other in envs.FOREIGN:
        if envs.read(other):
            source = f"deepinfer: {given[other.name]}" if other.name in given else "environment"
            yield {"name": other.name, "value": envs.read(other), "source": source, "meaning": other.meaning}


def _variable_notices() -> Iterator[str]:
    for problem in envs.problems():
        yield str(problem)
    for name, near in envs.unknown().items():
        yield f"{name} is not a variable of DeepInfer" + (f": did you mean {near}?" if near else "")


def _part_notices(parts: list[dict[str, Any]]) -> Iterator[str]:
    by_name = {row["name"]: row for row in parts}
    driver = by_name["gpu"]["version"]
    torch, toolchain = by_name["torch"], by_name["toolchain"]
    yield from filter(None, [
        platform.driver_problem(driver, torch["details"].get("cuda") or "", "torch"),
        platform.driver_problem(driver, toolchain["version"], "kernels compiled by nvcc"),
    ])  # fmt: skip
    if torch["status"] != "present":
        yield f"torch cannot be used ({torch['reason']}): the engine needs it"
    for name, line in zip(packages.BROUGHT, packages.DEPENDENCIES, strict=True):
        if by_name.get(name, {}).get("status") == "absent":
            yield f"{name} is not installed, and the engine needs it: pip install '{line}'"
    if torch["status"] == "present" and driver and not torch["details"]["cuda_available"]:
        cuda = torch["details"]["cuda"] or "none"
        yield f"there is a GPU that torch {torch['version']} does not use (its CUDA: {cuda})"
    if len(torch["details"].get("cudart", [])) > 1:
        yield f"torch maps more than one CUDA runtime: {', '.join(torch['details']['cudart'])}"
    for row in parts:
        if row["status"] in ("failed", "crashed", "timeout") and row["name"] != "torch":
            yield f"{row['name']} is here and cannot be used: {row['reason']}"
        if unfit := row["details"].get("unfit"):
            yield (
                f"{row['name']} {row['version']} is here, and {row['details']['needed']} is needed ({unfit}): "
                f"what needs it is refused; {RANGES[row['name']].install}"
            )


def render(report: dict[str, Any]) -> str:
    """The report as text, one fact a line."""
    own, python = report["deepinfer"], report["python"]
    lines = [
        f"deepinfer {own['version']}  {own['path']}",
        f"python {python['version']}  {python['executable']}",
        f"home {own['home']} ({own['home_source']})" + ("" if own["site"] else ": no optional parts there"),
        f"cache {report['cache']['path']} ({report['cache']['source']})"
        + (f", and warm kernels in {report['cache']['warm']}" if report["cache"]["warm"] else ""),
        "",
    ]
    width = max(len(row["name"]) for row in report["parts"])
    for row in report["parts"]:
        told = " ".join(filter(None, [row["version"], row["path"]])) if row["status"] == "present" else row["reason"]
        lines.append(f"{row['name']:<{width}}  {row['status']:<7}  {told}")
        lines += [f"{'':<{width}}           {detail}" for detail in _details(row)]
    gin, reason = report["infiniband"]["gin"], report["infiniband"]["reason"]
    devices = ", ".join(report["infiniband"]["devices"]) or "none"
    lines += ["", f"InfiniBand: {devices}; GIN {'on' if gin else 'off'}" + (f" ({reason})" if reason else ""), ""]
    lines[-1:] = [_ops_line(report["ops"]), ""]
    width = max(len(row["name"]) for row in report["variables"])
    lines += [f"{row['name']:<{width}} = {row['value']}  ({row['source']})" for row in report["variables"]]
    if report["image"] is not None:
        lines += ["", *_image_lines(report["image"])]
    if report["notices"]:
        lines += ["", *(f"notice: {notice}" for notice in report["notices"])]
    return "\n".join(lines)


def _ops_line(ops: dict[str, Any]) -> str:
    words = [f"kernels: {ops['backend'] or 'none'} ({ops['reason']})"]
    if ops["fallbacks"]:
        words.append(f"from reference all the same: {', '.join(ops['fallbacks'])}")
    return "; ".join([*words, *(["strict"] if ops["strict"] else [])])


def _image_lines(image: dict[str, Any]) -> Iterator[str]:
    """What a reader wants to know of image.json, whatever of it is there."""
    yield " ".join(filter(None, ["image", str(image.get("image", "")), str(image.get("tag", ""))]))
    base = _object(image.get("base"))
    if base:
        yield f"  base: {base.get('kind', '')} {base.get('reference', '')}"
    components = {name: _object(facts) for name, facts in _object(image.get("components")).items()}
    for status, word in (("installed", "holds"), ("unsupported", "left out")):
        named = [f"{n} {c.get('version', '')}".strip() for n, c in components.items() if c.get("status") == status]
        if named:
            yield f"  {word}: {', '.join(named)}"
    warm = _object(image.get("warm"))
    if warm:
        yield f"  warm: {warm.get('kernels')} Triton kernels for {warm.get('target')}, compiled by the build"
    changed = _object(image.get("declared"))
    if changed:
        yield f"  differs from its base on purpose: {', '.join(changed)}"
    yield "  `deepinfer env --json` shows all that is recorded"


def _details(row: dict[str, Any]) -> Iterator[str]:
    details = row["details"]
    match row["name"], row["status"]:
        case "gpu", "present":
            yield f"driver runs CUDA up to {details['driver_cuda']}"
            for device in details["devices"]:
                memory = device["memory_bytes"] / 2**30
                yield f"{device['name']}: sm_{device['sm']}, {device['sm_count']} SMs, {memory:.0f} GiB"
        case "torch", "present":
            yield f"git {details['git_version']}, CUDA {details['cuda'] or 'none'}"
            nccl = details["nccl"]
            yield f"NCCL {nccl['version']} {' and '.join(nccl['files'])}" if nccl else "NCCL: none is loaded"
        case "xgrammar", "present":
            yield f"{'does not fit' if details['unfit'] else 'fits'}: {details['needed']} is needed"
        case "toolchain", _ if details:
            yield f"host compiler {details['host_compiler']} {details['host_compiler_version']}"
