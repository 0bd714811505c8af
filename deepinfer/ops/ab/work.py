"""What the command line does: choose the sides, go through the cases, tell the result."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from deepinfer.errors import DeepInferError, UsageError, unwritable
from deepinfer.ops.ab import report
from deepinfer.ops.ab.compare import Row, Skips, compare
from deepinfer.ops.ab.outside import run_module, write_inputs
from deepinfer.ops.ab.portable.read import Reader
from deepinfer.ops.ab.portable.values import FILE, DumpError, Value
from deepinfer.ops.ab.portable.write import Writer, constants, written
from deepinfer.ops.ab.selection import digests, selected
from deepinfer.ops.ab.sides import Dumped, Here, Side, refuse_equal, told
from deepinfer.ops.case import Call, Case
from deepinfer.ops.names import MODEL_FAMILIES

NOT_ON_A_CPU = "large: for a GPU only"
NOT_IN_A_DUMP = "large: too large for a dump"
OF_OUR_OWN = "this project's own: other packages have no kernel of the name"


@dataclasses.dataclass(frozen=True)
class Options:
    """What the command line says; see its --help. module: '' for none, and then `path` means nothing."""

    names: Sequence[str]
    expected: str
    got: str
    device: str
    module: str
    path: Path
    timeout: float
    skips: Sequence[tuple[str, str]]
    json: bool
    events: bool


def compare_sides(options: Options, dump: Path | None) -> int:
    """Compare, and tell. dump: the folder of a dump that is the expected side, on whose inputs --got runs.

    Returns: 0 where all cases agree, else 1.
    """
    chosen = selected(options.names)
    if dump is None and not options.module:
        expected, got = Here(options.expected, options.device), Here(options.got, options.device)
        return _go(options, chosen, expected, got, NOT_ON_A_CPU if options.device == "cpu" else "")
    skips = _skips(options, NOT_IN_A_DUMP)
    if dump is None:
        examined = Here(options.got, options.device)
        with _outside(options, _fresh(chosen, skips), digests(chosen)) as theirs:
            return _go(options, chosen, Dumped(theirs), examined, NOT_IN_A_DUMP)
    with _opened(dump) as reader:
        there = Dumped(reader)
        _require_same_cases(reader, chosen, dump)
        if not options.module:
            return _go(options, chosen, there, Here(options.got, options.device), NOT_IN_A_DUMP)
        calls = [(case, there.call(case)) for case in chosen if not skips.reason(case) and there.has(case)]
        with _outside(options, calls, digests(chosen)) as theirs:
            return _go(options, chosen, there, Dumped(theirs), NOT_IN_A_DUMP)


def make_dump(options: Options, folder: Path) -> int:
    """Write what --got, or the module, makes of the cases. Nothing is written if one of them fails.

    Returns: 0, or 1 if a case failed.
    """
    chosen, skips = selected(options.names), _skips(options, NOT_IN_A_DUMP)
    calls, sources = _fresh(chosen, skips), digests(chosen)
    with contextlib.ExitStack() as stack:
        if options.module:
            side: Side = Dumped(stack.enter_context(_outside(options, calls, sources)))
        else:
            side = Here(options.got, options.device)
        try:
            with written(folder, side.versions, sources) as writer:
                failed = sum(not _keep(writer, side, case, call, events=options.events) for case, call in calls)
                if failed:
                    raise _IncompleteError
        except _IncompleteError:
            print(f"{failed} of {len(calls)} cases failed: no dump was written", file=sys.stderr)
            return 1
        except OSError as problem:
            raise unwritable(f"{folder} cannot be written", problem) from problem
    size = (folder / FILE).stat().st_size
    print(f"wrote {len(calls)} cases of {told(side.versions)} to {folder} ({size / 1e6:.1f} MB)", file=sys.stderr)
    return 0


class _IncompleteError(Exception):
    """Cases failed: what was written so far is thrown away."""


def _keep(writer: Writer, side: Side, case: Case, call: Call, *, events: bool) -> bool:
    """Run one case and write it down, if it runs; whether it did."""
    report.begun(case, events=events)
    problems: tuple[str, ...] = ()
    try:
        outcome = side.outcome(case, call)
    except Exception as raised:  # told beside the others' results
        problems = (f"{type(raised).__name__}: {str(raised).strip()[:1000]}",)
    else:
        before, after = _values(call), _values(outcome.after)
        writer.add(case.factory, case.name, *constants(call.parameters, call.named), before, after)
    report.ended(Row(case.family, case.factory, case.name, problems), events=events)
    return not problems


def _go(options: Options, chosen: Sequence[Case], expected: Side, got: Side, large: str) -> int:
    refuse_equal(expected, got)
    rows = []
    skips = _skips(options, large)
    for row in compare(chosen, expected, got, skips, lambda case: report.begun(case, events=options.events)):
        rows.append(row)
        report.ended(row, events=options.events)
    report.result(rows, expected.versions, got.versions, as_json=options.json, events=options.events)
    return 0 if all(row.ok for row in rows) else 1


def _skips(options: Options, large: str) -> Skips:
    own = [(name, OF_OUR_OWN) for names in MODEL_FAMILIES.values() for name in names] if options.module else []
    return Skips(large, [*options.skips, *own])


def _fresh(chosen: Sequence[Case], skips: Skips) -> list[tuple[Case, Call]]:
    return [(case, case.call()) for case in chosen if not skips.reason(case)]


def _values(call: Call) -> list[Value]:
    return [Value(one.name, one.output, one.value) for one in call.arguments]


@contextlib.contextmanager
def _outside(options: Options, calls: Sequence[tuple[Case, Call]], sources: Mapping[str, str]) -> Iterator[Reader]:
    """The dump of what the module makes of these calls."""
    with tempfile.TemporaryDirectory(prefix="deepinfer-ab-") as scratch:
        inputs, outputs = Path(scratch, "inputs"), Path(scratch, "outputs")
        write_inputs(calls, inputs, sources)
        print(f"{options.module} runs {len(calls)} cases in a process of its own", file=sys.stderr, flush=True)
        run_module(options.module, options.path, inputs, outputs, options.device, options.timeout)
        with _opened(outputs) as reader:
            yield reader


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[Reader]:
    try:
        with contextlib.closing(Reader(folder)) as reader:
            yield reader
    except DumpError as problem:
        raise UsageError(
            str(problem), next_step="make the dump anew: python -m deepinfer.ops.ab --dump DIR"
        ) from problem
    except OSError as problem:
        raise DeepInferError(f"{folder} cannot be read: {problem.strerror or problem}") from problem


def _require_same_cases(reader: Reader, chosen: Sequence[Case], folder: Path) -> None:
    """Refuse a dump of other cases than those here: their judges belong to other inputs."""
    changed = [name for name, digest in digests(chosen).items() if reader.sources.get(name, digest) != digest]
    if changed:
        made = " ".join(filter(None, [reader.side.get("deepinfer", ""), reader.side.get("commit", "")]))
        raise UsageError(
            f"the cases of {', '.join(changed)} are not those that the dump in {folder} was made of",
            cause=f"it was made by deepinfer {made or 'of an unknown version'}",
            next_step="make the dump anew with this version, or compare with that one",
        )
