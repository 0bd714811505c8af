"""The flagos image: a CUDA 12 torch beside a CUDA 13 compiler, each loading its own, and what an old driver is told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from build.containers import Engine

pytestmark = pytest.mark.docker

IMAGE = "deepinfer:flagos"
# Stand-ins for NVIDIA's driver 570: one H20, and what a program asks before it would use it.
DRIVER = r"""
#include <string.h>
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char* text, unsigned size) { strncpy(text, "570.133.20", size); return 0; }
int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int* version) { *version = 12080; return 0; }
int cuDeviceGetCount(int* count) { *count = 1; return 0; }
int cuDeviceGet(int* device, int index) { *device = index; return 0; }
int cuDeviceGetName(char* text, int size, int device) { strncpy(text, "NVIDIA H20", size); return 0; }
int cuDeviceTotalMem_v2(unsigned long* bytes, int device) { *bytes = 96ul << 30; return 0; }
int cuDeviceGetAttribute(int* value, int number, int device) {
    *value = number == 16 ? 78 : number == 75 ? 9 : 0;
    return 0;
}
int cuGetErrorName(int status, const char** name) { *name = "stand-in"; return 0; }
"""
PROGRAM = f"""
import os, pathlib, subprocess, sys
pathlib.Path("/tmp/driver.c").write_text({DRIVER!r})
for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", "/tmp/" + name, "/tmp/driver.c"], check=True)
os.environ["LD_LIBRARY_PATH"] = "/tmp"
sys.exit(subprocess.run(["deepinfer", "env", "--json"]).returncode)
"""


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.connect()


def asked(engine: Engine, *argv: str) -> dict[str, Any]:
    """What a program of the image prints as JSON."""
    done = engine.run(IMAGE, list(argv), owner="flagos-test")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def parts(report: dict[str, Any]) -> dict[str, Any]:
    return {row["name"]: row for row in report["parts"]}


def test_torch_keeps_cuda_12_and_the_jits_are_told_of_the_compiler_of_cuda_13(engine: Engine) -> None:
    report = asked(engine, "deepinfer", "env", "--json")
    found = parts(report)
    torch = found["torch"]["details"]
    assert torch["cuda"] == "12.8"
    assert [path.rpartition("/")[2][:15] for path in torch["cudart"]] == ["libcudart.so.12"]
    assert torch["nccl"]["version"] == "2.32.3" and len(torch["nccl"]["files"]) == 1
    assert found["deep_gemm"]["status"] == found["deep_ep"]["status"] == "present"
    assert found["toolchain"]["details"]["nvcc_version"] == "13.0"
    variables = {row["name"]: row["value"] for row in report["variables"]}
    for name in ("DG_JIT_NVCC_COMPILER", "EP_JIT_NVCC_COMPILER"):
        assert variables[name] == found["toolchain"]["path"] == "/opt/deepinfer/cuda/bin/nvcc"
    components = report["image"]["components"]
    assert components["nccl_cu12"]["status"] == "installed" and "nccl" not in components


def test_a_driver_that_is_too_old_for_cuda_13_is_told(engine: Engine) -> None:
    report = asked(engine, "python3", "-c", PROGRAM)
    assert parts(report)["gpu"]["version"] == "570.133.20"
    notices = [notice for notice in report["notices"] if "570" in notice]
    assert notices == [
        "driver 570.133.20 is too old for kernels compiled by nvcc (CUDA 13.0): it needs 580 or newer"
    ], "and nothing about torch, which this driver runs"
