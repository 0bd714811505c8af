"""All gates of a finished image, or of the host's prefix, in one call."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from build import cache
from build.containers import Engine
from build.gates.artefacts import expected_files
from build.gates.catalogue import GATES, NAMES
from build.gates.collect import SEARCH_PATHS, Tasks, of_result, user_tasks
from build.gates.judge.binaries import judge_linked, judge_readable
from build.gates.judge.layers import judge_layers, needles
from build.gates.judge.processes import judge_imports, judge_library_path, judge_maps, judge_ours
from build.gates.judge.rows import Ending, Verdicts
from build.gates.judge.software import (
    judge_flaggems,
    judge_pins,
    judge_probe,
    judge_toolchain,
    judge_vendor,
    judge_warm,
)
from build.gates.judge.surface import Surface, judge_command, judge_entrypoint
from build.gates.launcher import ARCHIVE, ContainerLauncher, Launcher, bundle
from build.gates.place import (
    Place,
    absent,
    image_place,
    modules,
    other_cudart,
    replaced,
    wants_toolchain,
)
from build.gates.result import GateResult, as_text
from build.inspection import Inspection
from build.plan import TargetPlan

__all__ = ["GATES", "NAMES", "GateResult", "as_text", "run_gates", "run_prefix_gates"]

USER = "12345:12345"
"""No /etc/passwd knows it, and it has no home: what works for it works for everybody."""
_LISTING = "deepinfer-gates-base.txt"


@dataclass(frozen=True)
class _Image:
    """An image's configuration, beside its base's."""

    reference: str
    base: str | None
    entrypoint: tuple[str, ...]
    health: tuple[str, ...]
    user: str
    labels: Mapping[str, str]
    environment: Mapping[str, str]
    history: tuple[str, ...]


def run_gates(
    engine: Engine,
    image_id: str,
    plan: TargetPlan,
    inspection: Inspection,
    *,
    on_inventory: Callable[[Mapping[str, Any]], None] | None = None,
) -> list[GateResult]:
    """Run every gate on a finished image; returns a result for each, in the catalogue's order.

    Args:
        image_id: id or name of the image; it has to be here.
        plan: what the image is made of.  inspection: its base, as it was before.
        on_inventory: given what the image holds (build/gates/programs/inventory.py), its files being those that it
            adds to its base; not called where the base is not here, or the image could not be looked into.
    """
    place = image_place(plan, inspection)
    image = _read_config(engine, image_id, inspection)
    owner = f"{plan.target.name}/gates"
    user = ContainerLauncher(engine, image_id, user=USER, owner=owner)
    with ThreadPoolExecutor(max_workers=3) as pool:
        # A base whose Python only root can reach could not even be asked by another user.
        asking = "0:0" if inspection.closed or inspection.unreadable else USER
        base = None if image.base is None else ContainerLauncher(engine, image.base, user=asking, owner=owner)
        common = pool.submit(_collect, user, base, place, plan, inspection)
        answers = pool.submit(_answers, engine, image, owner)
        scanned = pool.submit(_scan, engine, image, place, owner, sums=on_inventory is not None)
        facts = common.result()
        scan, scan_seconds = scanned.result()
    if on_inventory is not None and "inventory" in scan.facts():
        on_inventory(scan.facts()["inventory"])
    verdicts = Verdicts()
    startup = scan.facts().get("startup") if image.base is not None and scan.ok else None
    _judge_common(verdicts, facts, place, plan, inspection, image.environment, startup)
    answer, health = answers.result()
    surface = Surface(answer, health, image.user, image.labels, facts.document)
    judge_entrypoint(verdicts, surface, plan, inspection, modules(plan))
    _judge_library_path(verdicts, facts, inspection)
    changed = {k: v for k, v in image.environment.items() if inspection.environment.get(k) != v}
    judge_layers(
        verdicts, scan.facts(), history=image.history, environment=changed, labels=image.labels, hidden=needles(),
        seconds=scan_seconds, problem="" if scan.ok else scan.problem(),
    )  # fmt: skip
    return _ordered(verdicts)


def run_prefix_gates(launcher: Launcher, place: Place, plan: TargetPlan, inspection: Inspection) -> list[GateResult]:
    """The gates that make sense for the host target's prefix, run by `launcher` on this machine."""
    facts = _collect(launcher, None, place, plan, inspection)
    answer = _timed(lambda: _launch(launcher, [*place.command, "env", "--json"]))
    verdicts = Verdicts()
    _judge_common(verdicts, facts, place, plan, inspection, {}, None)
    judge_command(verdicts, answer, plan, inspection, modules(plan))
    verdicts.skip("library_path", "a prefix changes no library path of the machine")
    verdicts.skip("layers", "a prefix has no layers")
    return _ordered(verdicts)


