"""Warm caches: the Triton kernels that a run uses, compiled inside the image itself and laid beside the engine.

`deepinfer warm` runs in a container of the finished image without them, so that Triton, ptxas, Python and the C
compiler are those that a run will have; what it compiled or found becomes one part. The last part of an image is given
to the next container, where Triton finds by its keys what is still good: after a change of one kernel one is compiled.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import tarfile
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path, PurePosixPath
from typing import Any

from build import cache
from build.containers import Engine
from build.errors import EnvironmentCannot, GateFailed
from build.heartbeat import heartbeat
from build.image.parts import PREFIX, Contents, Part, cached_part, existing_folders, inside
from build.inspection import Inspection
from build.plan import TargetPlan, without_warm
from build.wheels.wheelhouse import DAMAGE

WARM = PREFIX / "warm" / "triton"
FOLDER = PurePosixPath("/tmp/deepinfer-warm")
"""Triton's cache in the container: a fresh one, whatever the base may have in its own. No key depends on it."""
TIMEOUT = 3600.0
GOODBYE = 20.0
"""Seconds that the end of its log may come after that of the program."""
LEFT_OUT = (".source", ".ttir", ".ttgir", ".llir")
"""What Triton keeps of a kernel beside what a launch reads: most of the bytes."""

_MANAGER = "TRITON_CACHE_MANAGER"

Plain = Callable[[], AbstractContextManager[str]]


def no_warm_part(plan: TargetPlan) -> Part:
    """The part of an image without warm caches."""
    return cached_part(plan.target.name, "warm", None, existing_folders("/opt"), lambda tree: Contents())


def warm_part(engine: Engine, plan: TargetPlan, inspection: Inspection, plain: Plain) -> Part:
    """The part with warm caches, from the cache or compiled now.

    Args:
        plain: makes the image without warm caches and gives its id for the time of the block.

    Its facts are what image.json says under `warm`.

    Raises:
        GateFailed: a kernel does not compile.
        EnvironmentCannot: the base looks kernels up in a way of its own.
    """
    name = plan.target.name
    if inspection.environment.get(_MANAGER):
        raise EnvironmentCannot(
            f"{name}: the base sets {_MANAGER}={inspection.environment[_MANAGER]}: warm caches would not be found",
            next_step="build it without --warm",
        )
    kept = _Kept(cache.folder(f"parts/{name}"), inspection.base_id)

    def make(tree: Path) -> Contents:
        with plain() as image:
            return _compile(engine, image, name, kept.read(), tree)

    # The key of the image without them covers all that can change a kernel: the base, the engine, the assembly.
    inputs = ["warm", without_warm(plan).image_key]
    part = cached_part(name, "warm", inputs, existing_folders("/opt"), make)
    if part.fresh:
        kept.write(part.archive)
    return part


class _Kept:
    """The last part with warm caches, kept for the next one; of the same base, to whose C library modules are bound."""

    def __init__(self, folder: Path, base: str) -> None:
        self.archive, self.record = folder / "last-warm.tar", folder / "last-warm.json"
        self.base = base

    def read(self) -> bytes:
        """The archive; empty if there is none, it is damaged, or it is of another base."""
        try:
            written = json.loads(self.record.read_text())
            data = self.archive.read_bytes()
            whole = hashlib.sha256(data).hexdigest() == written["sha256"]
            return data if whole and written["base"] == self.base else b""
        except DAMAGE:
            return b""

    def write(self, archive: Path) -> None:
        """Keep it by a second name: it takes no space while the part itself is there."""
        aside = self.archive.with_suffix(".new")
        aside.unlink(missing_ok=True)
        os.link(archive, aside)
        aside.replace(self.archive)
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        cache.atomic_write(self.record, json.dumps({"sha256": digest, "base": self.base}))


