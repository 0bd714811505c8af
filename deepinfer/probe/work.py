"""The probe's work on one Triton: compile every case for sm_90a, run it where a Hopper GPU is, judge the answers.

Runs in a child process (`children.py`), because the subject may crash. Compiling has a fresh folder, so that "compiled"
means compiled now, by this Triton. What runs is looked up in Triton's cache as in any other process, and it is counted
what was found there; a Triton that was named by its folder leaves that cache alone.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepinfer.probe.report import Compiled, Ran

if TYPE_CHECKING:
    import torch

    from deepinfer.probe.answers import Example
    from deepinfer.probe.checks import Case, Check
    from deepinfer.warm.cache import Record

TARGET = "sm_90a"
_ELF_MACHINE_CUDA = 190
_LONGEST_REASON = 400

Emit = Callable[[dict[str, Any]], None]


def _reason(problem: BaseException) -> str:
    """One line that names the error; a compiler's many lines are cut to the ones that say something."""
    text = " ".join(str(problem).split()) or "no message"
    cut = text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]} …"
    return f"{type(problem).__name__}: {cut}"


def ptx_header(ptx: str) -> tuple[str, str]:
    """The words after `.version` and `.target` of a PTX text; empty where a line is missing."""
    found = {".version": "", ".target": ""}
    for line in ptx.splitlines():
        word, _, rest = line.strip().partition(" ")
        if word in found and not found[word]:
            found[word] = rest.strip()
    return found[".version"], found[".target"]


def _check_cubin(cubin: bytes) -> None:
    if cubin[:4] != b"\x7fELF" or struct.unpack_from("<H", cubin, 18)[0] != _ELF_MACHINE_CUDA:
        raise ValueError(f"the compiler's cubin is not a CUDA ELF file (it starts with {cubin[:4].hex()})")


def compile_case(case: Case) -> tuple[str, bytes]:
    """PTX and cubin of one case for sm_90a. Needs neither a GPU nor torch; raises what Triton raises."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {**case.signature, **dict.fromkeys(case.constants, "constexpr")}
    source = ASTSource(fn=case.kernel, signature=signature, constexprs=dict(case.constants))
    compile_source: Any = triton.compile  # untyped in Triton
    compiled = compile_source(source, target=GPUTarget("cuda", 90, 32))
    ptx, cubin = compiled.asm["ptx"], bytes(compiled.asm["cubin"])
    _check_cubin(cubin)
    return ptx, cubin


def compile_check(check: Check, texts: dict[str, str]) -> Compiled:
    """Compile all cases of a check; their PTX is added to `texts` by case name."""
    size, versions, targets = 0, set(), set()
    for case in check.cases:
        try:
            ptx, cubin = compile_case(case)
        except Exception as problem:  # whatever this Triton raises is the finding
            return Compiled(False, f"{case.name}: {_reason(problem)}")
        texts[case.name] = ptx
        version, target = ptx_header(ptx)
        size += len(cubin)
        versions.add(version)
        targets.add(target)
    return Compiled(True, "", ", ".join(sorted(targets)), ", ".join(sorted(versions)), size)


def check_targets(texts: Mapping[str, str], names: list[str]) -> Compiled:
    """The check `ptx target`: every named kernel has PTX, and every PTX says `.target sm_90a`."""
    headers = {name: ptx_header(texts[name]) for name in names if name in texts}
    versions = ", ".join(sorted({version for version, _ in headers.values()}))
    targets = ", ".join(sorted({target for _, target in headers.values()}))
    missing = [name for name in names if name not in texts]
    wrong = [f"{name}: {target or 'no .target line'}" for name, (_, target) in headers.items() if target != TARGET]
    problems = [f"no PTX of {', '.join(missing)}"] if missing else []
    problems += [f"not {TARGET}: {'; '.join(wrong)}"] if wrong else []
    return Compiled(not problems, "; ".join(problems), targets, versions)


def judge(expected: Mapping[str, torch.Tensor], got: Mapping[str, torch.Tensor]) -> str:
    """Empty if every output equals its answer exactly, else how many values differ and the first of them."""
    for name, answer in expected.items():
        value = got[name].cpu()
        wrong = (value != answer).nonzero()
        if len(wrong):
            where = tuple(wrong[0].tolist())
            return (
                f"{name.removesuffix('_ptr')}: {len(wrong)} of {answer.numel()} values are wrong, first at "
                f"{list(where)}: {value[where].item()}, expected {answer[where].item()}"
            )
    return ""


def run_case(case: Case, example: Example, device: str) -> tuple[str, str]:
    """Launch a case on `device`; (empty or what is wrong, PTX of the kernel that ran: empty in the interpreter)."""
    import torch

    arguments = {
        name: value.to(device) if isinstance(value, torch.Tensor) else value
        for name, value in example.arguments.items()
    }
    launched = case.kernel[case.grid](**arguments, **case.constants)
    if device != "cpu":
        torch.cuda.synchronize()
    outputs = {name: value for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    return judge(example.expected, outputs), launched.asm["ptx"] if launched is not None else ""


def warm_up() -> list[str]:
    """Compile every case as a run launches it, for the active driver's target; what did not compile, a line each.

    The inputs are the run's own, on the CPU: their types and alignment are part of the key under which Triton looks a
    kernel up.
    """
    from deepinfer.probe.checks import CHECKS

    problems = []
    for case in (case for check in CHECKS for case in check.cases):
        try:
            case.kernel.warmup(**case.example().arguments, **case.constants, grid=case.grid)
        except Exception as problem:  # whatever this Triton raises is the finding, and the other cases go on
            problems.append(f"{case.name}: {_reason(problem)}")
    return problems


def run_check(check: Check, device: str, texts: dict[str, str]) -> Ran:
    """Run all cases of a check on a GPU; the PTX that ran is added to `texts` by case name."""
    for case in check.cases:
        try:
            wrong, ptx = run_case(case, case.example(), device)
        except Exception as problem:  # a launch failure is a finding like a wrong value
            return Ran(False, f"{case.name}: {_reason(problem)}")
        texts[case.name] = ptx
        if wrong:
            return Ran(False, f"{case.name}: {wrong}")
    return Ran(True)


def find_device() -> tuple[str | None, str | None, str]:
    """torch's version (None if absent), the GPU's description (None without one), and why nothing can be run."""
    try:
        import torch
    except Exception as problem:
        return None, None, f"torch is absent: {_reason(problem)}"
    version = str(torch.__version__)
    try:
        if not torch.cuda.is_available():
            return version, None, "no GPU"
        major, minor = torch.cuda.get_device_capability(0)
        device = f"{torch.cuda.get_device_name(0)} (sm_{major}{minor})"
    except Exception as problem:
        return version, None, f"no GPU answers: {_reason(problem)}"
    return version, device, "" if (major, minor) == (9, 0) else f"{device} is not a Hopper GPU"


def _import_triton(folder: str) -> str:
    """Import Triton, from `folder` if it names one; its version."""
    import triton

    origin = Path(triton.__file__).resolve()
    if folder and not origin.is_relative_to(Path(folder).resolve()):
        raise ImportError(f"`import triton` gave {origin.parent}, which is not in {folder}")
    return str(triton.__version__)


@contextlib.contextmanager
def _own_cache(folder: Path) -> Iterator[None]:
    """A cache in which nothing is found."""
    from triton import knobs

    before = knobs.cache.dir, knobs.compilation.always_compile
    knobs.cache.dir, knobs.compilation.always_compile = str(folder), True
    try:
        yield
    finally:
        knobs.cache.dir, knobs.compilation.always_compile = before


def _count_cache(folder: str, cache: Path) -> Record | None:
    """Count what the run finds in Triton's cache; None for a Triton named by its folder, which has a fresh one."""
    from triton import knobs

    if folder:
        knobs.cache.dir = str(cache)
        return None
    from deepinfer.warm.cache import count

    return count()


