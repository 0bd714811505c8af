"""Compiles on this machine without Docker: real ones, of an extension of twenty lines."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from build import cache
from build.cache import REPOSITORY
from build.errors import EnvironmentCannot
from build.host.compile import host_capacity
from build.matrix.model import Source
from build.plan import Cell
from build.wheels.schedule import USABLE_MEMORY
from tests.host_bench import QUICK, SETUP, cell_of, compile_cells, source

SLOW = """
import pathlib, subprocess, sys, time
if pathlib.Path({flag!r}).exists():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print("halfway with child", child.pid, flush=True)
    child.wait()
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "cache"))
    return cache.root()


def entries() -> list[Path]:
    return sorted(cache.folder("wheelhouse").glob("[!.]*"))


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def ends(pid: int) -> bool:
    """Whether a process that was killed is gone in a moment."""
    deadline = time.monotonic() + 120
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(pid)


def wait_for(text: str, log: Path) -> str:
    """The line of a log that holds a text, once it has come whole."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        for line in log.read_text().splitlines(keepends=True) if log.is_file() else []:
            if text in line and line.endswith("\n"):
                return line
        time.sleep(0.05)
    raise AssertionError(f"{text!r} never came: {log.read_text() if log.is_file() else 'no log'}")


def test_a_wheel_is_compiled_works_and_is_found_again(tmp_path: Path) -> None:
    cell = cell_of("tiny", source(tmp_path / "odd name; $(exit 3)'"))
    built = compile_cells(cell)["tiny"]
    assert built.status == "built" and built.artefact is not None and built.log is not None
    meta = json.loads((built.artefact.parent / "meta.json").read_text())
    assert meta["cell"] == "host/tiny" and meta["builder"] == "host"
    assert "libstdc++.so.6" in meta["modules"][0]["needed"]
    with zipfile.ZipFile(built.artefact) as wheel:
        (module,) = (name for name in wheel.namelist() if name.endswith(".so"))
        spec = importlib.util.spec_from_file_location("tiny._C", wheel.extract(module, tmp_path / "site"))
    assert spec is not None and spec.loader is not None
    assert importlib.util.module_from_spec(spec).check() == 1
    assert not list(cache.folder("work").iterdir())

    log = built.log.stat().st_mtime_ns
    again = compile_cells(cell)["tiny"]
    assert (again.status, again.artefact) == ("cached", built.artefact)
    assert built.log.stat().st_mtime_ns == log


def test_an_error_names_line_and_log_and_the_others_are_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = cell_of("broken", source(tmp_path / "broken", code=QUICK.replace("return P", "retrun P")), memory_gib=9.0)
    sound = cell_of("sound", source(tmp_path / "sound"))
    results = compile_cells(broken, sound, keep_going=True)
    assert results["broken"].status == "failed" and results["sound"].status == "built"
    log = results["broken"].log
    assert log == cache.root() / "logs" / "host-broken.log"
    assert "retrun" in log.read_text()
    said = capsys.readouterr().err
    assert f"log: {log}" in said and "error: " in said and "module.cpp:" in said and "next step: " in said
    assert [path.name for path in entries()] == [sound.key]
    mended = cell_of("broken", source(tmp_path / "broken"))
    again = compile_cells(mended, sound)
    assert (again["broken"].status, again["sound"].status) == ("built", "cached")


def test_without_keep_going_a_failure_ends_the_others(tmp_path: Path) -> None:
    (tmp_path / "flag").touch()
    setup = SLOW.format(flag=str(tmp_path / "flag")) + SETUP
    slow = cell_of("slow", source(tmp_path / "slow", setup=setup), memory_gib=9.0)
    broken = cell_of("broken", source(tmp_path / "broken", setup="import time; time.sleep(1); raise SystemExit(3)"))
    start = time.monotonic()
    results = compile_cells(slow, broken)
    assert time.monotonic() - start < 60
    assert {name: result.status for name, result in results.items()} == {"slow": "failed", "broken": "failed"}
    assert "not compiled: host/broken failed" in results["slow"].reason
    child = int(wait_for("halfway", cache.root() / "logs" / "host-slow.log").split()[-1])
    assert ends(child)


def test_killed_in_the_middle_the_compilers_go_too_and_a_rerun_ends_well(tmp_path: Path, own_cache: Path) -> None:
    (tmp_path / "flag").touch()
    folder = source(tmp_path / "tiny", setup=SLOW.format(flag=str(tmp_path / "flag")) + SETUP)
    argv = [sys.executable, "-m", "tests.host_bench", "key", str(folder)]
    run = subprocess.Popen(argv, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    left = int(wait_for("halfway", own_cache / "logs" / "host-tiny.log").split()[-1])
    run.send_signal(signal.SIGKILL)
    run.wait()
    assert alive(left), "the compile was to go on without the run"
    assert entries() == [] and len(list(cache.folder("work").iterdir())) == 1
    (tmp_path / "flag").unlink()
    assert compile_cells(cell_of("tiny", folder, "key"))["tiny"].status == "built"
    assert ends(left)
    assert len(entries()) == 1 and not list(cache.folder("work").iterdir())


def test_a_compile_that_runs_is_nobodys_leftover(tmp_path: Path, own_cache: Path) -> None:
    (tmp_path / "flag").touch()
    folder = source(tmp_path / "tiny", setup=SLOW.format(flag=str(tmp_path / "flag")) + SETUP)
    argv = [sys.executable, "-m", "tests.host_bench", "key", str(folder)]
    run = subprocess.Popen(argv, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    child = int(wait_for("halfway", own_cache / "logs" / "host-tiny.log").split()[-1])
    assert compile_cells(cell_of("other", source(tmp_path / "other")))["other"].status == "built"
    assert alive(child)
    (tmp_path / "flag").unlink()
    os.kill(child, signal.SIGTERM)
    _, said = run.communicate(timeout=300)
    assert run.returncode == 0, said
    assert len(entries()) == 2


def test_two_at_once_compile_once(tmp_path: Path, own_cache: Path) -> None:
    (tmp_path / "flag").touch()
    until_both_are_there = f"import pathlib, time\nwhile pathlib.Path({str(tmp_path / 'flag')!r}).exists():\n"
    folder = source(tmp_path / "tiny", setup=f"{until_both_are_there}    time.sleep(0.02)\n{SETUP}")
    argv = [sys.executable, "-m", "tests.host_bench", "key", str(folder)]
    logs = [tmp_path / "first", tmp_path / "second"]
    runs = []
    for log in logs:
        with log.open("w") as out:
            runs.append(subprocess.Popen(argv, cwd=REPOSITORY, stderr=out))
    waiting = "waiting for another compile of host/tiny"
    deadline = time.monotonic() + 300
    while not any(waiting in log.read_text() for log in logs):
        assert time.monotonic() < deadline and None in [run.poll() for run in runs], [log.read_text() for log in logs]
        time.sleep(0.05)
    (tmp_path / "flag").unlink()
    assert [run.wait(300) for run in runs] == [0, 0], [log.read_text() for log in logs]
    assert sum(waiting in log.read_text() for log in logs) == 1
    assert len(entries()) == 1


def test_a_folder_of_packs_that_lacks_a_source_names_it_before_anything_is_compiled(tmp_path: Path) -> None:
    (tmp_path / "packs").mkdir()
    (tmp_path / "packs" / "other-1.0.tar.gz").write_bytes(b"something else")
    absent = Source(pypi="deepinfer-gemm", version="2.8.2", sha256="0" * 64)
    cells = cell_of("deep_gemm", absent), cell_of("tiny", source(tmp_path / "tiny"))
    with pytest.raises(EnvironmentCannot) as missing:
        compile_cells(*cells, offline=tmp_path / "packs")
    assert "deepinfer-gemm 2.8.2" in missing.value.what and str(tmp_path / "packs") in missing.value.what
    assert "0" * 64 in missing.value.next_step
    assert entries() == [] and not (cache.root() / "logs").exists()


def test_what_is_unsupported_is_passed_on_and_needs_no_source() -> None:
    component = cell_of("deep_ep", Source(pypi="nowhere", version="1", sha256="0" * 64)).component
    result = compile_cells(Cell("host", component, "unsupported", reason="no CUDA"))["deep_ep"]
    assert (result.status, result.reason, result.artefact) == ("unsupported", "no CUDA", None)


def test_processors_that_we_may_not_use_are_not_counted() -> None:
    allowed = len(os.sched_getaffinity(0))
    capacity = host_capacity(8, None)
    assert capacity.workers * capacity.jobs <= max(allowed, 1) and capacity.memory_gib > 0
    assert host_capacity(1, 6).jobs == 6


def test_memory_that_a_container_is_not_allowed_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("build.host.compile.host_memory", lambda: 2**32)
    assert host_capacity(2, None).memory_gib == 4 * USABLE_MEMORY
