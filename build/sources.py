"""Digests of everything of ours that a cell or an image is made from, so that the plan can be a pure function.

`collect_sources` reads the files once and gives `make_plan` a mapping of these names:
    source:<component>    where its source comes from: the hash of the sdist, the commit, or a digest of the files
    recipe:<component>    how it is compiled (build/wheels/recipe.py), for all but overlays
    shims:<component>     contents of its shims, where it has some
    builder               the packages that compiles run with and how the builder is prepared, images/builder/
    cuda:<version>        the headers that the builder adds to a base of that CUDA which has no tool kit, or lays over
                          older ones (build/cuda_headers.py)
    headers               how it lays them over, images/builder/lay_over.py
    package               the Python files of the engine's wheel
    lock:runtime          the engine's run-time dependencies, where the target has some
    lock:toolchain        the run-time tool chain, where the target has one
    assembly              images/Dockerfile, images/licences/, images/<target>/ (but what makes its replica: the
                          base's own identity covers that) and the programs that lay the image out
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from build.errors import EnvironmentCannot, MatrixError
from build.matrix.model import Component, Matrix, Target
from build.wheels.recipe import recipe_digest

SKIPPED_FOLDERS = frozenset(
    {".git", ".venv", ".setuptools", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", "__pycache__"}
)
SKIPPED_SUFFIXES = (".pyc", ".so", ".o", ".egg-info")
PACKAGE = ("deepinfer", "pyproject.toml", "setup.py", "setup.cfg", "README.md", "LICENSE")
NOT_PACKED = "deepinfer/csrc"
BUILDER = ("Dockerfile", "packages.lock", "prepare.py")
ASSEMBLY = ("images/Dockerfile", "images/licences", "build/image", "build/locks.py")


def source_digest(component: Component, repository: Path) -> str:
    """What identifies a component's source: `sha256:…` of the sdist or wheel, `git:…` a commit, `files:…` a digest.

    Raises:
        MatrixError: a path does not exist.
        EnvironmentCannot: a file cannot be read.
    """
    source = component.source
    if source.pypi is not None:
        return f"sha256:{source.sha256}"
    if source.git is not None:
        return f"git:{source.commit}"
    folder = repository / (source.path or ".")
    parts = source.include or (".",)
    for part in parts:
        if not (folder / part).exists():
            raise MatrixError(
                f"the source of {component.name} names {part!r}, which does not exist",
                next_step="correct `path` or `include` in matrix.yaml",
            )
    return f"files:{files_digest(folder, parts)}"


def package_digest(repository: Path) -> str:
    """64 hex digits over what goes into the engine's wheel, its compiled part and that part's sources apart."""
    return files_digest(repository, PACKAGE, without=(NOT_PACKED,))


def collect_sources(matrix: Matrix, target: Target, repository: Path) -> dict[str, str]:
    """Every digest that `make_plan` needs for a target; the names are listed above."""
    builder = repository / "images" / "builder"
    digests = {"package": package_digest(repository), "builder": files_digest(builder, BUILDER)}
    digests |= header_digests(repository)
    for name in target.components:
        component = matrix.components[name]
        digests[f"source:{name}"] = source_digest(component, repository)
        if component.kind != "overlay":
            digests[f"recipe:{name}"] = recipe_digest(component)
        if component.shims:
            digests[f"shims:{name}"] = files_digest(repository, component.shims)
    if target.runtime_lock is not None:
        digests["lock:runtime"] = files_digest(repository, (target.runtime_lock,))
    if target.toolchain is not None:
        digests["lock:toolchain"] = files_digest(repository, (target.toolchain.lock,))
    mine = f"images/{target.name}"
    replica = tuple(sorted(path.relative_to(repository).as_posix() for path in repository.glob(f"{mine}/replica*")))
    digests["assembly"] = files_digest(repository, (*ASSEMBLY, mine), without=replica)
    return digests


def header_digests(repository: Path) -> dict[str, str]:
    """What stands for the CUDA headers that a builder can add: `cuda:<version>` for each lock, and `headers`."""
    builder = repository / "images" / "builder"
    locks = sorted(builder.glob("cuda-*.lock"))
    found = {f"cuda:{lock.stem.removeprefix('cuda-')}": files_digest(builder, (lock.name,)) for lock in locks}
    return {**found, "headers": files_digest(builder, ("lay_over.py",))}


def files_digest(root: Path, parts: Iterable[str], *, without: Iterable[str] = ()) -> str:
    """64 hex digits over names and contents of files and folders, the same on every machine.

    Args:
        root: the names are relative to it.
        parts: files and folders; one that is absent counts as absent, which is also a state.
        without: files and folders to leave out, relative to root.

    What compilers, interpreters and tools leave behind is left out. A symbolic link counts as its target's name.
    """
    hasher = hashlib.sha256()
    left_out = {(root / name) for name in without}
    for part in parts:
        for path in _walk(root / part, left_out):
            name = path.relative_to(root).as_posix()
            hasher.update(f"{len(name.encode())} {name} {_content(path)}\n".encode())
    return hasher.hexdigest()


def _walk(path: Path, left_out: set[Path]) -> Iterator[Path]:
    if path in left_out or not os.path.lexists(path):
        return
    if path.is_symlink() or not path.is_dir():
        yield path
        return
    for child in sorted(path.iterdir()):
        if child.name not in SKIPPED_FOLDERS and not child.name.endswith(SKIPPED_SUFFIXES):
            yield from _walk(child, left_out)


def _content(path: Path) -> str:
    if path.is_symlink():
        return f"-> {path.readlink()}"
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as problem:
        raise EnvironmentCannot(
            f"{path} cannot be read: {problem.strerror}", next_step="correct its permissions and run again"
        ) from problem
