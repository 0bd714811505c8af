"""An image as one OCI archive, for a cluster without a registry: written from the engine, loaded into another one.

The engine may be elsewhere and may know nothing of OCI (Docker 20.10): it gives and takes its own format through its
API, and skopeo translates. What OCI has no word for, the HEALTHCHECK, is lost on the way.
"""

from __future__ import annotations

import glob
import hashlib
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from docker.errors import DockerException
from requests.exceptions import RequestException

from build import cache
from build.call import CallFailed, call
from build.containers import LABEL, Engine
from build.errors import EnvironmentCannot, MatrixError, UsageError
from build.image.names import REPOSITORY_NAME, checked_name, moving_tag
from build.publish.artefacts import file_name, newest_first
from build.publish.layout import Content, add_documents, read_attached, read_layout, unfit
from build.publish.release import Release
from build.setup import system
from build.wheels.fetch import told_space
from build.wheels.wheelhouse import KEY


@dataclass(frozen=True)
class Archived:
    """An archive, the digest of the manifest in it, its size, what was done with which names, and what goes with it.

    documents: by kind (manifest, sbom, …) what became of it: attached, or kept in the build cache, or there already.
    """

    image: str
    file: Path
    digest: str
    bytes: int
    names: tuple[str, ...]
    seconds: float
    documents: Mapping[str, str]


def write_archive(engine: Engine, release: Release, file: Path) -> Archived:
    """Write the image as an OCI archive; `file` appears when it is whole and holds what the engine has.

    Raises:
        UsageError: a file that cannot be written, or whose name skopeo would take apart.
        EnvironmentCannot: no skopeo, no space, or an engine that went away.
    """
    start = time.monotonic()
    _check_name(file)
    if not file.parent.is_dir():
        raise UsageError(
            f"--archive {file}: its folder does not exist", next_step=f"mkdir -p {shlex.quote(str(file.parent))}"
        )
    if file.exists() and not file.is_file():
        raise UsageError(
            f"--archive {file} is there, and no file: an archive is written beside its name and renamed",
            next_step="name a file; to send it on, `--archive FILE`, then `cat FILE`",
        )
    skopeo = _skopeo()
    attributes = engine.image_config(release.image_id)
    size = int(attributes["Size"])
    with _alone(file), _scratch() as scratch, told_space(scratch), told_space(file.parent):
        _check_space({scratch: size, file.parent: size})
        saved = scratch / "engine.tar"
        _save(engine, release.image_id, saved)
        with cache.atomic_path(file) as part:
            _translate(skopeo, scratch, f"docker-archive:{saved}", f"oci-archive:{part}:{release.tag}")
            content = read_layout(part)
            if content.layers != attributes["RootFS"]["Layers"] or content.tag != release.tag:
                raise EnvironmentCannot(
                    f"the archive of {release.tag} does not hold the layers that the engine has",
                    cause="the image was replaced meanwhile, or the disk is damaged",
                    next_step="run the same command again",
                )
            if release.documents:
                add_documents(part, content.manifest, release.documents)
    names = (f"{REPOSITORY_NAME}:{release.tag}",)
    attached = {document.kind: "attached" for document in release.documents}
    return Archived(release.image, file, content.digest, file.stat().st_size, names, _since(start), attached)


def load_archive(engine: Engine, file: Path, *, anyway: bool = False) -> Archived:
    """Load an archive of ours, check it by digest, and give the image its immutable name and `deepinfer:<image>`.

    Args:
        anyway: take an immutable name from another image that bears it here.

    Raises EnvironmentCannot: no such archive, a damaged one, no skopeo, no space, or an engine that went away. Then no
    name was moved.
    """
    start = time.monotonic()
    _check_name(file)
    with _alone(file):
        return _load_archive(engine, file, start, anyway=anyway)


def _load_archive(engine: Engine, file: Path, start: float, *, anyway: bool) -> Archived:
    content = read_layout(file)
    image = content.labels.get(f"{LABEL}.image", "")
    if content.labels.get(LABEL) != "1" or not KEY.fullmatch(content.labels.get(f"{LABEL}.key", "")) or not content.tag:
        raise unfit(file, "it holds an image of somebody else's")
    try:
        checked_name(image)
    except MatrixError as problem:
        raise unfit(file, problem.what) from None
    oldest_first = reversed(newest_first(content.attached))
    documents = {found.kind: read_attached(file, found) for found in oldest_first}
    skopeo = _skopeo()
    immutable = f"{REPOSITORY_NAME}:{content.tag}"
    with _scratch() as scratch, told_space(scratch):
        _check_space({scratch: 3 * file.stat().st_size})
        given = scratch / "engine.tar"
        _translate(skopeo, scratch, f"oci-archive:{file}:{content.tag}", f"docker-archive:{given}")
        # No build and no `clean` of this image meets one that has not got its names and its manifest yet.
        with cache.locked(f"image-{image}", waiting_for=f"build of {image}"):
            names = _take_in(engine, given, content, immutable, image, anyway=anyway)
            kept = _keep_documents(documents, image, content.labels[f"{LABEL}.key"])
    return Archived(image, file, content.digest, file.stat().st_size, names, _since(start), kept)


def _take_in(
    engine: Engine, given: Path, content: Content, immutable: str, image: str, *, anyway: bool
) -> tuple[str, ...]:
    """Load an image in the engine's own format, see that it is the one of the archive, and name it."""
    loaded = _load(engine, given)
    if loaded != content.config_digest or engine.image_config(loaded)["RootFS"]["Layers"] != content.layers:
        raise EnvironmentCannot(
            f"the engine has {loaded} after loading, and the archive holds {content.config_digest}",
            cause="the engine stores images in another way, or its disk is damaged",
            next_step="load it again; `docker version` tells the engine",
        )
    return _name(engine, loaded, content, immutable, image, anyway=anyway)


