"""The target `host` from the command line to a prefix that works, against the torch of the interpreter that tests."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from build.cache import REPOSITORY, location
from build.digests import file_sha256
from build.errors import EnvironmentCannot
from build.host import target as host
from build.host.nccl import restore_nccl
from build.host.offline import OfflineFolder
from build.inspection import Inspection
from build.matrix.load import load_matrix
from build.plan import Cell, TargetPlan
from tests.image_stand_ins import base_facts

NO_DOCKER = "unix:///nonexistent/docker.sock"
Verb = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def kept_cache() -> Iterator[Path]:
    """A cache that outlives the run, so that the compiler cache in it stays warm; the downloads are everybody's."""
    root = location() / "test-host"
    root.mkdir(parents=True, exist_ok=True)
    for shared in ("downloads", "triton"):
        (location() / shared).mkdir(exist_ok=True)
        if not (root / shared).is_symlink():
            (root / shared).symlink_to(location() / shared)
    locks = location() / "locks"
    locks.mkdir(exist_ok=True)
    with (locks / "test-host").open("w") as lock:  # beside it: a cache holds nothing but what is the build system's
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield root


@pytest.fixture(scope="module")
def verb() -> Verb:
    def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-P", "-m", "invoke", "--search-root", str(REPOSITORY), *words]
        environment = {**os.environ, "DEEPINFER_PYTHON": sys.executable, "DOCKER_HOST": NO_DOCKER, **variables}
        return subprocess.run(argv, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)

    return run