@dataclass(frozen=True)
class _Facts:
    endings: Mapping[str, Ending]
    vendor: tuple[str, ...]
    vendor_before: Ending | None
    document: str


def _collect(
    launcher: Launcher, base: Launcher | None, place: Place, plan: TargetPlan, inspection: Inspection
) -> _Facts:
    vendor = _vendor_modules(plan, inspection)
    foreign = [cell.component.module for cell in plan.cells if cell.component.kind == "wheel" and cell.component.module]
    tasks = user_tasks(
        launcher, place, modules(plan), neighbours=vendor, foreign=foreign,
        toolchain=bool(wants_toolchain(plan) and place.cuda_homes),
        library=other_cudart(inspection) if plan.target.kind == "image" else "", warm=plan.warm,
    )  # fmt: skip
    endings = tasks.run()
    before = None
    broken = not endings["neighbours"].ok or any(line.get("error") for line in endings["neighbours"].lines())
    if base is not None and broken:
        # Does the base fail the same way (FlagGems wants a GPU)? Then it is not the image's fault.
        again = Tasks(base, place.python)
        again.program("neighbours", "neighbours", modules=list(vendor), ours=[], site="")
        before = again.run()["neighbours"]
    return _Facts(endings, vendor, before, str(endings["access"].facts().get("document", "")))


def _vendor_modules(plan: TargetPlan, inspection: Inspection) -> tuple[str, ...]:
    """torch, triton and those of the target's vendor modules that the base really has."""
    held = {
        "torch": inspection.torch is not None,
        "triton": inspection.triton is not None,
        "tokenspeed_triton": inspection.tokenspeed_triton is not None,
    }
    chosen = [name for name in ("torch", "triton", *plan.target.vendor_modules) if held.get(name, True)]
    known = inspection.distributions
    return tuple(dict.fromkeys(n for n in chosen if n in held or n.replace("_", "-") in known or n in known))


def _judge_common(
    verdicts: Verdicts,
    facts: _Facts,
    place: Place,
    plan: TargetPlan,
    inspection: Inspection,
    environment: Mapping[str, str],
    startup: Mapping[str, str] | None,
) -> None:
    """Everything that images and prefixes share, the causes first."""
    endings, names = facts.endings, modules(plan)
    access, linked, loaded = endings["access"], endings["linked"], endings["loaded"]
    judge_readable(verdicts, place, names, access.facts())
    judge_linked(verdicts, linked.facts(), linked.seconds, "" if linked.ok else linked.problem())
    lines = loaded.lines()
    judge_maps(verdicts, lines, seconds=loaded.seconds, cuda=inspection.cuda is not None)
    alone = {name: endings[f"import {name}"] for name in names}
    judge_imports(verdicts, alone, loaded, absent(plan))
    judge_ours(verdicts, place, lines, access.facts().get("hashes", {}), expected_files(plan, facts.document))
    neighbours = endings["neighbours"]
    judge_vendor(verdicts, place, inspection, neighbours, facts.vendor_before, facts.vendor)
    judge_pins(verdicts, inspection, neighbours.lines(), replaced(plan))
    judge_flaggems(verdicts, environment, inspection.environment, startup, lines)
    toolchain = endings.get("toolchain")
    judge_toolchain(
        verdicts, wants_toolchain(plan), place.cuda_homes, toolchain.facts() if toolchain else {}, toolchain
    )
    judge_probe(verdicts, endings["probe"], inspection.triton)
    judge_warm(verdicts, endings.get("warm"), facts.document)


