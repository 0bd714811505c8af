"""Inspections: what differs from the expected, what is kept, and the probing program on this machine's own Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from build.bases.inspect import PROGRAM, Difference, bundle, check_base, differences, inspect_host, matches
from build.bases.probe.children import MARK
from build.bases.probe.libraries import nccl_header
from build.errors import EnvironmentCannot
from build.inspection import Inspection
from build.matrix.model import Replica, Target

TARGET = Target(
    name="some",
    title="Some",
    kind="image",
    components=(),
    vendor="example.org/some:1",
    expect={"python": "3.12", "torch": "2.11.0+cu130", "nccl": "2.28.9", "gcc": "13"},
    replica=Replica("trixie", "3.13", "some.lock", (), {"python": "3.13", "gcc": "14.2"}),
)
FOUND = Inspection(
    base_id="sha256:1",
    reference="some:1",
    os="Linux",
    machine="x86_64",
    python="3.12.3",
    python_tag="cp312",
    ext_suffix=".so",
    executable="/usr/bin/python3",
    site="/site",
    torch="2.11.0+cu130",
    nccl_version="2.28.9",
    gcc="13.3.0",
)


@pytest.mark.parametrize(
    ("expected", "found", "fits"),
    [
        ("3.12", "3.12.3", True),
        ("3.12", "3.12", True),
        ("3.12", "3.1.2", False),
        ("3.1", "3.12", False),
        ("13", "13.3.0", True),
        ("14.2", "14.1.9", False),
        ("2.13.0", "2.13.0+cpu", True),
        ("2.13.0+cu130", "2.13.0+cpu", False),
        ("2.13.0+cu130", "2.13.0", False),
        ("2.13.0", "2.13", False),
        ("2.9.0", "2.9.0a0+git12", False),
        ("3.8.10.post20260721", "3.8.10.post20260721", True),
        ("3.8.10.post20260721", "3.8.10", False),
        ("3.8.10.post20260721", "3.8.10.post20260722", False),
        ("2.28.9", None, False),
        ("not-a-version", "not-a-version.2", True),
        ("1.0", "unreadable", False),
    ],
)
def test_an_expected_version_is_met_as_far_as_it_goes(expected: str, found: str | None, fits: bool) -> None:
    assert matches(expected, found) is fits


def test_a_base_is_compared_with_its_own_column() -> None:
    assert differences(TARGET, "vendor", FOUND) == []
    assert differences(TARGET, "replica", FOUND) == [
        Difference("python", "3.13", "3.12.3"),
        Difference("gcc", "14.2", "13.3.0"),
    ]


def test_a_base_that_differs_stops_with_a_table_unless_it_is_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    other = replace(FOUND, torch="2.10.0+cu128", nccl_version=None, problems=("gcc is there without g++",))
    with pytest.raises(EnvironmentCannot) as caught:
        check_base(TARGET, "vendor", other)
    assert caught.value.exit_code == 4
    rows = [line.split() for line in caught.value.what.splitlines()]
    assert ["torch", "2.11.0+cu130", "2.10.0+cu128"] in rows
    assert ["nccl", "2.28.9", "none"] in rows
    assert "gcc is there without g++" in caught.value.what
    assert "--accept-base" in caught.value.next_step
    assert [row.fact for row in check_base(TARGET, "vendor", other, accept=True)] == ["torch", "nccl"]
    assert "2.10.0+cu128" in capsys.readouterr().err
    assert check_base(TARGET, "vendor", FOUND) == []


def test_a_base_without_python_cannot_be_accepted() -> None:
    bare = replace(FOUND, python="", torch=None, problems=("there is no Python",))
    with pytest.raises(EnvironmentCannot, match="there is no Python"):
        check_base(TARGET, "vendor", bare, accept=True)
    assert bare.facts()["python"] is None


@pytest.fixture(scope="module")
def host() -> Inspection:
    """This interpreter, inspected."""
    return inspect_host(Path(sys.executable))


def test_the_host_is_described_as_it_is(host: Inspection) -> None:
    assert host.python == ".".join(map(str, sys.version_info[:3]))
    assert Path(host.executable).samefile(sys.executable)
    assert host.torch == torch.__version__
    assert host.torch_git == torch.version.git_version
    assert host.cuda == torch.version.cuda
    assert Path(str(host.torch_path)).samefile(Path(str(torch.__file__)).parent)
    assert Path(str(host.torch_lib)).is_dir()
    assert host.distributions["pytest"] == pytest.__version__
    assert Path(str(host.libstdcxx)).name == "libstdc++.so.6"
    assert not [problem for problem in host.problems if "torch" in problem]
    assert Inspection.from_json(json.loads(json.dumps(host.to_json()))) == host


def test_the_host_is_identified_by_its_facts(host: Inspection) -> None:
    again = inspect_host(Path(sys.executable))
    assert again.base_id == host.base_id
    assert again.base_id.startswith("sha256:")


def test_a_python_that_is_not_there_is_an_error_with_a_next_step(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentCannot) as caught:
        inspect_host(tmp_path / "python3")
    assert "DEEPINFER_PYTHON" in caught.value.next_step


@pytest.mark.parametrize("text", ["exit 1", "echo rubbish", "echo 'DEEPINFER-INSPECTION {'", "kill -9 $$"])
def test_a_program_that_gives_no_answer_is_an_error(tmp_path: Path, text: str) -> None:
    broken = tmp_path / "python3"
    broken.write_text(f"#!/bin/sh\necho starting up >&2\n{text}\n")
    broken.chmod(0o755)
    with pytest.raises(EnvironmentCannot) as caught:
        inspect_host(broken)
    assert "gave no answer" in caught.value.what
    assert "starting up" in caught.value.what
    assert caught.value.next_step
    assert ("memory" in caught.value.cause) == ("kill" in text)


def test_beside_a_traceback_no_cause_is_guessed(tmp_path: Path) -> None:
    broken = tmp_path / "python3"
    broken.write_text(f"#!/bin/sh\nexec {sys.executable} -c 'raise PermissionError(13, \"no\")'\n")
    broken.chmod(0o755)
    with pytest.raises(EnvironmentCannot) as caught:
        inspect_host(broken)
    assert "PermissionError" in caught.value.what
    assert not caught.value.cause


def probe(tmp_path: Path, modules: dict[str, str], **environment: str) -> dict[str, Any]:
    """What the program prints where these modules lie first on the path."""
    for name, text in modules.items():
        (tmp_path / "modules").mkdir(exist_ok=True)
        (tmp_path / "modules" / f"{name}.py").write_text(textwrap.dedent(text))
    (tmp_path / PROGRAM).write_bytes(bundle())
    done = subprocess.run(
        [sys.executable, "-S", tmp_path / PROGRAM],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path / "modules"), "HOME": str(tmp_path), **environment},
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    (line,) = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    return dict(json.loads(line.removeprefix(MARK)))


def test_a_torch_that_crashes_is_a_problem_and_not_a_crash(tmp_path: Path) -> None:
    facts = probe(tmp_path, {"torch": "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n"})
    assert "torch does not import: it was killed by signal 11" in facts["problems"]
    assert "torch" not in facts
    Inspection.from_json({**facts, "base_id": "", "reference": ""})


def test_a_torch_that_raises_is_a_problem_with_its_last_line(tmp_path: Path) -> None:
    facts = probe(tmp_path, {"torch": "raise ImportError('libcudart.so.13: cannot open shared object file')\n"})
    (problem,) = [text for text in facts["problems"] if text.startswith("torch")]
    assert "libcudart.so.13: cannot open shared object file" in problem


def test_no_torch_is_a_problem(tmp_path: Path) -> None:
    facts = probe(tmp_path, {})
    (problem,) = facts["problems"]
    assert "there is no torch" in problem


def test_a_triton_by_another_name_says_its_own_version(tmp_path: Path) -> None:
    facts = probe(tmp_path, {"triton": "print('hello from start-up')\n__version__ = '3.6.0'\n"})
    assert facts["triton"] == "3.6.0"
    assert facts["tokenspeed_triton"] is None


def test_the_cuda_runtime_that_triton_keeps_in_a_home_is_found(tmp_path: Path) -> None:
    folder = tmp_path / ".triton/nvidia/cudart/cuda_cudart-linux-x86_64-12.8.57-archive/lib"
    folder.mkdir(parents=True)
    (folder / "libcudart.so.12.8.57").write_bytes(b"x" * 7)
    (folder / "libcudart.so.12").symlink_to("libcudart.so.12.8.57")
    (folder / "libcudart.so").symlink_to("libcudart.so.12")
    (tmp_path / "more").mkdir()
    (tmp_path / "more/libnccl.so.2").write_bytes(b"y")
    facts = probe(tmp_path, {}, LD_LIBRARY_PATH=f":{tmp_path / 'more'}::")
    found = {"path": str(folder / "libcudart.so.12.8.57"), "soname": "libcudart.so.12", "version": "12.8.57", "size": 7}
    assert [entry for entry in facts["cudart"] if entry["path"].startswith(str(tmp_path))] == [found]
    assert {"path": str(tmp_path / "more/libnccl.so.2"), "soname": "libnccl.so.2", "version": None, "size": 1} in facts[
        "nccl"
    ]


def test_a_folder_that_cannot_be_looked_into_is_passed_over(tmp_path: Path) -> None:
    # As for a folder of another user, the system answers with an error, to root too: the name is too long.
    unheard = "/" + "x" * 300
    facts = probe(tmp_path, {}, LD_LIBRARY_PATH=unheard, HOME=unheard)
    assert not [entry for entry in facts["nccl"] if unheard in entry["path"]]


def test_a_tool_kit_is_found_with_and_without_its_compiler(tmp_path: Path) -> None:
    kit = tmp_path / "kit"
    (kit / "include").mkdir(parents=True)
    (kit / "include/cuda_runtime.h").touch()
    (kit / "bin").mkdir()
    headers = probe(tmp_path, {}, CUDA_HOME=str(kit), PATH="/usr/bin:/bin")
    (kit / "bin/nvcc").write_text("#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n")
    (kit / "bin/nvcc").chmod(0o755)
    whole = probe(tmp_path, {}, CUDA_HOME=str(kit))
    assert (whole["cuda_home"], whole["nvcc"]) == (str(kit), "13.0.88")
    assert headers["cuda_home"] is not None
    assert (headers["nvcc"] is None) == (headers["cuda_home"] == str(kit))


def test_gcc_without_a_cplusplus_compiler_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/gcc").write_text("#!/bin/sh\necho 14.2.0\n")
    (tmp_path / "bin/gcc").chmod(0o755)
    facts = probe(tmp_path, {}, PATH=str(tmp_path / "bin"))
    assert facts["gcc"] is None
    assert any("without g++" in problem for problem in facts["problems"])
    (tmp_path / "bin/g++").symlink_to("gcc")
    assert probe(tmp_path, {}, PATH=str(tmp_path / "bin"))["gcc"] == "14.2.0"


def test_the_nccl_header_is_read_beside_the_library(tmp_path: Path) -> None:
    (tmp_path / "include").mkdir()
    (tmp_path / "include/nccl.h").write_text("#define NCCL_MAJOR 2\n#define NCCL_MINOR 32\n#define NCCL_PATCH 3\n")
    assert nccl_header(str(tmp_path / "lib/libnccl.so.2")) == "2.32.3"
