"""`./run` from end to end, and what may go wrong in the middle of it: told, nothing half-made, the rest done."""

from __future__ import annotations

import hashlib
import io
import os
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from build.bases.resolve import resolve_base
from build.clean.images import clean_images
from build.containers import CACHE_LABEL, LABEL, Engine
from build.errors import EnvironmentCannot
from build.matrix.load import load_matrix
from tests.checkout_bench import HALFWAY, Checkout, ended, wait_for
from tests.image_stand_ins import load_empty
from tests.index_stand_in import Index
from tests.publish_stand_ins import relayed

pytestmark = pytest.mark.docker
SLOW = HALFWAY.format(seconds=900)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """The engine with the cpu replica in it, and afterwards nothing of these tests."""
    try:
        engine = Engine.connect()
    except EnvironmentCannot as problem:
        pytest.skip(f"needs a Docker engine: {problem.what}")
    resolve_base(engine, load_matrix().targets["cpu"], "replica")
    yield engine
    clean_images(engine, "faults-*,deepinfer-test:faults-*")


@pytest.fixture(autouse=True)
def finished(engine: Engine) -> Iterator[None]:
    """No finished image of the tests before; builders stay."""
    clean_images(engine, "deepinfer:*faults-*,deepinfer-test:faults-*")
    yield


