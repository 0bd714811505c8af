"""Reads matrix.yaml into a validated Matrix, or says everything that is wrong with it at once."""

from __future__ import annotations

import os
from pathlib import Path

from build.cache import REPOSITORY
from build.matrix import nodes, shape
from build.matrix.model import Component, Document, Matrix, Source, Target
from build.matrix.problems import Problems, Where, near

SOURCE_KEYS = {"pypi": ("version", "sha256"), "path": (), "git": ("commit",)}
SOURCE_OPTIONS = {"pypi": ("version", "sha256"), "path": ("include",), "git": ("commit",)}


def load_matrix(path: Path | None = None) -> Matrix:
    """Read, parse and validate the matrix.

    Args:
        path: the file; the repository's own matrix.yaml by default. The paths that it names are looked up from its
            folder.

    Raises:
        MatrixError: with every problem that was found, each with its line and key.
    """
    file = path or REPOSITORY / "matrix.yaml"
    name = _shown(file)
    problems = Problems(name)
    root = nodes.parse(nodes.read_text(file, name), problems)
    if root is None:
        if not problems.found:
            problems.add((), "is empty")
        problems.raise_if_any()
    document: Document = shape.build(Document, root, (), problems)
    _check(document, problems, file.absolute().parent)
    problems.raise_if_any()
    return Matrix(dict(document.components), dict(document.images))


def _shown(file: Path) -> str:
    """The file as the user would type it, printable."""
    text = os.path.relpath(file) if file.is_absolute() and file.is_relative_to(Path.cwd()) else str(file)
    return text.encode("utf-8", "backslashreplace").decode()


def _check(document: Document, problems: Problems, repository: Path) -> None:
    problems.check(("components",), bool(document.components), "names no component")
    problems.check(("images",), bool(document.images), "names no image")
    for group, entries in (("components", document.components), ("images", document.images)):
        _distinct(group, list(entries), problems)
    for name, component in document.components.items():
        where: Where = ("components", name)
        _check_source(component, component.source, (*where, "source"), problems, repository)
        _check_component(component, where, problems)
        _check_files(component.shims, (*where, "shims"), problems, repository)
    for name, target in document.images.items():
        _check_target(target, document.components, ("images", name), problems)
        _check_locks(target, ("images", name), problems, repository)


def _distinct(group: str, names: list[str], problems: Problems) -> None:
    """Names that differ only in case or in '-', '_', '.' would meet in file names, tags and distributions."""
    seen: dict[str, str] = {}
    for name in names:
        plain = name.casefold().replace("-", "_").replace(".", "_")
        other = seen.setdefault(plain, name)
        problems.check((group, name), other == name, f"is too like {other!r}: names must differ in letters or digits")


def _check_source(component: Component, source: Source, where: Where, problems: Problems, repository: Path) -> None:
    kinds = [kind for kind in SOURCE_KEYS if getattr(source, kind) is not None]
    if len(kinds) != 1:
        found = " and ".join(kinds) or "none"
        problems.check(where, False, f"needs exactly one of pypi, path, git; it has {found}")
        return
    (kind,) = kinds
    for key in SOURCE_KEYS[kind]:
        problems.check((*where, key), getattr(source, key) is not None, f"missing: a {kind} source needs it")
    for key in ("version", "sha256", "include", "commit"):
        stray = bool(getattr(source, key)) and key not in SOURCE_OPTIONS[kind]
        problems.check((*where, key), not stray, f"does not belong to a {kind} source: remove it")
    if kind == "pypi" and source.version is not None:
        same = source.version == component.version
        problems.check((*where, "version"), same, f"differs from the component's version {component.version}")
    if source.path is not None:
        folder = _inside(source.path, (*where, "path"), problems, repository, folder=True)
        for index, part in enumerate(source.include):
            if folder is not None:
                _inside(part, (*where, "include", index), problems, folder, folder=None)


def _check_component(component: Component, where: Where, problems: Problems) -> None:
    overlay = component.kind == "overlay"
    problems.check((*where, "provides"), bool(component.provides) == overlay, _provides(overlay))
    if overlay:
        problems.check((*where, "source"), component.source.pypi is not None, "an overlay comes from a wheel on PyPI")
        problems.check((*where, "module"), component.module is None, "an overlay has no module: remove it")
    else:
        problems.check((*where, "module"), component.module is not None, "missing: the import name, for the gates")
    if component.kind == "extension":
        local = component.source.path is not None
        problems.check((*where, "source"), local, "an extension comes from a path of this repository")
    stray = bool(component.shims_where) and not component.shims
    problems.check((*where, "shims_where"), not stray, "there are no shims that it could be about: remove it")
    for fact in component.beyond:
        problems.check(
            (*where, "beyond", fact),
            fact in component.requires,
            f"nothing is gone past: `requires` says nothing about {fact}",
        )


def _provides(overlay: bool) -> str:
    return (
        "missing: the fact that this overlay changes, such as nccl"
        if overlay
        else "only an overlay provides a fact: remove it"
    )


def _check_target(target: Target, components: object, where: Where, problems: Problems) -> None:
    assert isinstance(components, dict)
    problems.check((*where, "components"), bool(target.components), "names no component")
    providers: dict[str, str] = {}
    for index, name in enumerate(target.components):
        here = (*where, "components", index)
        component = components.get(name)
        problems.check(here, component is not None, f"unknown component {name!r}{near(name, components)}")
        if component is not None and component.provides:
            other = providers.setdefault(component.provides, name)
            problems.check(here, other == name, f"{other!r} provides {component.provides} here already")
    if target.kind == "host":
        for key in ("vendor", "replica", "expect", "vendor_gb"):
            problems.check((*where, key), not getattr(target, key), "the host has no base: remove it")
        return
    based = target.vendor is not None or target.replica is not None
    problems.check((*where, "vendor"), based, "missing: an image needs a base: vendor, replica or both")
    problems.check((*where, "expect"), bool(target.expect), "missing: the facts of the base, by which it is checked")
    problems.check(
        (*where, "vendor_gb"),
        (target.vendor is None) == (target.vendor_gb == 0),
        "belongs together with `vendor`: give both or neither",
    )


def _check_locks(target: Target, where: Where, problems: Problems, repository: Path) -> None:
    locks: list[tuple[str | None, Where]] = [(target.runtime_lock, (*where, "runtime_lock"))]
    if target.replica is not None:
        locks.append((target.replica.lock, (*where, "replica", "lock")))
    if target.toolchain is not None:
        locks.append((target.toolchain.lock, (*where, "toolchain", "lock")))
    for lock, here in locks:
        if lock:
            _inside(lock, here, problems, repository)


def _check_files(paths: tuple[str, ...], where: Where, problems: Problems, repository: Path) -> None:
    for index, path in enumerate(paths):
        if path:
            _inside(path, (*where, index), problems, repository)


def _inside(text: str, where: Where, problems: Problems, root: Path, *, folder: bool | None = False) -> Path | None:
    """The file or folder (None: either) `text` below `root`; a problem if it is absent or a link leads out."""
    if not text:
        return None
    path = root / text
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError) as problem:
        gone = isinstance(problem, FileNotFoundError)
        problems.check(where, False, f"no such file: {text}" if gone else f"cannot be read: {text}")
        return None
    inside = real.is_relative_to(root.resolve())
    problems.check(where, inside, f"{text} leaves the repository through a symbolic link")
    if folder is not None:
        fits = real.is_dir() if folder else real.is_file()
        problems.check(where, fits, f"{text} is not a {'folder' if folder else 'file'}")
    return real if inside else None
