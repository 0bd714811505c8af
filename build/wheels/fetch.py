"""Sources of components: found, fetched, checked against the matrix's hash at every use. Nothing of them is run."""

from __future__ import annotations

import contextlib
import errno
import sys
import tarfile
import tempfile
import urllib.error
from collections.abc import Iterator
from pathlib import Path

from packaging.utils import canonicalize_name

from build import cache
from build.call import CallFailed, call
from build.digests import file_sha256
from build.errors import BuildError, EnvironmentCannot, MatrixError
from build.matrix.model import Component, Source
from build.wheels import index


def fetch_source(component: Component, *, offline: Path | None = None, repository: Path = cache.REPOSITORY) -> Path:
    """Where the component's source lies now: an sdist, an overlay's wheel, a tar of a git commit, or a folder.

    Args:
        offline: a folder of files that is looked through first; when it is given, no network is asked.
        repository: what a `path` source is relative to.

    Raises:
        MatrixError: the hash, commit or path in the matrix is wrong.
        EnvironmentCannot: it cannot be fetched, or what arrived is not whole.
    """
    source = component.source
    with told_space(cache.root()):
        if source.path is not None:
            return _folder(component, (repository / source.path).resolve())
        if source.git is not None and source.commit is not None:
            return _commit(component, source.git, source.commit, offline)
        if source.pypi is not None and source.sha256 is not None:
            return _file(component, source, offline)
    raise MatrixError(
        f"component {component.name!r} names no whole source",
        next_step="give it pypi, version and sha256, or path, or git and commit",
    )


@contextlib.contextmanager
def told_space(where: Path) -> Iterator[None]:
    """Turn a full disk under `where` into an error that says so."""
    try:
        yield
    except OSError as problem:
        if problem.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise EnvironmentCannot(
            f"no space is left under {where}",
            next_step="free space (`./run clean` tells what the cache holds), or set DEEPINFER_BUILD_CACHE elsewhere",
        ) from problem


def _folder(component: Component, folder: Path) -> Path:
    if not (folder / "setup.py").is_file():
        raise MatrixError(
            f"the source of {component.name!r} has no setup.py: {folder}",
            cause="the path in matrix.yaml is wrong, or the checkout is not whole",
            next_step="correct source.path",
        )
    return folder


# Files from an index, by hash.


def _file(component: Component, source: Source, offline: Path | None) -> Path:
    digest = str(source.sha256)
    with cache.locked(f"download-{digest[:12]}", waiting_for=f"download of {component.title}"):
        kept = _kept(digest)
        if kept is not None:
            return kept
        if offline is not None:
            return _keep(digest, _from_folder(component, source, offline))
        return _from_index(component, source)


def _kept(digest: str) -> Path | None:
    """The verified file in the cache; what was damaged or cut off by a kill is removed. The download's lock is held."""
    folder = cache.root() / "downloads" / digest
    for part in folder.glob(".part-*"):
        part.unlink()
    for path in folder.glob("[!.]*"):
        if file_sha256(path) == digest:
            return path
        print(f"downloads: {path.name} is damaged; removed, to be fetched again", file=sys.stderr)
        path.unlink()
    return None


def _keep(digest: str, found: Path) -> Path:
    with cache.atomic_path(cache.root() / "downloads" / digest / found.name) as part:
        part.write_bytes(found.read_bytes())
        _checked(part, digest, found.name)
    return cache.root() / "downloads" / digest / found.name


def _from_folder(component: Component, source: Source, offline: Path) -> Path:
    stem = _stem(source)
    files = sorted(path for path in offline.rglob("*") if path.is_file() and path.name.endswith((".tar.gz", ".whl")))
    alike = [path for path in files if canonicalize_name(path.name).startswith(stem)]
    for path in [*alike, *files]:
        if file_sha256(path) == source.sha256:
            return path
    if alike:
        raise EnvironmentCannot(
            f"{alike[0]} is not the file that matrix.yaml pins for {component.title}: its sha256 differs",
            cause="it did not arrive whole, or it is another release or another platform's file",
            next_step=f"copy {source.pypi} {source.version} with sha256 {source.sha256} into {offline}",
        )
    raise EnvironmentCannot(
        f"{offline} holds no {source.pypi} {source.version}, the source of {component.title}",
        next_step=f"put the file with sha256 {source.sha256} there (from {index.PUBLIC}/{source.pypi}/)",
    )


def _from_index(component: Component, source: Source) -> Path:
    url, digest = index.index_url(), str(source.sha256)
    try:
        files = index.list_files(str(source.pypi), url)
    except index.NoSuchProject as missing:
        raise EnvironmentCannot(
            f"the package index has no project {source.pypi!r}, the source of {component.title}",
            cause=f"the name in matrix.yaml is wrong, or the mirror {index.shown(url)} does not carry it",
            next_step="correct source.pypi, or put the file into a folder and give --offline DIR",
        ) from missing
    of_version = [file for file in files if canonicalize_name(file.name).startswith(_stem(source))]
    by_hash = [file for file in files if file.sha256 == digest]
    unsaid = [file for file in of_version if not file.sha256]  # an index without hashes: fetch and see
    if not by_hash and not unsaid:
        raise _not_listed(component, source, of_version, files)
    return _download((by_hash or unsaid)[0], digest)