@pytest.fixture
def checkout(engine: Engine, tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def containers(engine: Engine, checkout: Checkout) -> list[str]:
    """The owners of the containers that builds of this checkout have left."""
    found = engine.client.containers.list(all=True, filters={"label": f"{CACHE_LABEL}={checkout.identity()}"})
    return [raw.labels[f"{LABEL}.owner"] for raw in found]


def kept(checkout: Checkout) -> list[str]:
    """What the wheelhouse has, by cell."""
    return sorted(path.read_text() for path in checkout.cache.glob("wheelhouse/*/meta.json"))


def test_with_keep_going_the_others_are_done_and_the_table_names_the_log(engine: Engine, checkout: Checkout) -> None:
    checkout.part("sound_part")
    checkout.part("broken_part", setup="raise SystemExit('no such header')\n")
    checkout.images({"faults-broken": ["sound_part", "broken_part"], "faults-fine": ["sound_part"]})
    done = checkout.run("build", "--image", "faults-*", "--keep-going")
    assert done.returncode == 6, done.stderr
    broken, cell, fine = done.stderr.strip().splitlines()[-3:]
    assert broken.startswith("faults-broken component failed") and fine.startswith("faults-fine  built")
    log = checkout.log("faults-broken", "broken_part")
    assert "faults-broken/broken_part" in cell and f"(log: {log})" in cell and "no such header" in log.read_text()
    assert engine.image_id("deepinfer:faults-fine") is not None
    assert engine.image_id("deepinfer:faults-broken") is None
    assert len(kept(checkout)) == 1, "the sound part was compiled once, for both"
    assert containers(engine, checkout) == []


def test_an_engine_that_stops_midway_through_a_matrix(engine: Engine, checkout: Checkout, tmp_path: Path) -> None:
    checkout.part("slow_part", setup=SLOW)
    checkout.part("other_part")
    checkout.images({"faults-one": ["slow_part", "other_part"], "faults-two": ["other_part"]})
    with relayed("/var/run/docker.sock", listen=str(tmp_path / "s")) as way:
        build = checkout.start("build", "--image", "faults-*", "--keep-going", DOCKER_HOST=f"unix://{way.host}")
        wait_for("halfway", checkout.log("faults-one", "slow_part"), build)
        way.close()
        done = ended(build)
    assert done.returncode == 4, done.stderr
    one, two = done.stderr.strip().splitlines()[-2:]
    assert one.startswith("faults-one   not possible") and two.startswith("faults-two   not possible"), done.stderr
    assert done.stderr.count("next step:") >= 2 and checkout.leftovers() == []
    assert containers(engine, checkout), "nobody could take them away"
    checkout.part("slow_part")
    assert checkout.run("build", "--image", "faults-one", "--component", "slow_part").returncode == 0
    assert containers(engine, checkout) == [] and len(kept(checkout)) >= 1


def test_ctrl_c_leaves_no_container_and_nothing_half_written(engine: Engine, checkout: Checkout) -> None:
    checkout.part("slow_part", setup=SLOW)
    checkout.images({"faults-one": ["slow_part"]})
    build = checkout.start("build", "--image", "faults-one")
    wait_for("halfway", checkout.log("faults-one", "slow_part"), build)
    os.killpg(build.pid, signal.SIGINT)
    done = ended(build, limit=60)
    assert done.returncode == 130 and "interrupted; what was finished is kept" in done.stderr
    assert containers(engine, checkout) == [] and kept(checkout) == [] and checkout.leftovers() == []
    assert engine.image_id("deepinfer:faults-one") is None


def test_a_build_and_a_clean_of_its_image_at_once(engine: Engine, checkout: Checkout) -> None:
    checkout.part("slow_part", setup=HALFWAY.format(seconds=12))
    checkout.part("other_part")
    checkout.images({"faults-one": ["slow_part", "other_part"]})
    build = checkout.start("build", "--image", "faults-one", "--component", "slow_part")
    wait_for("halfway", checkout.log("faults-one", "slow_part"), build)
    clean = checkout.run("clean", "--image", "faults-one")
    assert "faults-one is being built" in clean.stderr and "clean: removed" not in clean.stderr, clean.stderr
    assert clean.returncode == 4
    done = ended(build)
    assert done.returncode == 0 and len(kept(checkout)) == 1, done.stderr
    after = checkout.run("clean", "--image", "faults-one")
    assert after.returncode == 0 and "removed deepinfer-builder:faults-one" in after.stderr, after.stderr


def test_a_base_that_is_moved_under_its_tag(engine: Engine, tmp_path: Path) -> None:
    base = "deepinfer-test:faults-base"
    engine.tag("deepinfer-base:cpu-replica", base)
    (tmp_path / "Dockerfile").write_text(f"FROM {base}\nLABEL moved=1\n")
    grown = engine.build(tmp_path, tag="deepinfer-test:faults-grown", log=tmp_path / "log")
    checkout = Checkout(tmp_path, base=base)
    checkout.part("slow_part", setup=HALFWAY.format(seconds=5))
    checkout.images({"faults-one": ["slow_part"]})
    build = checkout.start("build", "--image", "faults-one", "--base", "vendor")
    wait_for("halfway", checkout.log("faults-one", "slow_part"), build)
    engine.tag(grown, base)
    done = ended(build)
    assert done.returncode == 4 and f"{base} was moved to another image" in done.stderr, done.stderr
    assert "run the build again" in done.stderr and engine.image_id("deepinfer:faults-one") is None
    made = engine.images(label=f"{LABEL}.image=faults-one")
    assert not [name for image in made for name in image.tags if name.startswith("deepinfer:")]


def test_a_wrong_sum_of_a_source_in_the_matrix(checkout: Checkout) -> None:
    served = Index()
    data = sdist("tiny-part", setup="raise SystemExit('what has another sum is never run')\n")
    served.offers(data)
    try:
        for wrong in ("1" * 64, hashlib.sha256(data + b"x").hexdigest()):
            source = {"pypi": "tiny-part", "version": "1.0", "sha256": wrong}
            checkout.part("tiny_part", source=source)
            checkout.part("sound_part")
            checkout.images({"faults-one": ["tiny_part", "sound_part"]})
            done = checkout.run("build", "--image", "faults-one", PIP_INDEX_URL=served.url, no_proxy="127.0.0.1")
            assert done.returncode == 2, done.stderr
            assert "components.tiny_part.source.sha256" in done.stderr, done.stderr
            assert hashlib.sha256(data).hexdigest() in done.stderr, "what the index offers"
            assert "next step:" in done.stderr and "is never run" not in done.stderr
            assert kept(checkout) == [] and checkout.leftovers() == []
    finally:
        served.server.shutdown()


def sdist(name: str, *, setup: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path, text in {"setup.py": setup, "PKG-INFO": f"Name: {name}\n"}.items():
            info = tarfile.TarInfo(f"{name.replace('-', '_')}-1.0/{path}")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return buffer.getvalue()


@pytest.mark.skipif(os.geteuid() != 0, reason="a full disk is a small file system, which only root can mount")
def test_a_disk_that_fills_up_in_the_middle_of_a_compile(engine: Engine, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(small)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        checkout = Checkout(tmp_path, own_cache=small)
        large = "import os; open('large_part/data.py', 'w').write('x = ' + repr(os.urandom(12_000_000).hex()))\n"
        checkout.part("large_part", setup=large)
        checkout.part("other_part")  # not asked for: a component alone makes no image
        checkout.images({"faults-one": ["large_part", "other_part"]})
        words = ("build", "--image", "faults-one", "--component", "large_part")
        done = checkout.run(*words)
        assert done.returncode == 4 and "no space" in done.stderr.lower(), done.stderr
        assert "DEEPINFER_BUILD_CACHE" in done.stderr and kept(checkout) == [] and checkout.leftovers() == []
        assert containers(engine, checkout) == []
        subprocess.run(["mount", "-o", "remount,size=200m", str(small)], check=True)
        again = checkout.run(*words)
        assert again.returncode == 0 and len(kept(checkout)) == 1, again.stderr
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


def base_with(engine: Engine, folder: Path, name: str, line: str) -> str:
    """The cpu replica, in which every Python begins with this line."""
    base = f"deepinfer-test:faults-{name}"
    (folder / "begin.pth").write_text(f"{line}\n")
    (folder / "Dockerfile").write_text(
        "FROM deepinfer-base:cpu-replica\nCOPY begin.pth /\n"
        "RUN mv /begin.pth $(python3 -c 'import site; print(site.getsitepackages()[0])')\n"
    )
    engine.build(folder, tag=base, log=folder / "log")
    return base


@pytest.mark.parametrize("verb", ["build", "inspect"])
def test_a_base_whose_inspection_is_killed(engine: Engine, tmp_path: Path, verb: str) -> None:
    hang = "import sys, time; sys.orig_argv[-1].endswith('probe.pyz') and time.sleep(600)"
    checkout = Checkout(tmp_path, base=base_with(engine, tmp_path, "hangs", hang))
    checkout.part("sound_part")
    checkout.images({"faults-one": ["sound_part"]})
    begun = checkout.start(verb, "--image", "faults-one", "--base", "vendor")
    deadline = time.monotonic() + 60
    while not (running := engine.client.containers.list(filters={"label": f"{LABEL}.owner=inspection"})):
        assert time.monotonic() < deadline and begun.poll() is None, "the inspection never began"
        time.sleep(0.05)
    running[0].kill()  # as the kernel does when memory runs out
    done = ended(begun, limit=60)
    assert done.returncode == 4 and "gave no answer (status 137)" in done.stderr, done.stderr
    assert "it was killed" in done.stderr and "next step:" in done.stderr and containers(engine, checkout) == []
    assert not list((checkout.cache / "inspections").iterdir()), "what was not seen is not kept"


def test_a_torch_that_is_killed_while_it_is_looked_at(engine: Engine, tmp_path: Path) -> None:
    kill = "import os, sys; sys.orig_argv[-1] == 'torch' and os.kill(os.getpid(), 9)"
    checkout = Checkout(tmp_path, base=base_with(engine, tmp_path, "killed", kill))
    checkout.part("sound_part")
    checkout.images({"faults-one": ["sound_part"]})
    done = checkout.run("build", "--image", "faults-one", "--base", "vendor")
    assert done.returncode == 4 and "torch does not import: it was killed by signal 9" in done.stderr, done.stderr
    assert "another version under the same tag" not in done.stderr and "memory" in done.stderr
    kept_facts = [path.read_text() for path in (checkout.cache / "inspections").iterdir()]
    assert not any("killed" in text for text in kept_facts), "it may have more memory the next time"


def test_a_base_for_another_machine(engine: Engine, tmp_path: Path) -> None:
    base = "deepinfer-test:faults-elsewhere"
    image = load_empty(engine, "arm64")
    engine.tag(image, base)
    checkout = Checkout(tmp_path, base=base)
    checkout.part("sound_part")
    checkout.images({"faults-one": ["sound_part"]})
    done = checkout.run("build", "--image", "faults-one", "--base", "vendor")
    assert done.returncode == 4 and "linux/arm64" in done.stderr, done.stderr
    assert "next step:" in done.stderr and engine.image_id("deepinfer:faults-one") is None
    engine.client.images.remove(base)
