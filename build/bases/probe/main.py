"""Prints what a base holds, as one line of JSON.

Whatever may crash or hang (importing torch, running a compiler) happens in a child process with a time limit and ends
as an entry of `problems`, never as the end of this program.
"""

from __future__ import annotations

import json
import platform
import re
import sys
import sysconfig
from pathlib import Path
from typing import Any

from build.bases.probe.access import reach
from build.bases.probe.children import MARK
from build.bases.probe.libraries import compiler, libc, library, loader_cache, nccl_header, owners, search, toolkit
from build.bases.probe.packages import module_facts, python_facts, torch_facts


def system() -> str:
    """The distribution's own name for itself."""
    try:
        release = Path("/etc/os-release").read_text()
    except OSError:
        return platform.system()
    return str(dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', release, re.MULTILINE)).get("PRETTY_NAME", "Linux"))


def facts_of_base() -> dict[str, Any]:
    """All facts, by the names of the inspection's fields."""
    problems: list[str] = []
    sites = sorted({Path(sysconfig.get_path("purelib")), Path(sysconfig.get_path("platlib")), *map(Path, sys.path)})
    cached = loader_cache()
    facts = {
        "os": system(),
        "machine": platform.machine(),
        "gcc": compiler(problems),
        "glibc": libc(problems),
        "libstdcxx": next((path for soname, path in cached if soname == "libstdc++.so.6"), None),
        **python_facts(problems),
    }
    brought = owners()
    facts["nccl"] = [library(path, brought) for path in search("libnccl.so.", cached, sites)]
    facts["cudart"] = [library(path, brought) for path in search("libcudart.so.", cached, sites)]
    loaded = facts.get("nccl_loaded")
    if loaded:
        facts["nccl_header"] = nccl_header(loaded)
        facts["nccl_dist"] = brought.get(str(Path(loaded).resolve()), (None, None))[0]
    facts["cuda_home"], facts["nvcc"] = toolkit()
    facts.update(reach(facts))
    facts["problems"] = problems
    return facts


def main() -> None:
    """Answer for the whole base, or as a child of that for one module, which the first argument names."""
    # The program's own place is on the path, and must not be what `import` finds first.
    own = Path(sys.argv[0]).absolute()
    sys.path[:] = [entry for entry in sys.path if entry and Path(entry).absolute() not in (own, own.parent)]
    asked = sys.argv[1] if len(sys.argv) > 1 else ""
    answer = facts_of_base() if not asked else torch_facts() if asked == "torch" else module_facts(asked)
    print("\n" + MARK + json.dumps(answer, sort_keys=True), flush=True)
