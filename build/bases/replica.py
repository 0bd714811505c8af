"""Making a replica: Debian root file system, Debian packages, locked wheels, and what Triton leaves behind."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path

from docker.errors import APIError

from build import cache
from build.bases import archives, disk
from build.bases.context import build_context, place
from build.bases.rootfs import package_sources, public_sources, rootfs
from build.call import CallFailed
from build.containers import LABEL, Engine
from build.digests import file_sha256
from build.errors import EnvironmentCannot, MatrixError
from build.locks import Lock, fetch_lock, fetched_wheels, read_lock
from build.matrix.model import Replica, Target

RECIPE = cache.REPOSITORY / "images/replica"
KEY_LABEL = f"{LABEL}.replica.key"
_CUDART12 = "nvidia/cuda_runtime/lib/libcudart.so.12"


def reference(target: Target) -> str:
    """The local name of a target's replica."""
    return f"deepinfer-base:{target.name}-replica"


def make_replica(engine: Engine, target: Target, *, repository: Path = cache.REPOSITORY) -> str:
    """Make the target's replica unless the one that is here was made from the same recipe; returns its image id.

    Raises:
        MatrixError: the lock or the recipe is wrong.
        EnvironmentCannot: something cannot be fetched, there is no space, or a build step failed.
    """
    replica = target.replica
    if replica is None:
        raise MatrixError(f"image {target.name} has no replica", next_step="give it one in matrix.yaml")
    name = reference(target)
    lock = read_lock(repository / replica.lock)
    plant = _planted(replica, lock)
    with cache.locked("replica", waiting_for="build of a replica"):
        root = rootfs(engine, replica.suite)
        key = _key(replica, lock, root)
        if engine.labels(name).get(KEY_LABEL) == key:
            found = engine.image_id(name)
            if found is not None:
                return found
        earlier = engine.image_id(name)
        started = time.monotonic()
        wheels = fetch_lock(lock.path, replica.python)
        disk.need(engine, _needed_gb(wheels), f"the replica of {target.name}")
        log = cache.folder("logs") / f"replica-{target.name}.log"
        log.unlink(missing_ok=True)
        print(f"{name}: Debian {replica.suite} with {len(lock.pins)} wheels; log: {log}", file=sys.stderr, flush=True)
        try:
            system = system_image(engine, replica, root, log)
            image = _make_image(engine, target, system, lock, wheels, plant, key, log)
        except CallFailed as failed:
            raise EnvironmentCannot(
                f"the replica of {target.name} cannot be made:\n{failed.tail}",
                cause="a Debian mirror that cannot be reached from containers, or a full disk",
                next_step="read the end of the log, then run the command again",
                log=log,
            ) from failed
        if earlier not in (None, image):
            with contextlib.suppress(APIError):  # something else may still use or name it
                engine.client.images.remove(earlier)
        print(f"{name}: made in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
        return image


def _planted(replica: Replica, lock: Lock) -> str | None:
    """The normalised name of the wheel that is planted instead of installed."""
    if not replica.plant_cudart12:
        return None
    name, _, version = replica.plant_cudart12.partition("==")
    pin = lock.pin(name)
    if pin is None or pin.version != version:
        raise MatrixError(
            f"plant_cudart12 names {replica.plant_cudart12}, which {lock.path} does not pin",
            next_step=f"add `# alone: {replica.plant_cudart12}` to {lock.path.with_suffix('.in')} and relock it",
        )
    return pin.name


def _key(replica: Replica, lock: Lock, root: Path) -> str:
    """64 hex digits over everything that the replica is made from."""
    recipe = {path.name: file_sha256(path) for path in sorted(RECIPE.iterdir()) if path.is_file()}
    facts = [recipe, _system_key(replica, root), lock.key(replica.python), replica.plant_cudart12]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _system_key(replica: Replica, root: Path) -> str:
    facts = [file_sha256(RECIPE / "Dockerfile"), file_sha256(root), list(replica.apt)]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _needed_gb(wheels: Path) -> float:
    """Disk for the image: unpacked wheels (once as layers) and the copy of the wheels that BuildKit takes."""
    unpacked = packed = 0
    for wheel in wheels.glob("*.whl"):
        packed += wheel.stat().st_size
        with zipfile.ZipFile(wheel) as content:
            unpacked += sum(entry.file_size for entry in content.infolist())
    return (packed + unpacked) / 1e9 + 1.0


def system_image(engine: Engine, replica: Replica, root: Path, log: Path) -> str:
    """The operating-system layer, shared by all replicas of a suite with the same packages; returns its tag.

    The caller holds the lock `replica`.
    """
    key = _system_key(replica, root)
    tag = f"deepinfer-base:os-{replica.suite}-{key[:12]}"
    if engine.image_id(tag) is not None:
        return tag
    with build_context(engine, "replica-os") as context:
        place(root, context / "rootfs.tar.gz")
        (context / "sources.list").write_text(public_sources(replica.suite))
        (context / "apt.list").write_text(package_sources(replica.suite))
        engine.build(
            context,
            tag=tag,
            dockerfile=RECIPE / "Dockerfile",
            target="os",
            args={"APT": " ".join(replica.apt)},
            network="default",
            log=log,
        )
    _forget_older(engine, f"deepinfer-base:os-{replica.suite}-", tag)
    return tag


def _forget_older(engine: Engine, prefix: str, kept: str) -> None:
    """Take the names of earlier makes away; layers that something still uses stay."""
    for image in engine.images(reference="deepinfer-base"):
        for name in image.tags:
            if name.startswith(prefix) and name != kept:
                with contextlib.suppress(APIError):
                    engine.client.images.remove(name)


def _make_image(
    engine: Engine, target: Target, system: str, lock: Lock, wheels: Path, plant: str | None, key: str, log: Path
) -> str:
    shared = {line for line in (RECIPE / "shared.txt").read_text().splitlines() if not line.startswith("#")}
    by_name = fetched_wheels(wheels)
    with build_context(engine, "replica") as context:
        for group in ("shared", "own"):
            pins = [pin for pin in lock.pins if (pin.name in shared) == (group == "shared") and pin.name != plant]
            for pin in pins:
                place(by_name[pin.name], context / group / "wheels" / by_name[pin.name].name)
            (context / group).mkdir(exist_ok=True)
            (context / group / "requirements.txt").write_text("".join(f"{pin.requirement()}\n" for pin in pins))
            for pip in fetch_lock(RECIPE / "tools.lock", "3.13").glob("*.whl"):
                place(pip, context / group / "pip.whl")
        _pack_home(by_name[plant] if plant else None, context / "home.tar.gz")
        return engine.build(
            context,
            tag=reference(target),
            dockerfile=RECIPE / "Dockerfile",
            target="replica",
            args={"OS_IMAGE": system},
            labels=_labels(target, key),
            log=log,
        )


def _labels(target: Target, key: str) -> Mapping[str, str]:
    return {
        KEY_LABEL: key,
        f"{LABEL}.replica.of": target.vendor or "",
        "org.opencontainers.image.title": f"Replica of the base of {target.name}; not the vendor's image",
    }


def _pack_home(wheel: Path | None, target: Path) -> None:
    """The root user's ~/.triton with CUDA 12's run-time library and its usual links; empty without a wheel."""
    if wheel is None:
        archives.pack_files({}, {}, target)
        return
    version = wheel.name.split("-")[1]
    folder = f".triton/nvidia/cudart/cuda_cudart-linux-x86_64-{version}-archive/lib"
    with zipfile.ZipFile(wheel) as content:
        library = content.read(_CUDART12)
    real = f"libcudart.so.{version}"
    links = {f"{folder}/libcudart.so.12": real, f"{folder}/libcudart.so": "libcudart.so.12"}
    archives.pack_files({f"{folder}/{real}": library}, links, target)
