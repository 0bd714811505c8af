"""The vllm image: the newest torch and Triton of the four, on CUDA 13 alone."""

from __future__ import annotations

import json

import pytest

from build.containers import Engine

pytestmark = pytest.mark.docker

IMAGE = "deepinfer:vllm"


def test_one_cuda_and_the_components_for_its_torch() -> None:
    done = Engine.connect().run(IMAGE, ["deepinfer", "env", "--json"], owner="vllm-test")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    found = {row["name"]: row for row in report["parts"]}
    torch = found["torch"]["details"]
    assert (found["torch"]["version"], torch["cuda"]) == ("2.13.0+cu130", "13.0")
    assert found["triton"]["version"] == "3.7.1"
    assert [path.rpartition("/")[2][:15] for path in torch["cudart"]] == ["libcudart.so.13"]
    assert torch["nccl"]["version"] == "2.32.3" and len(torch["nccl"]["files"]) == 1
    assert found["deepinfer._C"]["details"]["abi"]["torch"].startswith("2.13.0")
    assert found["deep_gemm"]["status"] == found["deep_ep"]["status"] == "present"
    given = {row["name"]: row["source"] for row in report["variables"]}
    assert given["CUDA_HOME"] == "deepinfer: no other nvcc was found"
    assert "DG_JIT_NVCC_COMPILER" not in given, "only beside another CUDA are the JITs told by name"
