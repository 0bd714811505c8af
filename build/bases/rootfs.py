"""Debian root file systems, one archive a suite: from the public slim image if it can be pulled, else debootstrap."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from docker.errors import DockerException

from build import cache
from build.bases import archives
from build.bases.registry import ask
from build.call import CallFailed, call
from build.containers import Engine
from build.errors import EnvironmentCannot
from build.matrix.formats import SUITES

PUBLIC = "http://deb.debian.org/debian"
_RECIPE = 1  # part of the cached file's name: raise it when what is packed changes
# State of this machine's clock and downloads, and what a container gets from its engine.
_LEFT_OUT = re.compile(
    r"(\.dockerenv|(dev|proc|sys|run|tmp)/.+|var/(log/(apt|.*\.log)|cache/(apt/.+|debconf/.*-old|ldconfig/.+)|"
    r"lib/(apt/lists/.+|dpkg/.*-old|systemd/.+))|etc/(machine-id|hostname|hosts|resolv\.conf|apt/sources\.list.*))"
)


def rootfs(engine: Engine, suite: str) -> Path:
    """The archive of a Debian suite (`rootfs/<suite>-….tar.gz` in the cache), made when it is not there.

    Raises:
        EnvironmentCannot: neither can `debian:<suite>-slim` be pulled nor can debootstrap run here.
    """
    if suite not in SUITES:
        raise EnvironmentCannot(f"no Debian suite is called {suite!r} here", next_step=f"use {' or '.join(SUITES)}")
    target = cache.folder("rootfs") / f"{suite}-{_RECIPE}.tar.gz"
    with cache.locked(f"rootfs-{suite}", waiting_for=f"root file system of {suite}"):
        if not target.exists():
            answer = ask(engine, f"debian:{suite}-slim")
            try:
                if answer.digest is not None:
                    _from_image(engine, f"debian@{answer.digest}", target)
                else:
                    _from_debootstrap(suite, target)
            except (OSError, DockerException) as problem:
                raise EnvironmentCannot(
                    f"the root file system of Debian {suite} cannot be made: {problem}",
                    next_step="free some space (`./run clean`) or check the network, then run the command again",
                ) from problem
    return target


def _from_image(engine: Engine, reference: str, target: Path) -> None:
    print(f"root file system: from {reference}", file=sys.stderr, flush=True)
    engine.client.images.pull(reference)
    with tempfile.TemporaryDirectory() as scratch, engine.container(reference, ["true"]) as container:
        exported = Path(scratch) / "rootfs.tar"
        with exported.open("wb") as out:
            for chunk in container.raw.export():
                out.write(chunk)
        with cache.atomic_path(target) as part:
            archives.repack(exported, part, leave_out=_leave_out)


def _from_debootstrap(suite: str, target: Path) -> None:
    if os.geteuid() != 0:
        raise EnvironmentCannot(
            f"a root file system of Debian {suite} cannot be made without root",
            cause=f"debian:{suite}-slim cannot be pulled, and debootstrap needs root",
            next_step=f"load that image (`docker load`), or run once as root: {_command(suite, 'DIR')}",
        )
    if shutil.which("debootstrap") is None:
        raise EnvironmentCannot(
            f"a root file system of Debian {suite} cannot be made",
            cause=f"debian:{suite}-slim cannot be pulled, and debootstrap is not installed",
            next_step="apt-get install debootstrap",
        )
    print(f"root file system: debootstrap {suite} (about a minute)", file=sys.stderr, flush=True)
    prefix = f".part-{suite}-"
    for stale in target.parent.glob(f"{prefix}*"):  # of a run that was killed; the lock is ours
        shutil.rmtree(stale)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=prefix) as scratch:
        tree = Path(scratch) / suite
        log = cache.folder("logs") / f"debootstrap-{suite}.log"
        try:
            _debootstrap(suite, tree, log)
        except CallFailed as failed:
            raise EnvironmentCannot(
                f"debootstrap of {suite} failed",
                cause="the Debian mirror cannot be reached, or the disk is full",
                next_step="read the end of the log, then run the command again",
                log=log,
            ) from failed
        with cache.atomic_path(target) as part:
            archives.pack_folder(tree, part, leave_out=_leave_out)


def _debootstrap(suite: str, tree: Path, log: Path) -> None:
    # In mount points of its own: debootstrap's /proc goes away with it, even when it is killed.
    alone = ["unshare", "--mount", "--propagation", "private"] if shutil.which("unshare") else []
    if not re.search(r"\s", str(tree)):
        call(*alone, "debootstrap", "--variant=minbase", suite, tree, mirrors()[0], log=log)
        return
    if not alone:
        raise EnvironmentCannot(
            f"debootstrap takes no path with a space: {tree.parent}",
            next_step="install util-linux, or set DEEPINFER_BUILD_CACHE to a folder without a space in its path",
        )
    with tempfile.TemporaryDirectory(prefix="deepinfer-rootfs-", dir="/tmp") as place:
        script = 'mount --bind "$1" "$2" && exec debootstrap --variant=minbase "$3" "$2/$3" "$4"'
        call(*alone, "sh", "-c", script, "sh", tree.parent, place, suite, mirrors()[0], log=log)


def _command(suite: str, folder: str) -> str:
    return f"debootstrap --variant=minbase {suite} {folder} {PUBLIC}"


def _leave_out(name: str) -> bool:
    return _LEFT_OUT.fullmatch(name) is not None


def mirrors(apt: Path = Path("/etc/apt")) -> tuple[str, str | None]:
    """Debian's archive and its security archive as this machine's apt knows them; the public one on other systems."""
    urls = list[str]()
    for path in [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))]:
        if path.suffix in (".list", ".sources") and path.is_file():
            lines = [line for line in path.read_text(errors="replace").splitlines() if re.match(r"deb\s|URIs:", line)]
            urls += re.findall(r"https?://[^\s\]]+", " ".join(lines))
    paths = [(url, urlsplit(url).path.rstrip("/").rpartition("/")[2]) for url in urls]
    main = next((url for url, last in paths if last == "debian"), None)
    security = next((url for url, last in paths if last == "debian-security"), None)
    return (main, security) if main is not None else (PUBLIC, f"{PUBLIC}-security")


def package_sources(suite: str) -> str:
    """A sources.list of the suite with its updates, for this machine's mirrors."""
    main, security = mirrors()
    lines = [f"deb {main} {suite} main", f"deb {main} {suite}-updates main"]
    if security is not None:
        lines.append(f"deb {security} {suite}-security main")
    return "\n".join(lines) + "\n"


def public_sources(suite: str) -> str:
    """The same for the public archive: what the image keeps."""
    places = ((PUBLIC, suite), (PUBLIC, f"{suite}-updates"), (f"{PUBLIC}-security", f"{suite}-security"))
    return "".join(f"deb {url} {name} main\n" for url, name in places)