def _judge_library_path(verdicts: Verdicts, facts: _Facts, inspection: Inspection) -> None:
    tries = {name: facts.endings[name] for name in SEARCH_PATHS if name in facts.endings}
    judge_library_path(verdicts, other_cudart(inspection), tries, facts.endings["loaded"].lines())


def _read_config(engine: Engine, image_id: str, inspection: Inspection) -> _Image:
    config = engine.image_config(image_id)["Config"]
    base = next((name for name in (inspection.base_id, inspection.reference) if engine.image_id(name)), None)
    history = [str(step.get("CreatedBy", "")) for step in engine.client.images.get(image_id).history()]
    below = 0 if base is None else len(engine.client.images.get(base).history())
    test = (config.get("Healthcheck") or {}).get("Test") or []
    health = {"CMD": test[1:], "CMD-SHELL": ["/bin/sh", "-c", *test[1:]]}.get(test[0], []) if test else []
    return _Image(
        reference=image_id,
        base=base,
        entrypoint=tuple(config.get("Entrypoint") or ()),
        health=tuple(health),
        user=config.get("User") or "",
        labels=config.get("Labels") or {},
        environment=dict(entry.partition("=")[::2] for entry in config.get("Env") or []),
        history=tuple(history[: len(history) - below]),
    )


def _timed(work: Callable[[], Ending]) -> Ending:
    start = time.monotonic()
    done = work()
    return Ending(
        done.status, done.signal, done.timed_out, done.stdout, done.stderr, round(time.monotonic() - start, 2)
    )


def _answers(engine: Engine, image: _Image, owner: str) -> tuple[Ending, Ending | None]:
    """How the entrypoint (with `env --json`) and the health check end, as the image's own user."""
    own = ContainerLauncher(engine, image.reference, user=None, owner=owner)
    argv = [*image.entrypoint, "env", "--json"]
    answer = Ending(127, stderr="the image has no ENTRYPOINT")
    if image.entrypoint:
        answer = _timed(lambda: _launch(own, argv))
    health = _timed(lambda: _launch(own, list(image.health))) if image.health else None
    return answer, health


def _launch(launcher: Launcher, argv: Sequence[str]) -> Ending:
    return of_result(launcher.launch(argv, timeout=180))


def _scan(engine: Engine, image: _Image, place: Place, owner: str, *, sums: bool) -> tuple[Ending, float]:
    """What the image adds to its base, seen by root. The base's listing is kept by its id: that never changes."""
    start = time.monotonic()
    if image.base is None:
        return Ending(0, stdout=json.dumps({"added": None, "secrets": [], "startup": {}})), 0.0
    listing = _base_listing(engine, image.base, place, owner)
    launcher = ContainerLauncher(engine, image.reference, user="0:0", owner=owner)
    names = [ARCHIVE, _LISTING, "deepinfer-gates-scan.json"]
    libraries = [place.site, str(Path(place.engine).parent)]
    arguments = {
        "base": launcher.path(_LISTING), "own": [launcher.path(name) for name in names], "libraries": libraries,
        "needles": needles(), "sums": sums,
    }  # fmt: skip
    files = dict(zip(names, [bundle(), listing, json.dumps(arguments).encode()], strict=True))
    argv = [place.python, launcher.path(ARCHIVE), "scan", f"@{launcher.path(names[2])}"]
    done = of_result(launcher.launch(argv, files=files, timeout=180))
    return done, time.monotonic() - start


def _base_listing(engine: Engine, base: str, place: Place, owner: str) -> bytes:
    digest = sha256((base + "\0" + sha256(bundle()).hexdigest()).encode()).hexdigest()
    kept = cache.folder("inspections") / f"{digest}.files"
    if kept.exists():
        return kept.read_bytes()
    launcher = ContainerLauncher(engine, base, user="0:0", owner=owner)
    argv = [place.python, launcher.path(ARCHIVE), "listing"]
    done = launcher.launch(argv, files={ARCHIVE: bundle()}, timeout=180)
    data = done.stdout.strip().rpartition("\n")[2].encode()  # after what the base's start-up may print
    if done.returncode == 0 and data:
        cache.atomic_write(kept, data)
    return data


def _ordered(verdicts: Verdicts) -> list[GateResult]:
    by_name = {result.name: result for result in verdicts.results}
    return [by_name[name] for name in NAMES]