def probe(folder: str, cache: Path, compile_only: bool, emit: Emit) -> None:
    """Do all of it, telling each step to `emit` as it begins and ends, so that a crash leaves what was known before.

    Events: {"start": {triton, torch, device}}, {"begin": [column, name]}, {"done": [column, name, {fields}]},
    {"cache": {kernels, modules}} after a run, {"end": true}. A column is "compiled" or "ran".
    """
    version = _import_triton(folder)
    emit({"start": {"triton": version, "torch": None, "device": None}})
    torch_version, device, cannot = find_device()
    emit({"start": {"triton": version, "torch": torch_version, "device": device}})
    if compile_only and not cannot:
        cannot = "only compiling was asked for"
    from deepinfer.probe.checks import CHECKS

    names = [case.name for check in CHECKS for case in check.cases]
    with _own_cache(cache / "compiled"):
        for name, compiled in _compile_all(CHECKS, names, emit):
            emit({"done": ["compiled", name, vars(compiled)]})
    record = None if cannot else _count_cache(folder, cache / "ran")
    for name, ran in _run_all(CHECKS, names, cannot, emit):
        emit({"done": ["ran", name, vars(ran)]})
    if record is not None:
        emit({"cache": {"kernels": record.kernels.to_json(), "modules": record.modules.to_json()}})
    emit({"end": True})


def _compile_all(checks: tuple[Check, ...], names: list[str], emit: Emit) -> Iterator[tuple[str, Compiled]]:
    texts: dict[str, str] = {}
    for check in checks:
        emit({"begin": ["compiled", check.name]})
        yield check.name, compile_check(check, texts) if check.cases else check_targets(texts, names)


def _run_all(checks: tuple[Check, ...], names: list[str], cannot: str, emit: Emit) -> Iterator[tuple[str, Ran]]:
    texts: dict[str, str] = {}
    for check in checks:
        if cannot:
            yield check.name, Ran(None, cannot)
            continue
        emit({"begin": ["ran", check.name]})
        if check.cases:
            yield check.name, run_check(check, "cuda", texts)
        else:
            found = check_targets(texts, names)
            yield check.name, Ran(found.ok, found.reason)
