"""Compile every variant of the Triton kernels that the cases use, without running one and without a GPU:
`python -m deepinfer.ops.variants --help`.

A variant is what Triton compiles once: a kernel with its compile-time arguments, the types of the others, and what it
is told of them (divisible by 16, equal to 1). Compiled ones are kept in Triton's cache, under the key that a launch on
a Hopper GPU looks up.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget

from deepinfer import envs
from deepinfer.command_line import Parser, exit_code
from deepinfer.errors import UsageError
from deepinfer.ops import dispatch
from deepinfer.ops.ab.selection import factories, selected
from deepinfer.ops.case import Case
from deepinfer.ops.launch import compiling
from deepinfer.ops.machine_code import listing, unfinished_products
from deepinfer.ops.names import ALL_FAMILIES

TARGET = "sm_90a"
MOST = 8
"""Variants that one kernel may have over a run of the engine; more cost memory and the time of their first use."""
MORE: Mapping[str, str] = {
    "fused_transform._transform": "query, output, window, compressed and index rows of five cache formats: the "
    "cases of the engine hold all of them, and a run those of its own formats",
}
"""Kernels that have more, each with the reason: "module.function" -> words."""
Hashes = Mapping[str, frozenset[str]]


@dataclass(frozen=True)
class Report:
    """What was compiled.

    variants: kernel ("module.function") -> the hashes of its variants. engine: those of them that the real model uses.
    compiled, found: how many were compiled now, and how many Triton's cache had.
    problems: what did not compile, or not for TARGET, or to code that is wrong.
    """

    variants: Hashes = dataclasses.field(default_factory=dict)
    engine: Hashes = dataclasses.field(default_factory=dict)
    compiled: int = 0
    found: int = 0
    problems: tuple[str, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """Variants by kernel."""
        return {name: len(hashes) for name, hashes in sorted(self.variants.items())}

    @property
    def total(self) -> int:
        """Variants of all kernels."""
        return sum(self.counts.values())

    def __add__(self, other: Report) -> Report:
        return Report(
            _union(self.variants, other.variants),
            _union(self.engine, other.engine),
            self.compiled + other.compiled,
            self.found + other.found,
            self.problems + other.problems,
        )

    def too_many(self, most: int = MOST, more: Mapping[str, str] = MORE) -> list[str]:
        """A line for every kernel that the engine uses in more variants than it should, unless a reason is listed."""
        return [
            f"{name}: {len(hashes)} variants in a run of the engine, {most} at most"
            for name, hashes in sorted(self.engine.items())
            if len(hashes) > most and name not in more
        ]

    def to_json(self) -> dict[str, Any]:
        """A JSON object with all of it."""
        sides = {"variants": self.variants, "engine": self.engine}
        found = {key: {name: sorted(hashes) for name, hashes in side.items()} for key, side in sides.items()}
        return {**found, "compiled": self.compiled, "found": self.found, "problems": list(self.problems)}


def _union(first: Hashes, second: Hashes) -> Hashes:
    names = sorted({*first, *second})
    return {name: first.get(name, frozenset()) | second.get(name, frozenset()) for name in names}


class HopperDriver:
    """A stand-in for Triton's driver on a machine without a GPU: it names the target, and can launch nothing."""

    def get_current_target(self) -> Any:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


def compile_cases(names: Iterable[str] = (), *, engine_only: bool = False) -> Report:
    """Compile what the cases of these families or kernels launch (all of them for none), into Triton's cache.

    For a process that does nothing else: Triton's driver is a stand-in afterwards. Large cases are left out, unless
    the real model uses their compile-time parameters: they are too large to be built on any machine.

    engine_only: only the variants that the real model uses.
    """
    triton.runtime.driver.set_active(HopperDriver())  # type: ignore[arg-type]  # what is used of DriverBase
    gathered = _Gathered()
    with _counting() as counted:
        for family, chosen in _by_family(names).items():
            for case in gathered.cases(family, chosen):
                if case.engine or not (engine_only or case.large):
                    gathered.compile(case)
    return gathered.report(counted)


class _Gathered:
    """What is learnt from the launches of case after case."""

    def __init__(self) -> None:
        self._variants: dict[str, set[str]] = collections.defaultdict(set)
        self._engine: dict[str, set[str]] = collections.defaultdict(set)
        self._problems: list[str] = []
        self._of_engine = False

    def cases(self, family: str, chosen: Sequence[str]) -> list[Case]:
        """The cases of a family's factories. A family that cannot be imported is a finding: the others go on."""
        try:
            return selected(chosen)
        except Exception as problem:
            self._problems.append(f"{family}: {type(problem).__name__}: {problem}")
            return []

    def compile(self, case: Case) -> None:
        """Compile what a case launches."""
        self._of_engine = case.engine
        try:
            call = case.call()
            with dispatch.using(dispatch.Settings("triton", strict=True)), compiling(self._record):
                kernel = dispatch.factory(case.factory)(*call.parameters, **call.named)
                kernel(*(one.value for one in call.arguments))
        except Exception as problem:  # any failure of the compiler is a finding, and the other cases go on
            text = str(problem).strip()[:600]
            self._problems.append(f"{case.factory} {case.name}: {type(problem).__name__}: {text}")

    def report(self, counted: Mapping[str, int]) -> Report:
        """All of it. counted: how many were compiled and found."""
        sides = (self._variants, self._engine)
        fixed = [{name: frozenset(hashes) for name, hashes in sorted(side.items())} for side in sides]
        return Report(fixed[0], fixed[1], counted["compiled"], counted["found"], tuple(self._problems))

    def _record(self, kernel: Any, compiled: Any) -> None:
        name = f"{kernel.__module__.rpartition('.')[2]}.{kernel.__name__}"
        ptx = compiled.asm["ptx"]
        early = _early(ptx) if compiled.metadata.launch_pdl else ""
        unfinished = _unfinished(compiled.asm["cubin"]) if "wgmma.mma_async" in ptx else ""
        for wrong in filter(None, (_wrong_target(ptx), early, unfinished)):
            self._problems.append(f"{name}: {wrong}")
        self._variants[name].add(compiled.hash)
        if self._of_engine:
            self._engine[name].add(compiled.hash)


