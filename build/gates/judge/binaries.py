"""Gates on files: readable, needed, symbols, libstdcxx_shared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from build.gates.judge.rows import Row, Verdicts
from build.gates.place import Place

_LIBSTDCXX = "libstdc++.so.6"
_NAMED = 8


def judge_readable(verdicts: Verdicts, place: Place, modules: Sequence[str], access: dict[str, Any]) -> None:
    """No file of ours may be closed to the user that the programs run as, and the cache is open to it."""
    if not access:
        verdicts.add("readable", [Row(False, f"the check itself did not run: is {place.python} a working Python?")])
        return
    rows = [
        Row(
            False,
            f"{found['path']}: {found['mode']}, owner {found['owner']}, closed to uid {access['uid']}",
            _owner(place, modules, found["path"]),
        )
        for found in access["unreadable"]
    ]
    if access["cache"]:
        rows.append(Row(False, f"{place.cache} cannot be written by uid {access['uid']}: {access['cache']}"))
    verdicts.add("readable", rows or [Row(True, f"everything under {', '.join(place.roots())}")])


def _owner(place: Place, modules: Sequence[str], path: str) -> str:
    owners = [name for name in modules if path == place.folder(name) or path.startswith(place.folder(name) + "/")]
    # Of deepinfer and deepinfer._C, a closed shared object is the latter's fault.
    if "deepinfer._C" in owners and path.endswith(".so"):
        return "deepinfer._C"
    return owners[0] if owners else ""


def judge_linked(verdicts: Verdicts, facts: dict[str, Any], seconds: float, problem: str) -> None:
    """needed, symbols and libstdcxx_shared, from what `linked` printed. problem: how it failed, if it did."""
    error = problem or facts.get("torch_error", "")
    if not error and "libraries" not in facts:
        error = "it printed nothing that can be read"
    if error:
        for name in ("needed", "symbols", "libstdcxx_shared"):
            verdicts.add(name, [Row(False, f"a process that imports torch could not look: {error}")])
        return
    libraries = [one for one in facts["libraries"] if "skipped" not in one]
    broken = [Row(False, one["error"], one["module"]) for one in libraries if "error" in one]
    whole = [one for one in libraries if "error" not in one]
    _needed(verdicts, whole, broken, seconds)
    extensions = [one for one in whole if one["module"]]
    _symbols(verdicts, extensions)
    _libstdcxx(verdicts, extensions)


def _needed(verdicts: Verdicts, libraries: list[dict[str, Any]], broken: list[Row], seconds: float) -> None:
    rows, driver = list(broken), set()
    for one in libraries:
        for need in one["needed"]:
            if need["how"] == "missing":
                rows.append(Row(False, f"{one['path']} -> {need['soname']}: {need['error']}", one["module"]))
            elif need["how"] == "driver":
                driver.add(need["soname"])
    if not any(row.ok is False for row in rows) and libraries:
        count = sum(len(one["needed"]) for one in libraries)
        comes = f", of which {', '.join(sorted(driver))} comes with the driver" if driver else ""
        rows.append(Row(True, f"{count} NEEDED of {len(libraries)} file{'s' * (len(libraries) != 1)}{comes}"))
    verdicts.add("needed", rows, seconds=seconds, note="" if libraries or broken else "no shared object of ours")


def _symbols(verdicts: Verdicts, extensions: list[dict[str, Any]]) -> None:
    rows = []
    for one in extensions:
        from_driver = any(need["how"] == "driver" for need in one["needed"])
        lost = [s for s in one["lost"] if not (from_driver and s["name"].startswith(("cu", "nvml")))]
        if any(need["how"] == "missing" for need in one["needed"]) and lost:
            rows.append(Row(None, f"{one['path']} lacks a library, see needed"))
        elif lost:
            names = [s["plain"] + (f" (version {s['version']})" if s["version"] else "") for s in lost[:_NAMED]]
            more = f" and {len(lost) - _NAMED} more" if len(lost) > _NAMED else ""
            rows.append(Row(False, f"{one['path']}: undefined {'; '.join(names)}{more}", one["module"]))
        else:
            rows.append(Row(True, f"{one['module']} ({one['undefined']})"))
    verdicts.add("symbols", rows, note="" if extensions else "no extension module of ours")


def _libstdcxx(verdicts: Verdicts, extensions: list[dict[str, Any]]) -> None:
    rows = []
    for one in extensions:
        sonames = [need["soname"] for need in one["needed"]]
        if one["static_cxx"]:
            own = ", ".join(one["static_cxx"][:3])
            text = f"{one['path']} carries a copy of libstdc++ of its own (it defines {own})"
            rows.append(Row(False, text, one["module"]))
        elif one["cxx"] and _LIBSTDCXX not in sonames:
            text = f"{one['path']} is C++ but does not NEED {_LIBSTDCXX}: it was linked statically"
            rows.append(Row(False, text, one["module"]))
        else:
            rows.append(Row(True, one["module"]))
    verdicts.add("libstdcxx_shared", rows, note="" if extensions else "no extension module of ours")
