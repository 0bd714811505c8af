"""How long builds take: nothing changed, only Python changed, everything cold, compiler caches warm.

    ./run -- python benchmarks/build.py [--image 'fla*,vllm'] [--repeat 3]

One image after the other, on its replica: one that is not here is made first and removed after its turn, so that the
disk holds one more image at a time. Takes about ten minutes an image, and what its downloads take. It works on a copy
of the checkout with a cache of its own, and its images have a name of their own: the user's are not touched. All
figures of an image are of one run, so that their ratios mean something on any machine. Prints tables and writes JSON.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from build import cache  # noqa: E402
from build.arguments import Parser  # noqa: E402
from build.bases.inspect import expected, inspect_base  # noqa: E402
from build.bases.replica import make_replica, reference  # noqa: E402
from build.clean.images import clean_images  # noqa: E402
from build.containers import Engine  # noqa: E402
from build.errors import BuildError, EnvironmentCannot, UsageError  # noqa: E402
from build.host_memory import host_memory  # noqa: E402
from build.image.names import revision  # noqa: E402
from build.matrix.load import load_matrix  # noqa: E402
from build.matrix.model import Target  # noqa: E402
from build.matrix.select import select  # noqa: E402
from build.testing import build_records, prune_records  # noqa: E402

COPIED = (
    "run", "tasks.py", "build", "deepinfer", "images", "locks", "pyproject.toml", "setup.py", "README.md", "LICENSE",
)  # fmt: skip
LIMITS = {
    "nothing changed": (3.0, "s"),
    "only Python changed": (20.0, "s"),
    "empty wheelhouse": (1.3, "x the compiles alone"),
    "empty wheelhouse, ccache warm": (0.3, "x the compiles alone"),
}


class Bench:
    """A copy of the checkout in which one image, called otherwise, stands on the replica of the real one."""

    def __init__(self, target: Target, scratch: Path) -> None:
        self.name = f"bench-{target.name}"
        self.components = target.components
        self.checkout = scratch / "checkout"
        self.cache = scratch / "cache"
        self.log = scratch / "builds.log"
        _copy_checkout(self.checkout)
        _write_matrix(target, self.name, self.checkout / "matrix.yaml")
        self.cache.mkdir()
        for shared in ("downloads", "triton"):
            (self.cache / shared).symlink_to(cache.folder(shared))

    def build(self, *words: str) -> float:
        """Seconds of `./run build` for the image. Raises EnvironmentCannot when it fails."""
        variables = {"DEEPINFER_PYTHON": sys.executable, "DEEPINFER_BUILD_CACHE": str(self.cache)}
        argv = [str(self.checkout / "run"), "build", "--image", self.name, *words]
        start = time.monotonic()
        with self.log.open("ab") as log:
            done = subprocess.run(
                argv, env={**os.environ, **variables}, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False
            )
        seconds = time.monotonic() - start
        if done.returncode != 0:
            tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-25:])
            raise EnvironmentCannot(f"a build of the benchmark ended with status {done.returncode}:\n{tail}")
        return seconds

    def forget(self, *folders: str) -> None:
        """Empty these folders of the scratch cache."""
        for folder in folders:
            shutil.rmtree(self.cache / folder, ignore_errors=True)

    def change_python(self, number: int) -> None:
        """Make the engine's Python another one, so that its wheel and the image have to be made again."""
        file = self.checkout / "deepinfer" / "__init__.py"
        file.write_text(f"{file.read_text().rstrip()}\n# benchmark {number}\n")

    def compile_seconds(self, component: str) -> float | None:
        """What the wheelhouse's record says of the compile; None where the base does not support the component."""
        for file in self.cache.glob("wheelhouse/*/meta.json"):
            meta = json.loads(file.read_text())
            if meta["cell"] == f"{self.name}/{component}":
                return float(meta["seconds"])
        return None