def _wrong_target(ptx: str) -> str:
    target = re.search(r"^\.target\s+(\S+)", ptx, re.MULTILINE)
    found = target[1].rstrip(",") if target else "no target"
    return "" if found == TARGET else f"compiled for {found}, not {TARGET}"


def _early(ptx: str) -> str:
    """What is wrong with a kernel that is started before the one ahead of it has ended: it has to wait first of all."""
    wait = ptx.find("griddepcontrol.wait")
    touched = re.search(r"\b(?:ld|st|atom|red|prefetch|cp\.async\S*)\.(?:\w+\.)*global\b", ptx)
    if wait < 0 or (touched and touched.start() < wait):
        return "is launched early (launch_pdl), but touches memory before it waits (await_inputs)"
    return ""


def _unfinished(cubin: bytes) -> str:
    """What is wrong with a kernel's products; nothing is known where Triton has no nvdisasm."""
    found = unfinished_products(listing(cubin) or "")
    return (
        f"uses products that are not finished (ops/machine_code.py): {found[0]}; {len(found)} in all" if found else ""
    )


@contextlib.contextmanager
def _counting() -> Iterator[collections.Counter[str]]:
    """Count what is compiled and what is found within the block; whoever else listens goes on doing so."""
    counted: collections.Counter[str] = collections.Counter()
    before: Any = knobs.compilation.listener

    def listen(*, cache_hit: bool, **told: Any) -> None:
        counted["found" if cache_hit else "compiled"] += 1
        if before is not None:
            before(cache_hit=cache_hit, **told)

    knobs.compilation.listener = listen
    try:
        yield counted
    finally:
        knobs.compilation.listener = before


def main(argv: Sequence[str]) -> int:
    """Compile, tell, and return the exit code: 0 where everything compiled for TARGET and no kernel has too many."""
    parser = Parser(
        prog="python -m deepinfer.ops.variants",
        description=f"Compile the kernels' variants for {TARGET} into Triton's cache; needs no GPU.",
        epilog="example: python -m deepinfer.ops.variants --engine --json",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="families or kernels; globs (default: all)")
    parser.add_argument("--engine", action="store_true", help="only the variants that the real model uses")
    parser.add_argument("--json", action="store_true", help="print JSON alone on stdout")
    parser.add_argument("--events", action="store_true", help="print a line of JSON on stdout for each family")
    try:
        given = parser.parse_args(argv)
    except SystemExit as done:  # --help
        return int(done.code or 0)
    if envs.read(envs.TRITON_INTERPRET) not in ("", "0"):
        raise UsageError("TRITON_INTERPRET is set: nothing is compiled then", next_step="unset TRITON_INTERPRET")
    report = Report()
    for family, chosen in _by_family(given.names).items():
        one = compile_cases(chosen, engine_only=given.engine)
        report += one
        if given.events:
            print(json.dumps({"family": family, "triton": triton.__version__, **one.to_json()}), flush=True)
        print(f"{family}: {one.total} variants, {one.compiled} compiled now", file=sys.stderr, flush=True)
        for problem in one.problems:
            print(f"    {problem}", file=sys.stderr, flush=True)
    _tell(report, as_json=given.json, events=given.events)
    return 0 if not report.problems and not report.too_many() else 1


def _by_family(names: Iterable[str]) -> dict[str, list[str]]:
    wanted = factories(list(names))
    grouped = {family: [one for one in own if one in wanted] for family, own in ALL_FAMILIES.items()}
    return {family: chosen for family, chosen in grouped.items() if chosen}


def _tell(report: Report, *, as_json: bool, events: bool) -> None:
    if as_json:
        told = {"target": TARGET, "triton": triton.__version__, "total": report.total, "counts": report.counts}
        print(json.dumps({**told, **report.to_json(), "too_many": report.too_many()}))
    elif not events:
        for name, count in report.counts.items():
            print(f"{count:4d}  {name}")
        print(
            f"{report.total} variants of {len(report.counts)} kernels for {TARGET} under Triton {triton.__version__}: "
            f"{report.compiled} compiled now, {report.found} found"
        )
        print("\n".join(report.too_many()), end="\n" if report.too_many() else "")


if __name__ == "__main__":
    sys.exit(exit_code(lambda: main(sys.argv[1:])))