def _keep_documents(documents: Mapping[str, bytes], image: str, key: str) -> dict[str, str]:
    """Put what goes with the image where `verify` looks for it, the manifest last; all of it, or nothing of it where
    there is a manifest already: what a build here has written stays as it is."""
    folder = cache.folder(f"manifests/{image}")
    if (folder / file_name("manifest", key)).exists():
        return dict.fromkeys(documents, "there")
    for kind in sorted(documents, key=lambda kind: kind == "manifest"):
        cache.atomic_write(folder / file_name(kind, key), documents[kind])
    return dict.fromkeys(documents, "kept")


def _name(
    engine: Engine, loaded: str, content: Content, immutable: str, image: str, *, anyway: bool
) -> tuple[str, ...]:
    """Give the names. An image with the same layers that bears the immutable one keeps it: it has its HEALTHCHECK."""
    there = engine.image_id(immutable)
    chosen = loaded
    if there is not None and there != loaded:
        if engine.image_config(there)["RootFS"]["Layers"] == content.layers:
            chosen = there
        elif not anyway:
            _drop(engine, loaded)
            raise EnvironmentCannot(
                f"{immutable} is another image here",
                cause="both were built from the same inputs, at different times",
                next_step=f"docker rmi {immutable}, or --anyway to give the name to the loaded one; no name was moved",
            )
    engine.tag(chosen, immutable)
    engine.tag(chosen, moving_tag(image))
    if chosen != loaded:
        _drop(engine, loaded)
    return immutable, moving_tag(image)


def _drop(engine: Engine, image_id: str) -> None:
    if not engine.image_config(image_id)["RepoTags"]:
        engine.client.images.remove(image_id)


def _skopeo() -> str:
    """The program, installed as `./run` installs others where it may."""
    if shutil.which("skopeo") is None:
        may = os.environ.get("DEEPINFER_SETUP") == "1"
        system.install(["skopeo"], "OCI archives are written and read with it", may_install=may)
    return "skopeo"


def _translate(skopeo: str, scratch: Path, source: str, target: str) -> None:
    log = cache.folder("logs") / "skopeo.log"
    log.unlink(missing_ok=True)
    # Which signatures are asked for is the administrator's matter where images are pulled; this one is our own.
    argv = [skopeo, "--insecure-policy", "--tmpdir", str(scratch), "copy", "--quiet", source, target]
    try:
        call(*argv, log=log, timeout=7200)
    except CallFailed as failed:
        full = "no space left" in failed.output
        last = (failed.tail.splitlines() or ["it said nothing"])[-1][-300:]
        raise EnvironmentCannot(
            "no space is left for the archive" if full else "skopeo could not translate the image",
            cause=f"{scratch} or the archive's folder is full" if full else last,
            next_step="free space, or name a folder on a larger disk" if full else "read the log; is the file whole?",
            log=log,
        ) from failed


def _save(engine: Engine, image_id: str, target: Path) -> None:
    with _engine_there("saving"), target.open("wb") as out:
        for chunk in engine.client.images.get(image_id).save():
            out.write(chunk)


def _load(engine: Engine, source: Path) -> str:
    with _engine_there("loading"), source.open("rb") as data:
        images = list(engine.client.images.load(data))
    if len(images) != 1:
        raise EnvironmentCannot(f"the engine loaded {len(images)} images from one", next_step="load it again")
    return str(images[0].id)


@contextmanager
def _engine_there(doing: str) -> Iterator[None]:
    try:
        yield
    except (DockerException, RequestException) as problem:
        said = str(getattr(problem, "explanation", None) or problem).splitlines()[0][:200]
        full = "no space left" in said
        raise EnvironmentCannot(
            f"the Docker engine failed while {doing} the image",
            cause=f"its disk is full: {said}" if full else said,
            next_step="`docker system df` tells what fills it" if full else "`./run doctor`; then run it again",
        ) from problem


def _check_name(file: Path) -> None:
    if ":" in str(file):
        raise UsageError(f"{file}: skopeo takes a colon for the end of the file's name", next_step="use another name")


def _check_space(needed: Mapping[Path, int]) -> None:
    """What two folders on one disk need adds up."""
    by_disk: dict[int, int] = {}
    for folder, size in needed.items():
        disk = folder.stat().st_dev
        by_disk[disk] = by_disk.get(disk, 0) + size
        free = shutil.disk_usage(folder).free
        if free < by_disk[disk]:
            raise EnvironmentCannot(
                f"{folder} has {free / 1e9:.1f} GB free, and {by_disk[disk] / 1e9:.1f} GB are needed",
                next_step="free space; DEEPINFER_BUILD_CACHE may name a folder on a larger disk",
            )


@contextmanager
def _scratch() -> Iterator[Path]:
    """A folder for what is thrown away; what a kill leaves of it `clean` removes."""
    with tempfile.TemporaryDirectory(prefix=".part-archive-", dir=cache.folder("work")) as name:
        yield Path(name)


@contextmanager
def _alone(file: Path) -> Iterator[None]:
    """Nobody else on this machine works on this file; what a killed writer left beside it is removed.

    The lock is called as those of builds are: while one is held `clean` leaves unfinished files alone.
    """
    name = hashlib.sha256(os.fsencode(os.path.realpath(file))).hexdigest()[:16]
    with cache.locked(f"image-archive-{name}", waiting_for=f"archive {file.name}"):
        for part in file.parent.glob(f".part-????????-{glob.escape(file.name)}"):
            print(f"removing {part.name}, which an interrupted run left", file=sys.stderr)
            part.unlink(missing_ok=True)
        yield


def _since(start: float) -> float:
    return round(time.monotonic() - start, 2)