def _copy_checkout(target: Path) -> None:
    target.mkdir()
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name, ignore=ignored)
        else:
            shutil.copy2(ROOT / name, target / name)


def _write_matrix(target: Target, name: str, path: Path) -> None:
    """The matrix with one image: the replica of the real one counts as a vendor's image that is here."""
    document = yaml.safe_load((ROOT / "matrix.yaml").read_text())
    image = document["images"][target.name]
    image |= {"vendor": reference(target), "vendor_gb": 1, "expect": expected(target, "replica")}
    del image["replica"]
    document["images"] = {name: image}
    path.write_text(yaml.safe_dump(document, sort_keys=False))


def measure(engine: Engine, bench: Bench, repeat: int) -> dict[str, list[float]]:
    """Seconds of every sample, by what was measured."""
    samples: dict[str, list[float]] = {}

    def take(name: str, seconds: float | None) -> None:
        if seconds is not None:
            samples.setdefault(name, []).append(round(seconds, 2))
            print(f"{name}: {seconds:.1f} s", file=sys.stderr, flush=True)

    compiled = [name for name in bench.components if load_matrix().components[name].kind != "overlay"]
    for component in compiled:
        bench.forget("wheelhouse", "ccache")
        bench.build("--component", component)  # the first one makes the builder, which is no compile
        take(f"compile of {component} alone", bench.compile_seconds(component))
    bench.forget("wheelhouse", "ccache", "parts", "inspections")
    take("empty wheelhouse", bench.build())
    for _ in range(max(repeat, 3)):
        take("nothing changed", bench.build())
    for number in range(repeat):
        bench.change_python(number)
        take("only Python changed", bench.build())
    bench.forget("wheelhouse", "parts", "inspections")
    _remove_finished(engine, bench)
    take("empty wheelhouse, ccache warm", bench.build())
    return samples


def _remove_finished(engine: Engine, bench: Bench) -> None:
    """Take the finished images away and leave the builder."""
    for image in engine.client.images.list("deepinfer"):
        for tag in image.tags:
            if bench.name in tag:
                engine.client.images.remove(tag)


def summarise(samples: dict[str, list[float]]) -> list[dict[str, Any]]:
    """A row for each figure: median seconds, the figure in its unit, its limit."""
    medians = {name: statistics.median(values) for name, values in samples.items()}
    alone = sum(seconds for name, seconds in medians.items() if name.endswith(" alone"))
    rows: list[dict[str, Any]] = []
    for name, seconds in {**medians, "the compiles alone, together": alone}.items():
        limit, unit = LIMITS.get(name, (None, "s"))
        if not alone and unit != "s":  # nothing was compiled
            limit, unit = None, "s"
        figure = seconds if unit == "s" else seconds / alone
        rows.append({
            "name": name, "samples": samples.get(name, []), "seconds": round(seconds, 2), "figure": round(figure, 2),
            "unit": unit, "limit": limit, "kept": None if limit is None else figure <= limit,
        })  # fmt: skip
    return rows


