"""The Triton probe as a program: real compiles under the three Tritons, and Tritons that crash, hang or lie."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import triton

from build.triton_versions import triton_dir
from deepinfer.probe import as_text, run_probe
from deepinfer.probe.checks import CHECKS
from deepinfer.probe.children import CHECK_NAMES, report_of

VERSIONS = ("3.5.1", "3.6.0", "3.7.1")
REPOSITORY = Path(__file__).resolve().parents[2]


def _python(*argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    import os

    merged = {**os.environ, "PYTHONPATH": str(REPOSITORY), **environment}
    return subprocess.run(
        [sys.executable, *argv], env=merged, cwd="/", capture_output=True, text=True, timeout=300, check=False
    )


def _fake_triton(folder: Path, text: str) -> str:
    """A folder with a `triton` package that runs `text`."""
    (folder / "triton").mkdir(parents=True)
    (folder / "triton" / "__init__.py").write_text(text)
    return str(folder)


def _changed_triton(folder: Path, change: str) -> str:
    """A folder whose `triton` is the installed one, with `change` run at the end of its import."""
    real = Path(triton.__file__).resolve()
    text = f"__path__ = [{str(real.parent)!r}]\nexec(compile(open({str(real)!r}).read(), {str(real)!r}, 'exec'))\n"
    return _fake_triton(folder, text + change)


def test_names_known_without_triton_are_those_of_the_checks() -> None:
    assert tuple(check.name for check in CHECKS) == CHECK_NAMES
    assert len(CHECK_NAMES) == 7


@pytest.mark.parametrize("version", VERSIONS)
def test_every_check_compiles_for_hopper(version: str) -> None:
    folder = str(triton_dir(version))
    report = run_probe(folder, compile_only=True)
    assert [check.compiled for check in report.checks if not check.compiled.ok] == []
    assert report.triton == version
    assert report.to_json()["compiled"] == "7/7"
    assert report.to_json()["ran"] == "0/7"
    assert {check.compiled.ptx_target for check in report.checks} == {"sm_90a"}
    assert all(check.compiled.cubin_bytes > 1000 for check in report.checks[:-1])
    assert all(check.ran.ok is None and check.ran.reason for check in report.checks)


@pytest.mark.parametrize("version", VERSIONS)
def test_kernels_give_the_expected_answers_in_the_interpreter(version: str) -> None:
    path = f"{triton_dir(version)}:{REPOSITORY}"
    done = _python("-m", "deepinfer.probe.interpreted", TRITON_INTERPRET="1", PYTHONPATH=path)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(done.stdout)
    assert {name for name, result in results.items() if result != "ok"} == {"dot[bf16]"}
    assert len(results) == sum(len(check.cases) for check in CHECKS)


def test_command_prints_json_alone_and_leaves_the_users_cache_alone(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    argv = ("-m", "deepinfer.probe", "--json", "--compile-only")
    done = _python(*argv, TRITON_CACHE_DIR=str(cache), TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["triton"] == triton.__version__
    assert report["compiled"] == "7/7"
    assert [check["name"] for check in report["checks"]] == list(CHECK_NAMES)
    assert not cache.exists()
    assert done.stderr == ""  # a terminal mixes both streams


def test_several_tritons_one_of_them_crashing(tmp_path: Path) -> None:
    crashing = _fake_triton(tmp_path, "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    done = _python("-m", "deepinfer.probe", "--json", "--compile-only", "--triton", f"{crashing},{triton_dir('3.6.0')}")
    assert done.returncode == 5
    result = json.loads(done.stdout)
    assert result["ok"] is False
    crashed, good = result["probes"]
    assert crashed["error"] == "killed by SIGSEGV (while importing Triton)"
    assert crashed["compiled"] == "0/7"
    assert good["triton"] == "3.6.0"
    assert good["compiled"] == "7/7"


def test_a_crash_in_the_middle_keeps_what_was_known(tmp_path: Path) -> None:
    folder = _changed_triton(
        tmp_path,
        """
import os, signal
_real_compile, _calls = compile, []
def compile(*args, **kwargs):
    _calls.append(1)
    if len(_calls) == 4:  # add, two dots, gather rows
        os.kill(os.getpid(), signal.SIGSEGV)
    return _real_compile(*args, **kwargs)
