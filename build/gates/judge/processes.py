"""Gates on running processes: one_nccl, one_cudart, imports, ours, library_path."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from build.gates.judge.rows import Ending, Row, Verdicts
from build.gates.place import Place


def _last_map(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, str]] | None:
    """What was mapped after the last import that ended; None if none did. Loading a library is not one."""
    maps = [line["mapped"] for line in lines if "module" in line]
    return maps[-1] if maps else None


def judge_maps(verdicts: Verdicts, lines: Sequence[Mapping[str, Any]], *, seconds: float, cuda: bool) -> None:
    """one_nccl and one_cudart, from the steps of `loaded`. cuda: the base's torch is a CUDA build."""
    maps = _last_map(lines)
    for name, prefix in (("one_nccl", "libnccl.so"), ("one_cudart", "libcudart.so")):
        if maps is None:
            verdicts.skip(name, "the process ended before it had imported torch, see imports")
            continue
        files = _by_soname(maps, prefix)
        rows = [_one_file(soname, found) for soname, found in files.items()]
        if cuda and not rows:
            rows.append(Row(False, f"torch is a CUDA build, but no {prefix} is mapped"))
        verdicts.add(name, rows, seconds=seconds, note="" if rows else f"a CPU build: no {prefix} is mapped")
        seconds = 0.0
    if verdicts.failed("one_nccl"):
        # DeepEP refuses to import then: a consequence, which `imports` should not count again.
        for line in lines:
            if "nccl" in str(line.get("error", "")).lower():
                verdicts.blamed.setdefault(line["module"], "one_nccl")


def _by_soname(maps: Sequence[Mapping[str, str]], prefix: str) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for one in maps:
        if one["soname"].startswith(prefix):
            found[one["soname"]][one["file"]] = one["path"]
    return found


def _one_file(soname: str, files: Mapping[str, str]) -> Row:
    paths = sorted(files.values())
    if len(paths) == 1:
        return Row(True, f"{soname} is {paths[0]}")
    return Row(False, f"{len(paths)} files of {soname} in one process: {' and '.join(paths)}")


def judge_imports(
    verdicts: Verdicts,
    alone: Mapping[str, Ending],
    together: Ending,
    absent: Mapping[str, str],
) -> None:
    """Each module in a process of its own, and all in one. absent: module -> why the plan does not have it."""
    rows = []
    for module, ending in alone.items():
        if ending.ok:
            rows.append(Row(True, f"{module} {ending.seconds:.1f} s"))
        else:
            rows.append(Row(False, f"import {module}: {ending.problem()}", module))
    rows += _together(alone, together)
    if absent:  # the reasons are told where it was decided, and by `deepinfer env`
        rows.append(Row(None, f"{', '.join(absent)}: unsupported, see `deepinfer env`"))
    verdicts.add("imports", rows, seconds=sum(ending.seconds for ending in alone.values()))


def _together(alone: Mapping[str, Ending], together: Ending) -> list[Row]:
    """What fails only in a process that imports everything."""
    lines = together.lines()
    ended = {line["module"]: line["error"] for line in lines if "module" in line}
    rows = []
    for line in lines:
        name = line.get("starts")
        if name is None or (name in alone and not alone[name].ok):
            continue
        if name not in ended:
            rows.append(Row(False, f"import {name} after the others in one process: {together.problem()}", name))
        elif ended[name]:
            rows.append(Row(False, f"import {name} after the others in one process: {ended[name]}", name))
    if not lines and not together.ok:
        rows.append(Row(False, f"the process that imports everything did not start: {together.problem()}"))
    return rows


def judge_ours(
    verdicts: Verdicts,
    place: Place,
    lines: Sequence[Mapping[str, Any]],
    hashes: Mapping[str, str],
    artefacts: Mapping[str, Mapping[str, str]],
) -> None:
    """Imports load files of ours, and every file of a component has the bytes of its artefact.

    hashes: sha256 by path, of our packages' files.
    artefacts: module -> {path below the package's parent folder: sha256} of what it was made of.
    """
    rows: list[Row] = []
    for line in lines:
        module = line.get("module", "")
        if not module or module == "torch":
            continue
        folder = place.folder(module)
        if line["error"]:
            rows.append(Row(None, f"{module} was not imported, see imports"))
        elif not line["file"].startswith(folder + "/"):
            rows.append(Row(False, f"import {module} loads {line['file']}, not a file below {folder}", module))
        elif module not in artefacts:
            rows.append(Row(True, f"{module}: path only"))
    for module, files in artefacts.items():
        parent = place.folder(module).rpartition("/")[0]
        wrong = [_other_bytes(f"{parent}/{name}", expected, hashes) for name, expected in files.items()]
        rows += [Row(False, text, module) for text in wrong if text]
        if not any(wrong):
            rows.append(Row(True, f"{module}: {len(files)} file{'s' * (len(files) != 1)} as compiled"))
    verdicts.add("ours", rows)


def _other_bytes(path: str, expected: str, hashes: Mapping[str, str]) -> str:
    found = hashes.get(path)
    if found is None:
        return f"{path} of the artefact is not there, or cannot be read"
    if found == expected:
        return ""
    return f"{path} has sha256 {found[:12]}, its artefact {expected[:12]}"


def judge_library_path(
    verdicts: Verdicts, library: str, tries: Mapping[str, Ending], lines: Sequence[Mapping[str, Any]]
) -> None:
    """`library` (libcudart.so.12; "" where the base keeps none) under each LD_LIBRARY_PATH, and beside torch's own."""
    if not library:
        verdicts.skip("library_path", "the base keeps no CUDA runtime of another major version than torch's")
        return
    rows = []
    for name, ending in tries.items():
        if ending.ok:
            rows.append(Row(True, f"{name}: {ending.stdout.strip()}"))
        else:
            rows.append(Row(False, f"{library} with {name}: {ending.problem()}"))
    step = next((line for line in lines if "library" in line), None)
    if step is None:
        rows.append(Row(None, "the process that imports everything ended before it, see imports"))
    elif step["library"]:
        rows.append(Row(False, f"{library} in a process that imported torch: {step['library']}"))
    else:
        newer = [_one_file(name, files) for name, files in _by_soname(step["mapped"], "libcudart.so").items()]
        rows += newer or [Row(False, "no libcudart is mapped by the process that imported torch")]
    verdicts.add("library_path", rows, seconds=sum(ending.seconds for ending in tries.values()))
