"""What `import deepinfer` does to its own process, each time in a clean one."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deepinfer import activation

ROOT = Path(__file__).resolve().parents[2]
Run = Callable[..., "subprocess.CompletedProcess[str]"]
Show = Callable[..., dict[str, Any]]

SHOW = """
import json, os, sys
import deepinfer
from deepinfer.activation import activate
a = activate()
names = ["CUDA_HOME", "TRITON_CACHE_DIR", "DG_JIT_CACHE_DIR", "EP_JIT_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR",
         "EP_NCCL_ROOT_DIR", "EP_DISABLE_GIN"]
print(json.dumps({
    "home": str(a.home), "home_source": a.home_source, "site": a.site and str(a.site), "cache": str(a.cache),
    "cache_source": a.cache_source, "given": a.given, "notices": a.notices, "path": sys.path,
    "set": {name: os.environ.get(name) for name in names},
    "loaded": [name for name in ("torch", "numpy", "triton", "docker") if name in sys.modules],
}))
"""


@pytest.fixture
def show(run_python: Run) -> Show:
    def run(**keywords: Any) -> dict[str, Any]:
        done = run_python("-c", SHOW, **keywords)
        assert done.returncode == 0, done.stderr
        return {**json.loads(done.stdout), "stderr": done.stderr}

    return run


def test_nothing_heavy_is_imported_and_no_folder_made(show: Show, tmp_path: Path) -> None:
    seen = show(HOME=str(tmp_path))
    assert seen["loaded"] == []
    assert seen["cache"] == f"{tmp_path}/.cache/deepinfer" and seen["cache_source"] == "default"
    assert not (tmp_path / ".cache").exists()
    assert seen["set"]["TRITON_CACHE_DIR"] == f"{tmp_path}/.cache/deepinfer/triton"
    assert seen["notices"] == [] and seen["stderr"] == ""


def test_the_caches_lie_under_the_named_folder(show: Show, tmp_path: Path) -> None:
    seen = show(DEEPINFER_CACHE_DIR=str(tmp_path / "c"))
    found = [seen["set"][name] for name in ("TRITON_CACHE_DIR", "DG_JIT_CACHE_DIR", "EP_JIT_CACHE_DIR")]
    assert found == [f"{tmp_path}/c/triton", f"{tmp_path}/c/deep_gemm", f"{tmp_path}/c/deep_ep"]
    assert seen["cache_source"] == "DEEPINFER_CACHE_DIR"


def test_what_the_user_set_stays(show: Show) -> None:
    mine = {"CUDA_HOME": "/my/cuda", "TRITON_CACHE_DIR": "/my/t", "DG_JIT_CACHE_DIR": "/my/g",
            "EP_JIT_CACHE_DIR": "/my/e", "TORCHINDUCTOR_CACHE_DIR": "/my/i", "EP_NCCL_ROOT_DIR": "/my/nccl",
            "EP_DISABLE_GIN": "0"}  # fmt: skip
    seen = show(**mine)
    assert seen["set"] == mine and seen["given"] == {}


def test_a_common_setting_of_the_users_is_not_overruled(show: Show) -> None:
    seen = show(DJ_JIT_CACHE_DIR="/my/jit", TRITON_HOME="/my/home")
    names = ("TRITON_CACHE_DIR", "DG_JIT_CACHE_DIR", "EP_JIT_CACHE_DIR")
    assert [seen["set"][name] for name in names] == [None] * 3


def test_a_cache_that_cannot_be_written_moves_to_a_temporary_folder(show: Show, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    temporary = tmp_path / "t"
    temporary.mkdir()
    seen = show(DEEPINFER_CACHE_DIR=str(tmp_path / "file" / "cache"), TMPDIR=str(temporary))
    assert seen["cache"] == f"{temporary}/deepinfer-{os.getuid()}" and seen["cache_source"] == "temporary"
    assert seen["set"]["DG_JIT_CACHE_DIR"] == f"{seen['cache']}/deep_gemm"
    assert len(seen["notices"]) == 1 and "cannot be written" in seen["notices"][0]


def test_a_folder_that_somebody_else_prepared_is_not_trusted(show: Show, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    planted = tmp_path / "t" / f"deepinfer-{os.getuid()}"
    planted.parent.mkdir()
    planted.symlink_to(tmp_path, target_is_directory=True)
    seen = show(DEEPINFER_CACHE_DIR=str(tmp_path / "file" / "cache"), TMPDIR=str(planted.parent))
    assert seen["cache"] != str(planted) and seen["cache"].startswith(f"{planted.parent}/deepinfer-")


def test_a_bad_value_warns_and_does_not_stop_the_import(show: Show) -> None:
    seen = show(DEEPINFER_CACHE_DIR="not/absolute")
    assert "RuntimeWarning: DEEPINFER_CACHE_DIR='not/absolute' is not allowed" in seen["stderr"]
    assert "absolute path" in seen["notices"][0] and seen["cache_source"] == "default"


def test_the_layout_of_an_image_is_recognised(show: Show, package: Path) -> None:
    home = package.parent
    (home / "image.json").write_text("{}")
    other = home / "other"
    other.mkdir()
    seen = show(path=[other, package])
    assert (seen["home"], seen["home_source"]) == (str(home), "around the package")
    assert seen["path"][0] == str(package) and seen["path"].count(str(package)) == 1


def test_a_prefix_with_its_own_nccl_tells_deep_ep(show: Show, package: Path) -> None:
    (package.parent / "image.json").write_text("{}")
    (package.parent / "nccl").mkdir()
    assert show(path=[package])["set"]["EP_NCCL_ROOT_DIR"] == f"{package.parent}/nccl"


def test_torch_finds_a_cache_folder_for_a_user_without_a_name(show: Show, tmp_path: Path) -> None:
    seen = show(DEEPINFER_CACHE_DIR=str(tmp_path / "c"))
    assert seen["set"]["TORCHINDUCTOR_CACHE_DIR"] == f"{tmp_path}/c/inductor"


def test_without_image_json_the_folder_around_is_not_home(show: Show, package: Path) -> None:
    assert show(path=[package])["home"] == "/opt/deepinfer"


def test_parts_in_site_come_before_others_of_the_same_name(run_python: Run, tmp_path: Path) -> None:
    for folder in ("vendor", "home/site"):
        (tmp_path / folder / "deep_gemm").mkdir(parents=True)
        (tmp_path / folder / "deep_gemm" / "__init__.py").write_text(f"origin = {folder!r}\n")
    code = "import deep_gemm; print(deep_gemm.origin)"
    path = [tmp_path / "vendor", ROOT]
    home = str(tmp_path / "home")
    assert run_python("-c", f"import deepinfer; {code}", path=path, DEEPINFER_HOME=home).stdout == "home/site\n"
    assert run_python("-c", code, path=path, DEEPINFER_HOME=home).stdout == "vendor\n", "other programs keep theirs"


def test_a_home_that_is_not_there_is_a_notice(show: Show, tmp_path: Path) -> None:
    seen = show(DEEPINFER_HOME=str(tmp_path / "gone"))
    assert seen["site"] is None and seen["home_source"] == "DEEPINFER_HOME"
    assert "is no folder" in seen["notices"][0]


def test_the_tool_chain_of_home_is_used_failing_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cuda").mkdir()
    monkeypatch.setattr(activation.platform, "infiniband_devices", lambda: ("mlx5_0",))
    for nvcc, expected in ((None, str(tmp_path / "cuda")), (Path("/usr/bin/nvcc"), None)):
        for name in ("CUDA_HOME", "CUDA_PATH", "EP_DISABLE_GIN"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(activation.platform, "system_nvcc", lambda nvcc=nvcc: nvcc)
        activation._give(tmp_path, None)
        assert os.environ.get("CUDA_HOME") == expected
        assert "EP_DISABLE_GIN" not in os.environ, "there is an InfiniBand device"
    monkeypatch.delenv("CUDA_HOME", raising=False)


def test_a_user_without_home_and_rights(run_python: Run, tmp_path: Path) -> None:
    """As in a container started with an arbitrary user id. The modules are loaded first: Python may be root's own."""
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    temporary = tmp_path / "t"
    temporary.mkdir(mode=0o777)
    temporary.chmod(0o1777)
    code = """
import os, pwd, deepinfer
from deepinfer.activation import activate
os.setgroups([]), os.setgid(54321), os.setuid(54321), os.environ.pop("HOME", None)
again = activate.__wrapped__()
print(again.cache, again.cache_source, oct(again.cache.stat().st_mode & 0o777))
"""
    done = run_python("-c", code, TMPDIR=str(temporary))
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{temporary}/deepinfer-54321 temporary 0o700\n"
