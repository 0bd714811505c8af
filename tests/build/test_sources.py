"""Digests of our own files: what they notice, what they leave out, and that they are the same everywhere."""

import dataclasses
import shutil
from pathlib import Path

import pytest

from build.cache import REPOSITORY
from build.errors import MatrixError
from build.matrix.load import load_matrix
from build.matrix.model import Source
from build.sources import collect_sources, files_digest, package_digest, source_digest

MATRIX = load_matrix()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small repository."""
    for name, text in {
        "deepinfer/__init__.py": "",
        "deepinfer/ops/a.py": "a",
        "deepinfer/csrc/b.cpp": "b",
        "setup.py": "s",
        "pyproject.toml": "p",
        "images/Dockerfile": "d",
        "images/builder/packages.lock": "l",
        "images/shims/cuda12_memcpy_batch.hpp": "m",
        "images/builder/cuda-13.0.lock": "h",
        "images/flagtree/runtime.lock": "r",
        "images/flagtree/toolchain.lock": "t",
        "images/flagtree/replica.lock": "x",
        "images/cpu/runtime.lock": "c",
        "build/image/assemble.py": "i",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def changes(tree: Path, name: str) -> set[str]:
    """Which digests of flagtree change with one file."""
    target = MATRIX.targets["flagtree"]
    before = collect_sources(MATRIX, target, tree)
    (tree / name).write_text("changed")
    after = collect_sources(MATRIX, target, tree)
    return {key for key in before | after if before.get(key) != after.get(key)}


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("deepinfer/ops/a.py", {"package"}),
        ("deepinfer/csrc/b.cpp", {"source:_C"}),
        ("setup.py", {"source:_C", "package"}),
        ("pyproject.toml", {"package"}),
        ("README.md", {"package"}),
        ("images/builder/packages.lock", {"builder"}),
        ("images/builder/packages.in", set()),
        ("images/builder/cuda-13.0.lock", {"cuda:13.0"}),
        ("images/builder/cuda-12.9.lock", {"cuda:12.9"}),
        ("images/builder/lay_over.py", {"headers"}),
        ("images/shims/cuda12_memcpy_batch.hpp", {"shims:deep_ep"}),
        ("images/flagtree/runtime.lock", {"lock:runtime", "assembly"}),
        ("images/flagtree/toolchain.lock", {"lock:toolchain", "assembly"}),
        ("images/flagtree/replica.lock", set()),
        ("images/cpu/runtime.lock", set()),
        ("images/Dockerfile", {"assembly"}),
        ("build/image/assemble.py", {"assembly"}),
        ("deepinfer/ops/a.pyc", set()),
        ("deepinfer/_C.cpython-311-x86_64-linux-gnu.so", set()),
        ("matrix.yaml", set()),
    ],
)
def test_each_file_changes_its_own_digests(tree: Path, name: str, changed: set[str]) -> None:
    assert changes(tree, name) == changed


def test_what_make_plan_needs_is_there(tree: Path) -> None:
    found = collect_sources(MATRIX, MATRIX.targets["flagtree"], tree)
    assert set(found) == {
        "package", "builder", "cuda:13.0", "headers", "assembly", "lock:runtime", "lock:toolchain",
        "source:nccl", "source:_C", "source:deep_gemm", "source:deep_ep",
        "shims:deep_ep",
        "recipe:_C", "recipe:deep_gemm", "recipe:deep_ep",
    }  # fmt: skip
    assert found["source:deep_gemm"] == f"sha256:{MATRIX.components['deep_gemm'].source.sha256}"
    assert all(found.values())


def test_shims_count_by_their_contents(tree: Path) -> None:
    shimmed = dataclasses.replace(MATRIX.components["deep_ep"], shims=("images/flagtree/shim.h",))
    matrix = dataclasses.replace(MATRIX, components={**MATRIX.components, "deep_ep": shimmed})
    target = matrix.targets["flagtree"]
    (tree / "images/flagtree/shim.h").write_text("one")
    one = collect_sources(matrix, target, tree)["shims:deep_ep"]
    (tree / "images/flagtree/shim.h").write_text("two")
    assert collect_sources(matrix, target, tree)["shims:deep_ep"] != one


def test_a_copy_elsewhere_has_the_same_digests(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("elsewhere") / "clone"
    shutil.copytree(tree, other)
    (other / "deepinfer/ops/__pycache__").mkdir()
    (other / "deepinfer/ops/__pycache__/a.cpython-313.pyc").write_bytes(b"x")
    (other / "setup.py").touch()
    (other / "setup.py").chmod(0o755)
    target = MATRIX.targets["flagtree"]
    assert collect_sources(MATRIX, target, other) == collect_sources(MATRIX, target, tree)


def test_names_count_and_do_not_run_together(tmp_path: Path) -> None:
    (tmp_path / "ab").write_text("x")
    one = files_digest(tmp_path, (".",))
    (tmp_path / "ab").rename(tmp_path / "ac")
    assert files_digest(tmp_path, (".",)) != one
    assert files_digest(tmp_path, ("absent",)) == files_digest(tmp_path, ())


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("1")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "link").symlink_to("../secret")
    (tmp_path / "tree" / "loop").symlink_to(".")
    one = files_digest(tmp_path / "tree", (".",))
    (tmp_path / "secret").write_text("2")
    assert files_digest(tmp_path / "tree", (".",)) == one
    (tmp_path / "tree" / "link").unlink()
    (tmp_path / "tree" / "link").symlink_to("../other")
    assert files_digest(tmp_path / "tree", (".",)) != one


def test_each_kind_of_source_identifies_itself(tree: Path) -> None:
    component = MATRIX.components["_C"]
    whole = dataclasses.replace(component, source=Source(path="deepinfer"))
    assert source_digest(whole, tree).startswith("files:")
    assert source_digest(whole, tree) != source_digest(component, tree)
    git = dataclasses.replace(component, source=Source(git="https://example.org/x", commit="a" * 40))
    assert source_digest(git, tree) == f"git:{'a' * 40}"
    gone = dataclasses.replace(component, source=Source(path=".", include=("deepinfer/none",)))
    with pytest.raises(MatrixError, match="deepinfer/none"):
        source_digest(gone, tree)


def test_the_real_repository_has_digests_for_every_target() -> None:
    for target in MATRIX.targets.values():
        assert all(collect_sources(MATRIX, target, REPOSITORY).values())
    assert package_digest(REPOSITORY) == package_digest(REPOSITORY)