""",
    )
    report = run_probe(folder, compile_only=True)
    assert report.error == "killed by SIGSEGV (while compiling the check 'gather rows')"
    assert [check.compiled.ok for check in report.checks] == [True, True, False, False, False, False, False]
    assert "SIGSEGV" in report.checks[2].compiled.reason
    assert "not reached" in report.checks[3].compiled.reason
    assert all(check.ran.ok is None for check in report.checks)
    assert not report.ok


def test_a_crash_on_the_gpu_is_a_failed_run_and_no_failed_compile() -> None:
    compiled = {"ok": True, "reason": "", "ptx_target": "sm_90a", "ptx_version": "8.7", "cubin_bytes": 9}
    events = [
        {"start": {"triton": "3.7.1", "torch": "2.13.0", "device": "NVIDIA H200 (sm_90)"}},
        *({"done": ["compiled", name, compiled]} for name in CHECK_NAMES),
        {"begin": ["ran", CHECK_NAMES[0]]},
        {"done": ["ran", CHECK_NAMES[0], {"ok": True, "reason": ""}]},
        {"begin": ["ran", CHECK_NAMES[1]]},
    ]
    report = report_of(events, "killed by SIGSEGV", "")
    assert report.to_json()["compiled"] == "7/7"
    assert [check.ran.ok for check in report.checks] == [True, False, None, None, None, None, None]
    assert report.checks[1].ran.reason == "killed by SIGSEGV (while running the check 'dot')"
    assert not report.ok


def test_what_the_run_found_in_the_cache_is_told() -> None:
    compiled = {"ok": True, "reason": "", "ptx_target": "sm_90a", "ptx_version": "8.7", "cubin_bytes": 9}
    events = [
        {"start": {"triton": "3.7.1", "torch": "2.13.0", "device": "NVIDIA H200 (sm_90)"}},
        *({"done": ["compiled", name, compiled]} for name in CHECK_NAMES),
        *({"done": ["ran", name, {"ok": True, "reason": ""}]} for name in CHECK_NAMES),
        {"cache": {"kernels": {"compiled": 2, "found": 7}, "modules": {"compiled": 0, "found": 6}}},
        {"end": True},
    ]
    report = report_of(events, "", "")
    assert report.ok
    assert report.to_json()["cache"] == {
        "kernels": {"compiled": 2, "found": 7},
        "modules": {"compiled": 0, "found": 6},
    }
    assert "Triton's cache had: kernels 2 new, 7 found; modules 0 new, 6 found" in as_text(report)
    assert report_of(events[:-2] + events[-1:], "", "").to_json()["cache"] is None


def test_a_hang_is_ended_and_named(tmp_path: Path) -> None:
    report = run_probe(_fake_triton(tmp_path, "import time\ntime.sleep(600)\n"), timeout=2)
    assert report.error == "killed after 2 s without an end (while importing Triton)"
    assert not report.ok


def test_a_triton_that_does_not_import_is_a_row(tmp_path: Path) -> None:
    report = run_probe(_fake_triton(tmp_path, "raise OSError('libcudart.so.12: cannot open shared object file')\n"))
    assert "libcudart.so.12" in report.error
    assert "while importing Triton" in report.error
    assert not report.ok
    text = as_text(report)
    assert text.count("reached") == 1 and "next step: `deepinfer env`" in text and "torch absent" not in text


def test_a_triton_from_elsewhere_is_not_taken_for_the_one_asked_for(tmp_path: Path) -> None:
    text = f"__file__ = {str(Path(triton.__file__))!r}\n__version__ = '9'\n"
    report = run_probe(_fake_triton(tmp_path, text))
    assert "which is not in" in report.error


def test_code_for_another_target_fails_the_target_check_alone(tmp_path: Path) -> None:
    folder = _changed_triton(
        tmp_path,
        """
from triton.backends.compiler import GPUTarget as _Target
_real_compile = compile
def compile(source, target):
    return _real_compile(source, target=_Target("cuda", 80, 32))
""",
    )
    report = run_probe(folder, compile_only=True)
    failed = {check.name: check.compiled.reason for check in report.checks if not check.compiled.ok}
    # Triton has no e4m3 for sm_80 in the cast kernels, so that their PTX is missing as well.
    assert "sm_80" in failed["ptx target"]
    assert report.checks[0].compiled.ok
    assert report.checks[0].compiled.ptx_target == "sm_80"


def test_one_kernel_that_does_not_compile_fails_its_check_and_the_target_check(tmp_path: Path) -> None:
    folder = _changed_triton(
        tmp_path,
        """
_real_compile = compile
def compile(source, target):
    if source.fn.__name__ == "gather_rows":
        raise RuntimeError("no gather here")
    return _real_compile(source, target=target)
""",
    )
    report = run_probe(folder, compile_only=True)
    assert [check.name for check in report.checks if not check.compiled.ok] == ["gather rows", "ptx target"]
    assert report.checks[2].compiled.reason == "gather_rows: RuntimeError: no gather here"
    assert "gather_rows" in report.checks[6].compiled.reason
    assert report.to_json()["compiled"] == "5/7"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--triton", "/nonexistent"], "holds no Triton"),
        (["--triton", ","], "--triton needs a folder"),
        (["--timeout", "0"], "is not a time"),
        (["--timeout", "nan"], "is not a time"),
        (["--timeout", "soon"], "invalid float value"),
    ],
)
def test_usage_errors_say_the_next_step(arguments: list[str], words: str) -> None:
    done = _python("-m", "deepinfer.probe", "--json", *arguments)
    assert done.returncode == 1
    assert words in done.stderr
    assert "next step" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_every_check_runs_on_the_gpu() -> None:
    report = run_probe()
    assert [(check.name, check.ran.reason) for check in report.checks if not check.ran.ok] == []
    assert report.to_json()["ran"] == "7/7"
