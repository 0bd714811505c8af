"""Carries one compile out, beside the compiler: run, find the product, strip, repack, say how it is linked.

`python inside.py job.json`, standard library only: it runs in a vendor's image with the vendor's Python, or on the
host. It leaves the finished artefact and result.json in the job's result folder, and ends with the status of what
failed; messages go to the log that the caller keeps.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

NEEDED = re.compile(r"\(NEEDED\).*\[(.+)\]")


def run(argv: list[str], cwd: str, env: dict[str, str]) -> None:
    """Run a program with its output in the log; end with its status if it fails."""
    print("+", *argv, flush=True)
    status = subprocess.run(argv, cwd=cwd, env=env, check=False).returncode
    if status != 0:
        # A negative status is a signal: 137 for a kill, as a shell says it.
        raise SystemExit(status if status > 0 else 128 - status)


def find_product(folder: Path, pattern: str) -> Path:
    """The one file that the compile was for."""
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "nothing"
        print(f"error: expected one {pattern} as the product of the compile, found {names}", flush=True)
        raise SystemExit(1)
    return found[0]


def finish_module(module: Path, env: dict[str, str]) -> dict[str, Any]:
    """Strip an extension module in place; tell its sizes and the libraries that it asks for."""
    before = module.stat().st_size
    run(["strip", "--strip-unneeded", str(module)], "/", env)
    shown = subprocess.run(["readelf", "-dW", str(module)], env=env, capture_output=True, text=True, check=True).stdout
    return {
        "name": module.name,
        "size_before": before,
        "size": module.stat().st_size,
        "needed": NEEDED.findall(shown),
    }


def finish(product: Path, job: dict[str, Any], env: dict[str, str]) -> tuple[Path, list[dict[str, Any]]]:
    """Strip the product's extension modules and put it, repacked with a true RECORD, into the result folder."""
    result = Path(job["result"])
    result.mkdir(parents=True, exist_ok=True)
    if product.suffix != ".whl":
        target = result / product.name
        shutil.copyfile(product, target)
        target.chmod(0o755)
        return target, [finish_module(target, env)]
    scratch = result.with_name(f"{result.name}-unpacked")
    wheel = [job["argv"][0], "-m", "wheel"]
    run([*wheel, "unpack", "--dest", str(scratch), str(product)], "/", env)
    (tree,) = scratch.iterdir()
    modules = [finish_module(path, env) for path in sorted(tree.rglob("*.so"))]
    run([*wheel, "pack", "--dest-dir", str(result), str(tree)], "/", env)
    shutil.rmtree(scratch)
    return find_product(result, "*.whl"), modules


def versions(job: dict[str, Any], env: dict[str, str]) -> dict[str, str]:
    """First line of what the tools say of themselves; they are no part of the key, but of the record."""
    found = {}
    for tool in ("g++", "ld", "ccache"):
        path = shutil.which(tool, path=env["PATH"])
        if path is not None:
            shown = subprocess.run([path, "--version"], env=env, capture_output=True, text=True, check=False).stdout
            found[tool] = shown.partition("\n")[0]
    found["python"] = sys.version.split()[0]
    return found


def main() -> None:
    """Carry out the job in the file that is named."""
    job = json.loads(Path(sys.argv[1]).read_text())
    env = {**os.environ, **job["env"]}
    cached = "CCACHE_DIR" in env and shutil.which("ccache", path=env["PATH"]) is not None
    for folder in (job["out"], env["HOME"]):
        Path(folder).mkdir(parents=True, exist_ok=True)
    if cached:
        run(["ccache", "--zero-stats"], "/", env)
    start = time.monotonic()
    run(job["argv"], job["cwd"], env)
    seconds = time.monotonic() - start
    if cached:
        run(["ccache", "--show-stats"], "/", env)
    artefact, modules = finish(find_product(Path(job["out"]), job["product"]), job, env)
    record = {
        "artefact": artefact.name,
        "modules": modules,
        "seconds": round(seconds, 1),
        "tools": versions(job, env),
    }
    Path(job["result"], "result.json").write_text(json.dumps(record, indent=1, sort_keys=True))


if __name__ == "__main__":
    main()