@pytest.fixture(scope="module")
def built(
    kept_cache: Path, verb: Verb, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """deepinfer._C compiled (its entry in the wheelhouse is taken away first), laid into a prefix, checked."""
    prefix = tmp_path_factory.mktemp("host") / "my prefix"
    variables = {"DEEPINFER_BUILD_CACHE": str(kept_cache)}
    for meta in kept_cache.glob("wheelhouse/*/meta.json"):
        meta.write_text("")
    return prefix, verb("build", "--image", "host", "--prefix", str(prefix), **variables)


@pytest.mark.slow
def test_the_extension_is_compiled_and_the_gates_pass(
    built: tuple[Path, subprocess.CompletedProcess[str]], kept_cache: Path
) -> None:
    prefix, done = built
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert re.search(r"host/_C +built", done.stderr) and re.search(r"host: built: .*/my prefix", done.stderr)
    (made,) = (prefix / "site" / "deepinfer").glob("_C.*.so")
    # Entries of other sources may lie there since earlier runs: `built` has emptied what they say of themselves.
    whole = [meta.parent for meta in kept_cache.glob("wheelhouse/*/meta.json") if meta.read_text()]
    (kept,) = [path for folder in whole for path in folder.glob("_C.*.so")]
    assert made.read_bytes() == kept.read_bytes()
    document = json.loads((prefix / "image.json").read_text())
    assert document["components"]["_C"]["status"] == "installed"
    for name in ("deep_gemm", "deep_ep"):
        assert document["components"][name]["status"] == "unsupported" and document["components"][name]["reason"]


@pytest.mark.slow
def test_the_command_runs_in_any_folder(built: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    prefix, _ = built
    argv = [prefix / "bin" / "deepinfer", "env", "--json"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert str(prefix) in done.stdout


@pytest.mark.slow
def test_the_same_again_compiles_nothing_and_the_check_agrees(
    built: tuple[Path, subprocess.CompletedProcess[str]], kept_cache: Path, verb: Verb
) -> None:
    prefix, _ = built
    words = ("--image", "host", "--prefix", str(prefix))
    again = verb("build", *words, DEEPINFER_BUILD_CACHE=str(kept_cache))
    assert again.returncode == 0 and re.search(r"host/_C +cached", again.stderr), again.stderr
    checked = verb("check", *words, "--json", DEEPINFER_BUILD_CACHE=str(kept_cache))
    assert checked.returncode == 0, checked.stderr
    gates = json.loads(checked.stdout)["host"]["gates"]
    assert gates and all(gate["ok"] for gate in gates)


def test_a_python_without_torch_is_told_with_the_command(verb: Verb, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    variables = {"DEEPINFER_PYTHON": str(bare / "bin" / "python"), "DEEPINFER_BUILD_CACHE": str(tmp_path / "cache")}
    done = verb("build", "--image", "host", **variables)
    assert (done.returncode, done.stdout) == (4, "")
    assert f"{bare}/bin/python has no torch" in done.stderr
    assert f"next step: {bare}/bin/python -m pip install torch" in done.stderr and "Traceback" not in done.stderr


def test_a_foreign_folder_is_refused_before_anything_is_done(verb: Verb, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "photo.jpg").touch()
    words = ("build", "--image", "host", "--prefix", str(tmp_path / "theirs"))
    done = verb(*words, DEEPINFER_BUILD_CACHE=str(tmp_path / "cache"))
    assert done.returncode == 4 and "is left alone" in done.stderr
    assert not (tmp_path / "cache" / "work").exists()


# NCCL and DeepEP on machines with a GPU, from facts that stand in for theirs.


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the NCCL file that torch loads, and packs with the newer one."""
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "cache"))
    (tmp_path / "libnccl.so.2").write_bytes(b"the library of torch")
    tree = tmp_path / "packs" / "nccl" / "nvidia" / "nccl"
    (tree / "include").mkdir(parents=True)
    (tree / "lib").mkdir()
    (tree / "lib" / "libnccl.so.2").write_bytes(b"the newer library")
    return tmp_path


def machine(site: Path, nccl: str | None, **changes: object) -> Inspection:
    facts: dict[str, object] = {
        "nccl_version": nccl,
        "nccl_loaded": str(site / "libnccl.so.2") if nccl else None,
        "cuda_home": "/usr/local/cuda",
        "nvcc": "13.0.88",
        "gcc": "13.3.0",
        "glibc": "2.39",
    }
    return base_facts(**{**facts, **changes})


def planned(inspection: Inspection, *, replace: bool) -> tuple[TargetPlan, dict[str, Cell]]:
    matrix = load_matrix()
    plan = host.plan_host(matrix, matrix.targets["host"], "*", inspection, replace=replace)
    return plan, {cell.component.name: cell for cell in plan.cells}


def test_an_older_nccl_is_left_alone_unless_it_may_be_replaced(site: Path) -> None:
    inspection = machine(site, "2.28.9")
    plan, cells = planned(inspection, replace=False)
    assert cells["nccl"].status == cells["deep_ep"].status == "unsupported"
    assert "--replace-nccl" in cells["nccl"].reason and "NCCL" in cells["deep_ep"].reason
    assert cells["deep_gemm"].status == "build"
    assert host._nccl(plan, inspection, OfflineFolder(site / "packs")) == (None, None)
    assert (site / "libnccl.so.2").read_bytes() == b"the library of torch"


def test_an_older_nccl_is_replaced_and_can_be_put_back(site: Path) -> None:
    inspection = machine(site, "2.28.9")
    plan, cells = planned(inspection, replace=True)
    assert cells["deep_ep"].status == "build"
    tree, replaced = host._nccl(plan, inspection, OfflineFolder(site / "packs"))
    assert tree == site / "packs" / "nccl" and replaced is not None
    assert (replaced.target, replaced.version) == (str(site / "libnccl.so.2"), cells["nccl"].component.version)
    assert (site / "libnccl.so.2").read_bytes() == b"the newer library"
    restore_nccl()
    assert (site / "libnccl.so.2").read_bytes() == b"the library of torch"


@pytest.mark.parametrize("replace", [False, True])
def test_the_wanted_version_is_taken_as_it_is(site: Path, replace: bool) -> None:
    wanted = load_matrix().components["nccl"].version
    inspection = machine(site, wanted)
    plan, cells = planned(inspection, replace=replace)
    assert cells["nccl"].status != "unsupported" and cells["deep_ep"].status == "build"
    tree, found = host._nccl(plan, inspection, OfflineFolder(site / "packs"))
    assert tree is not None and found is not None and found.kept == ""
    assert found.sha256 == file_sha256(site / "libnccl.so.2")
    assert (site / "libnccl.so.2").read_bytes() == b"the library of torch"


@pytest.mark.parametrize("replace", [False, True])
def test_a_newer_nccl_is_never_replaced_by_an_older_one(site: Path, replace: bool) -> None:
    inspection = machine(site, "2.99.1")
    plan, cells = planned(inspection, replace=replace)
    assert cells["nccl"].status == "unsupported" and "never put over it" in cells["nccl"].reason
    assert cells["deep_ep"].status == "build"
    assert host._nccl(plan, inspection, OfflineFolder(site / "packs")) == (None, None)
    assert (site / "libnccl.so.2").read_bytes() == b"the library of torch"


def test_without_nccl_there_is_nothing_to_replace(site: Path) -> None:
    plan, cells = planned(machine(site, None), replace=True)
    assert cells["nccl"].status == cells["deep_ep"].status == "unsupported"
    assert host._nccl(plan, machine(site, None), OfflineFolder(site / "packs")) == (None, None)


def test_a_pack_without_the_library_is_named(site: Path) -> None:
    (site / "packs/nccl/nvidia/nccl/lib/libnccl.so.2").unlink()
    plan, _ = planned(machine(site, "2.28.9"), replace=True)
    with pytest.raises(EnvironmentCannot, match=r"holds no nvidia/nccl/lib/libnccl\.so\.2"):
        host._nccl(plan, machine(site, "2.28.9"), OfflineFolder(site / "packs"))
    assert (site / "libnccl.so.2").read_bytes() == b"the library of torch"


def test_without_a_tool_kit_what_needs_one_is_unsupported_with_the_reason(site: Path) -> None:
    _, cells = planned(machine(site, "2.28.9", cuda_home=None, nvcc=None), replace=True)
    for name in ("deep_gemm", "deep_ep"):
        assert (cells[name].status, cells[name].reason, cells[name].key) == ("unsupported", host.NO_TOOLKIT, "")
    assert cells["_C"].status == "build"


def test_missing_headers_of_elfutils_are_asked_for_only_when_something_needs_them(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "ELFUTILS", Path("elfutils/no-such-header.h"))
    plan, _ = planned(machine(site, "2.28.9"), replace=True)
    with pytest.raises(EnvironmentCannot, match="DeepGEMM and DeepEP need elfutils' headers") as missing:
        host._headers(plan, OfflineFolder(site / "packs"))
    assert "libdw-dev" in missing.value.next_step and "elfutils.tar.xz" in missing.value.next_step
    include = site / "packs" / "elfutils" / "usr" / "include"
    include.mkdir(parents=True)
    assert host._headers(plan, OfflineFolder(site / "packs")) == (str(include),)
    alone = dataclasses.replace(plan, cells=tuple(cell for cell in plan.cells if cell.component.kind != "wheel"))
    assert host._headers(alone, None) == ()