def _compile(engine: Engine, image: str, name: str, before: bytes, tree: Path) -> Contents:
    log = cache.folder("logs") / f"warm-{name}.log"
    argv, env = ["deepinfer", "warm", "--json"], {"TRITON_CACHE_DIR": str(FOLDER)}
    with engine.container(image, argv, env=env, owner=f"{name}/warm") as container:
        if before:
            container.put_tar("/", before)
        container.start()
        log.unlink(missing_ok=True)
        follower = threading.Thread(target=container.follow, args=(log,), daemon=True)
        follower.start()
        with heartbeat(f"{name}: kernels of the warm caches", log=log):
            status = container.wait(TIMEOUT)
            follower.join(GOODBYE)
        out, err = container.output()
        report = read_report(name, status, out, err, log)
        entries = _files(before, WARM) | _fetch(container.get_tar)
    size = lay_entries(tree, report["entries"], entries)
    counts = ", ".join(f"{way} {report['kernels'][way]}" for way in ("compiled", "found"))
    print(f"{name}: kernels of the warm caches: {counts}", file=sys.stderr, flush=True)
    return Contents(facts=_facts(report, size))


def read_report(name: str, status: int, out: str, err: str, log: Path) -> dict[str, Any]:
    """What `deepinfer warm --json` printed, after whatever the base's own start-up printed before it.

    Raises GateFailed when it ended otherwise than well, with what it said.
    """
    start = out.find("\n{\n") + 1 if not out.startswith("{") else 0
    try:
        report: dict[str, Any] = json.loads(out[start:])
        problems = [text for provider in report["providers"] for text in provider["problems"]]
    except (ValueError, KeyError, TypeError):
        report, problems = {}, [*err.strip().splitlines()[-3:]] or ["it said nothing"]
    if status != 0 or not report:
        ended = f"took more than {TIMEOUT:.0f} s" if status == 124 else f"ended with status {status}"
        raise GateFailed(
            f"{name}: `deepinfer warm` in the image {ended}",
            cause="; ".join(problems[:3]),
            next_step="correct the kernel, or build without --warm",
            log=log,
        )
    return report


def _fetch(get: Callable[[str], bytes]) -> dict[str, dict[str, bytes]]:
    """The entries that were compiled in a container; none if its cache was not even made."""
    try:
        data = get(str(FOLDER))
    except FileNotFoundError:
        return {}
    return _files(data, PurePosixPath(FOLDER.name))


def _files(data: bytes, below: PurePosixPath) -> dict[str, dict[str, bytes]]:
    """The entries of an archive below a folder of it: key -> name -> contents."""
    found: dict[str, dict[str, bytes]] = {}
    if not data:
        return found
    prefix = str(below).lstrip("/") + "/"
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            key, _, name = member.name.removeprefix(prefix).partition("/")
            handle = archive.extractfile(member) if member.isfile() and member.name.startswith(prefix) else None
            if handle is not None and name and "/" not in name:
                found.setdefault(key, {})[name] = handle.read()
    return found


def lay_entries(tree: Path, wanted: Mapping[str, Any], entries: Mapping[str, Mapping[str, bytes]]) -> int:
    """Lay the entries of the `wanted` keys out as the image has them; returns the bytes.

    A group names its files by path: by the ones of the image, so that Triton's own manager can read it too.
    """
    size = 0
    for key in sorted(wanted):
        folder = inside(tree, WARM / key)
        folder.mkdir(parents=True)
        for name, data in entries[key].items():
            if name.endswith(LEFT_OUT) or (name.startswith("tmp.") or name == "lock"):
                continue
            laid = _group(key, data) if name.startswith("__grp__") else data
            (folder / name).write_bytes(laid)
            (folder / name).chmod(0o755 if name.endswith(".so") else 0o644)
            size += len(laid)
    return size


def _group(key: str, data: bytes) -> bytes:
    names = [name for name in json.loads(data)["child_paths"] if not name.endswith(LEFT_OUT)]
    return json.dumps({"child_paths": {name: str(WARM / key / name) for name in sorted(names)}}).encode()


def _facts(report: Mapping[str, Any], size: int) -> dict[str, Any]:
    """What image.json says of the warm caches."""
    kinds = {kind: sum(report[kind].values()) for kind in ("kernels", "modules")}
    return {
        "path": str(WARM), "triton": report["triton"], "target": report["target"], "bytes": size, **kinds,
        "without_modules": report["without_modules"],
        "providers": {provider["name"]: provider["kernels"] for provider in report["providers"]},
    }  # fmt: skip