def as_table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown, for the terminal and for docs/measurements.md."""
    lines = ["| what | seconds | samples | figure | limit |", "|---|---:|---:|---:|---:|"]
    for row in rows:
        figure = "" if row["limit"] is None else f"{row['figure']:.2f} {row['unit']}"
        limit = "" if row["limit"] is None else f"{row['limit']:g}" + ("" if row["kept"] else " (missed)")
        lines.append(f"| {row['name']} | {row['seconds']:.1f} | {max(len(row['samples']), 1)} | {figure} | {limit} |")
    return "\n".join(lines)


def machine_facts(engine: Engine) -> dict[str, Any]:
    """What the figures depend on."""
    models = [line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
              if line.startswith("model name")]  # fmt: skip
    processors, memory = engine.capacity()
    return {
        "processor": models[0] if models else platform.machine(),
        "processors": len(os.sched_getaffinity(0)),
        "memory_gib": round(host_memory() / 2**30, 1),
        "engine": {"version": engine.client.version()["Version"], "processors": processors,
                   "memory_gib": round(memory, 1)},
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_before": os.getloadavg()[0],
    }  # fmt: skip


def summary(results: Sequence[dict[str, Any]]) -> str:
    """A line an image, as Markdown: the seconds of each kind of build, as a ratio too where the limit is one."""
    kinds = ("the compiles alone, together", *LIMITS)
    lines = [f"| image | {' | '.join(kinds)} |", f"|---|{'---:|' * len(kinds)}"]
    for result in results:
        if "error" in result:
            lines.append(f"| {result['image']} | {result['error']}{' |' * len(kinds)}")
            continue
        rows = {row["name"]: row for row in result["rows"]}
        lines.append(f"| {result['image']} | {' | '.join(_figure(rows.get(kind)) for kind in kinds)} |")
    return "\n".join(lines)


def _figure(row: dict[str, Any] | None) -> str:
    if row is None:
        return "-"
    ratio = f" ({row['figure']:.2f} x)" if row["unit"].startswith("x ") else ""
    missed = " missed" if row["kept"] is False else ""
    return f"{row['seconds']:.1f} s{ratio}{missed}"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write; returns the worst exit code. A missed limit is shown and is no failure."""
    parser = Parser(prog="benchmarks/build.py", description="Times of builds.")
    parser.add_argument("--image", default="*", help="globs and comma lists (default: every image of the matrix)")
    parser.add_argument("--repeat", type=int, default=3, help="samples of what is cheap (default: 3)")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", help="folder for the JSON")
    try:
        args = parser.parse_args(argv)
        if args.repeat < 1:
            raise UsageError(f"--repeat must be at least 1, not {args.repeat}", next_step="give a larger number")
    except UsageError as problem:
        print(problem, file=sys.stderr)
        return problem.exit_code
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was made is removed then too
    now, results, code = datetime.now(UTC), [], 0
    file = args.out / f"build-{now:%Y-%m-%d}.json"
    try:
        targets = load_matrix().targets
        images = [name for name, target in targets.items() if target.kind == "image" and target.replica is not None]
        names = select(images, args.image, "image")
        engine = Engine.connect()
        document = {"date": now.isoformat(timespec="seconds"), "revision": revision(ROOT),
                    "machine": machine_facts(engine), "images": results}  # fmt: skip
    except BuildError as problem:
        print(problem, file=sys.stderr)
        return problem.exit_code
    for name in names:
        print(f"==== {name}", file=sys.stderr, flush=True)
        try:
            with replica_of(engine, targets[name]) as base:
                facts = inspect_base(engine, base).facts()
                rows = summarise(_measured(engine, targets[name], args.repeat))
            results.append({"image": name, "base": facts, "rows": rows})
            print(f"\n{name} on its replica:\n\n{as_table(rows)}\n", flush=True)
        except BuildError as problem:
            print(problem, file=sys.stderr, flush=True)
            results.append({"image": name, "error": problem.what.partition("\n")[0]})
            code = max(code, problem.exit_code)
        cache.atomic_write(file, json.dumps(document, indent=1) + "\n")  # what was measured is kept, whatever follows
    print(summary(results))
    return code


@contextmanager
def replica_of(engine: Engine, target: Target) -> Iterator[str]:
    """The replica's name for the time of the block; one that was not here is removed again."""
    name = reference(target)
    there = engine.image_id(name) is not None
    records = build_records(engine)
    try:
        make_replica(engine, target)
        yield name
    finally:
        if not there:
            clean_images(engine, name)
            prune_records(engine, build_records(engine) - records)


def _measured(engine: Engine, target: Target, repeat: int) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory(prefix="deepinfer-bench-") as scratch:
        bench = Bench(target, Path(scratch))
        try:
            return measure(engine, bench, repeat)
        finally:
            clean_images(engine, bench.name)


if __name__ == "__main__":
    raise SystemExit(main())