def _not_listed(
    component: Component, source: Source, of_version: list[index.Listed], files: list[index.Listed]
) -> BuildError:
    if of_version:
        offered = "; ".join(f"{file.name} {file.sha256}" for file in of_version[:4])
        return MatrixError(
            f"the sha256 of {component.title} in matrix.yaml belongs to no file of {source.pypi} {source.version}",
            cause=f"a slip in the hash, or the wrong file's; the index offers {offered}",
            next_step=f"find out which file is meant and correct components.{component.name}.source.sha256",
        )
    names = ", ".join(file.name for file in files[-3:]) or "nothing"
    return EnvironmentCannot(
        f"the package index has no file of {source.pypi} {source.version}, the source of {component.title}",
        cause=f"the version is wrong or was withdrawn, or the mirror lags; the newest that it has: {names}",
        next_step="correct source.version, or put the file into a folder and give --offline DIR",
    )


def _download(file: index.Listed, digest: str) -> Path:
    target = cache.root() / "downloads" / digest / Path(file.name).name
    print(f"downloading {file.name}", file=sys.stderr, flush=True)

    def attempt() -> None:
        with cache.atomic_path(target) as part:
            with part.open("wb") as out:
                index.download(file.url, out)
            if file.sha256 and file_sha256(part) != digest:
                raise index.Passing(f"{file.name} arrived damaged: its sha256 is not the one that the index told")
            _checked(part, digest, file.name)

    try:
        index.persistently(attempt)
    except (index.Passing, urllib.error.HTTPError) as problem:
        raise EnvironmentCannot(
            f"{file.name} could not be downloaded: {problem}",
            cause="the network, a proxy, or a mirror that cuts or changes files",
            next_step="try again, or put the file into a folder and give --offline DIR",
        ) from problem
    return target


def _checked(path: Path, digest: str, name: str) -> None:
    found = file_sha256(path)
    if found != digest:
        raise MatrixError(
            f"{name} has another sha256 than matrix.yaml pins",
            cause=f"pinned {digest}, found {found}: a slip in the hash, or a file cut short or changed on the way",
            next_step="find out which is right before you change the hash",
        )


def _stem(source: Source) -> str:
    """How the names of this release's files begin, normalised: `deepinfer-gemm-2-8-2-`."""
    return f"{canonicalize_name(str(source.pypi))}-{canonicalize_name(str(source.version))}-"


# Git commits, as one tar each.


def _commit(component: Component, url: str, commit: str, offline: Path | None) -> Path:
    target = cache.folder("downloads/git") / f"{commit}.tar"
    note = target.with_suffix(".tar.sha256")
    with cache.locked(f"git-{commit[:12]}", waiting_for=f"fetch of {component.title}"):
        with contextlib.suppress(OSError):
            if file_sha256(target) == note.read_text().strip():
                return target
        if offline is not None:
            raise EnvironmentCannot(
                f"{component.title} comes from git, and commit {commit[:12]} is not in the cache",
                next_step=f"copy {target.name} and {note.name} from a machine with network into {target.parent}",
            )
        with tempfile.TemporaryDirectory(prefix=".part-", dir=target.parent) as scratch:
            tree = Path(scratch, "source")
            tree.mkdir()
            _checkout(component, url, commit, tree)
            with cache.atomic_path(target) as part, tarfile.open(part, "w") as archive:
                archive.add(tree, arcname="source", filter=_plain)
        cache.atomic_write(note, file_sha256(target) + "\n")
    return target


def _checkout(component: Component, url: str, commit: str, tree: Path) -> None:
    quietly = {"GIT_TERMINAL_PROMPT": "0"}
    try:
        call("git", "init", "--quiet", cwd=tree, env=quietly)
        try:
            call("git", "fetch", "--quiet", "--depth=1", "--", url, commit, cwd=tree, env=quietly, timeout=600)
        except CallFailed:  # a server that gives no single commits
            every = "+refs/*:refs/remotes/all/*"
            call("git", "fetch", "--quiet", "--", url, every, cwd=tree, env=quietly, timeout=1800)
        call("git", "-c", "advice.detachedHead=false", "checkout", "--quiet", commit, cwd=tree, env=quietly)
        call("git", "submodule", "update", "--quiet", "--init", "--recursive", "--depth=1", cwd=tree, env=quietly,
             timeout=1800)  # fmt: skip
    except CallFailed as problem:
        raise EnvironmentCannot(
            f"commit {commit[:12]} of {component.title} could not be fetched from {index.shown(url)}",
            cause=problem.tail or str(problem),
            next_step="check source.git and source.commit in matrix.yaml, and the network",
        ) from problem


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Files without git's own, and without what differs between two checkouts of one commit."""
    if Path(info.name).name == ".git":
        return None
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mtime = 0
    return info
