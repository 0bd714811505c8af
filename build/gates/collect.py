"""Which processes the gates need, and how they are started: one container for most, as a user without rights."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from build.container import RunResult
from build.gates.judge.rows import Ending, ending
from build.gates.launcher import ARCHIVE, Launcher, bundle
from build.gates.place import Place

AT_ONCE = 2
PROCESS_TIMEOUT = 120.0
WARM_TIMEOUT = 600.0
"""For a look at every kernel of the engine, whose cases have the real model's sizes."""
_IMPORT = "import importlib, sys, deepinfer\nprint(importlib.import_module(sys.argv[1]).__file__)"
_LOAD = """
import ctypes, sys
ctypes.CDLL(sys.argv[1])
print(next(line.split()[-1] for line in open("/proc/self/maps") if sys.argv[1] in line))
"""
SEARCH_PATHS: Mapping[str, str | None] = {
    "LD_LIBRARY_PATH unset": None,
    "LD_LIBRARY_PATH=/nonexistent": "/nonexistent",
    "LD_LIBRARY_PATH with an empty element": "/nonexistent:",
}


@dataclass
class Tasks:
    """Processes to run in one place, in order; the long ones come first so that none is left over at the end."""

    launcher: Launcher
    python: str
    tasks: list[dict[str, Any]] = field(default_factory=list)

    def program(self, task: str, program: str, *, env: Mapping[str, str] | None = None, **arguments: Any) -> None:
        """One of our programs under the name `task`."""
        path = self.launcher.path(ARCHIVE)
        self.command(task, [self.python, "-X", "faulthandler", path, program, json.dumps(arguments)], env)

    def command(
        self,
        task: str,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        unset: Sequence[str] = (),
        timeout: float = PROCESS_TIMEOUT,
    ) -> None:
        """Any command under the name `task`."""
        self.tasks.append(
            {"name": task, "argv": list(argv), "env": dict(env or {}), "unset": list(unset), "timeout": timeout}
        )

    def run(self, timeout: float = 900) -> dict[str, Ending]:
        """Run them all; a task that did not even start ends with the launcher's own problem."""
        arguments = json.dumps({"tasks": self.tasks, "at_once": AT_ONCE}).encode()
        argv = [
            self.python, self.launcher.path(ARCHIVE), "conductor", f"@{self.launcher.path('deepinfer-gates.json')}",
        ]  # fmt: skip
        files = {ARCHIVE: bundle(), "deepinfer-gates.json": arguments}
        result = self.launcher.launch(argv, files=files, timeout=timeout)
        endings = of_result(result).facts()
        if not endings:
            return {task["name"]: of_result(result) for task in self.tasks}
        return {name: ending(facts) for name, facts in endings.items()}


def of_result(result: RunResult, seconds: float = 0.0) -> Ending:
    """A launcher's result as an ending; 128 + n says that signal n killed it."""
    signal = {134: "SIGABRT", 136: "SIGFPE", 137: "SIGKILL", 139: "SIGSEGV", 143: "SIGTERM"}.get(result.returncode, "")
    late = result.returncode == 124
    return Ending(result.returncode or 0, signal, late, result.stdout, result.stderr, seconds)


def user_tasks(
    launcher: Launcher,
    place: Place,
    modules: Sequence[str],
    *,
    neighbours: Sequence[str],
    foreign: Sequence[str],
    toolchain: bool,
    library: str,
    warm: bool = False,
) -> Tasks:
    """What runs as a user without rights.

    modules: ours, `deepinfer` first.  neighbours: the vendor's modules.  foreign: names of ours that the vendor may
    have too.  library: soname of a CUDA runtime that has to load, or "".  warm: the image carries warm caches.
    """
    tasks, env = Tasks(launcher, place.python), place.environment()
    tasks.command("probe", [*place.command, "probe", "--json", "--compile-only"])
    if warm:
        tasks.command("warm", [*place.command, "warm", "--json"], timeout=WARM_TIMEOUT)
    if toolchain:
        tasks.program("toolchain", "toolchain", homes=list(place.cuda_homes))
    tasks.program("loaded", "loaded", env=env, modules=["torch", *modules], library=library)
    tasks.program("neighbours", "neighbours", modules=list(neighbours), ours=list(foreign), site=place.site)
    folders = {module: place.folder(module) for module in reversed(modules)}
    tasks.program("linked", "linked", roots=place.roots(), modules=folders)
    for module in modules:
        tasks.command(f"import {module}", [place.python, "-X", "faulthandler", "-c", _IMPORT, module], env)
    if library:
        for name, value in SEARCH_PATHS.items():
            env = {} if value is None else {"LD_LIBRARY_PATH": value}
            tasks.command(name, [place.python, "-c", _LOAD, library], env, ["LD_LIBRARY_PATH"] if value is None else [])
    tasks.program(
        "access", "access", roots=place.roots(), packages=sorted(set(folders.values())), cache=place.cache or "",
        document=place.document or "",
    )  # fmt: skip
    return tasks
