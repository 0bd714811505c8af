"""Compiles in real containers on the cpu replica, and what may go wrong with them."""

import hashlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from build import cache
from build.cache import REPOSITORY
from build.containers import Engine
from build.errors import EnvironmentCannot
from build.matrix.model import Source
from build.wheels.cell import OWNER
from tests.tiny_build import CODE, SETUP, SLOW, Bench, tiny, write_source

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def bench() -> Bench:
    try:
        Engine.connect()
    except EnvironmentCannot as problem:
        pytest.skip(f"needs a Docker engine: {problem.what}")
    return Bench.make()


@pytest.fixture(autouse=True)
def own_cache(bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A cache of this test's own, after which no container may be left."""
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "cache"))
    yield tmp_path / "cache"
    left = bench.engine.owners(OWNER)
    for owner in left:
        bench.engine.sweep(owner)
    assert left == set()


def kept() -> list[str]:
    """What lies in the wheelhouse."""
    return sorted(path.name[:4] for path in cache.folder("wheelhouse").glob("[!.]*"))


def start(bench: Bench, key: str, *sources: Path) -> subprocess.Popen[str]:
    """The same build in another process."""
    known = cache.root() / "bench.json"
    bench.save(known)
    argv = [sys.executable, "-m", "tests.tiny_build", str(known), key, *map(str, sources)]
    return subprocess.Popen(argv, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(text: str, log: Path) -> None:
    """Until a log holds a text."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if log.is_file() and text in log.read_text():
            return
        time.sleep(0.1)
    raise AssertionError(f"{text!r} never came: {log.read_text() if log.is_file() else 'no log'}")


def test_a_wheel_is_compiled_without_network_kept_and_found_again(bench: Bench, tmp_path: Path) -> None:
    component = tiny("tiny", write_source(tmp_path / "ti ny; $(exit 3)'"))
    result = bench.build({"k": component})["tiny"]
    assert result.status == "built" and result.artefact is not None and result.log is not None
    meta = json.loads((result.artefact.parent / "meta.json").read_text())
    assert meta["cell"] == "cpu/tiny" and "libstdc++.so.6" in meta["modules"][0]["needed"]
    assert "ccache" in meta["tools"]
    files: dict[str, bytes | Path] = {}
    with zipfile.ZipFile(result.artefact) as wheel:
        files = {f"/site/{name}": wheel.read(name) for name in wheel.namelist()}
    program = "import tiny._C as c; raise SystemExit(0 if c.check() == 1 else 3)"
    argv = [bench.inspection.executable, "-c", program]
    ran = bench.engine.run(bench.reference, argv, files=files, env={"PYTHONPATH": "/site"}, user="12345")
    assert ran.returncode == 0, ran.stderr
    assert bench.build({"k": component})["tiny"].status == "cached"


def test_one_byte_changed_means_a_new_compile_which_the_compiler_cache_shortens(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    component = tiny("tiny", write_source(tmp_path / "tiny"))
    first = bench.build({"k": component})["tiny"].artefact
    assert first is not None
    whole = first.read_bytes()
    first.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    result = bench.build({"k": component})["tiny"]
    assert result.status == "built" and result.artefact is not None and result.log is not None
    assert result.artefact.read_bytes() == whole, "the same source gives the same wheel"
    assert "is damaged" in capsys.readouterr().err
    statistics = result.log.read_text().partition("--show-stats")[2]
    assert re.search(r"Hits:\s+1 /\s+1 \(100", statistics), statistics


def test_a_compile_error_is_told_and_stops_or_lets_the_others_go_on(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = write_source(tmp_path / "broken", code=CODE.replace("PyLong_FromLong", "PyLong_FromNowhere"))
    parts = {"b": tiny("broken", broken, memory_gib=0.7), "g": tiny("good", write_source(tmp_path / "good"))}
    results = bench.build(parts, jobs=1)
    assert {name: result.status for name, result in results.items()} == {"broken": "failed", "good": "failed"}
    assert "PyLong_FromNowhere" in results["broken"].reason
    assert "cpu/broken failed" in results["good"].reason
    told = capsys.readouterr().err
    assert str(results["broken"].log) in told and "next step" in told and "Traceback" not in told
    assert kept() == []
    results = bench.build(parts, keep_going=True)
    assert {name: result.status for name, result in results.items()} == {"broken": "failed", "good": "built"}


def test_libstdcxx_linked_statically_is_refused_and_not_kept(bench: Bench, tmp_path: Path) -> None:
    part = tiny("static", write_source(tmp_path / "static"), environment={"LDFLAGS": "-static-libstdc++"})
    result = bench.build({"s": part})["static"]
    assert result.status == "failed" and "libstdc++.so.6" in result.reason
    assert kept() == []


def test_too_little_memory_is_told_as_that(bench: Bench, tmp_path: Path) -> None:
    greedy = write_source(tmp_path / "greedy", setup="hoard = b'x' * (3 << 30)\nprint(len(hoard))\n" + SETUP)
    result = bench.build({"m": tiny("greedy", greedy, memory_gib=0.25)}, jobs=1)["greedy"]
    assert result.status == "failed" and "killed" in result.reason and "1.0 GiB" in result.reason


def test_a_truncated_sdist_is_a_failed_cell_with_its_reason(bench: Bench, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.add(write_source(tmp_path / "tiny"), arcname="tiny-1.0")
    data = buffer.getvalue()[:-40]
    packs = tmp_path / "packs"
    packs.mkdir()
    (packs / "tiny-1.0.tar.gz").write_bytes(data)
    source = Source(pypi="tiny", version="1.0", sha256=hashlib.sha256(data).hexdigest())
    result = bench.build({"t": tiny("tiny", source)}, offline=packs)["tiny"]
    assert result.status == "failed" and "cut short" in result.reason


def test_a_wrong_hash_stops_before_anything_is_compiled(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "tiny-1.0.tar.gz").write_bytes(b"other")
    parts = {
        "g": tiny("good", write_source(tmp_path / "good")),
        "w": tiny("tiny", Source(pypi="tiny", version="1.0", sha256="0" * 64)),
    }
    with pytest.raises(EnvironmentCannot, match="its sha256 differs"):
        bench.build(parts, offline=tmp_path)
    assert kept() == []


def test_kill_9_in_the_middle_leaves_nothing_half_and_a_rerun_does_only_what_is_missing(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = write_source(tmp_path / "quick")
    slow = write_source(tmp_path / "slow", setup=SLOW + SETUP)
    assert bench.build({"k-quick": tiny("quick", quick)})["quick"].status == "built"
    build = start(bench, "k", quick, slow)
    wait_for("halfway", cache.folder("logs") / "cpu-slow.log")
    build.kill()
    build.communicate()
    assert len(bench.engine.owners(OWNER)) == 1, "its container goes on by itself"
    assert len(kept()) == 1
    write_source(slow)
    results = bench.build({"k-quick": tiny("quick", quick), "k-slow": tiny("slow", slow)})
    assert {name: result.status for name, result in results.items()} == {"quick": "cached", "slow": "built"}
    assert "an interrupted run had left" in capsys.readouterr().err
    assert list(cache.folder("work").iterdir()) == []


def test_ctrl_c_takes_its_containers_along(bench: Bench, tmp_path: Path) -> None:
    build = start(bench, "c", write_source(tmp_path / "slow", setup=SLOW + SETUP))
    wait_for("halfway", cache.folder("logs") / "cpu-slow.log")
    build.send_signal(signal.SIGINT)
    build.communicate(timeout=60)
    assert build.returncode != 0
    assert bench.engine.owners(OWNER) == set()
    assert kept() == [] and list(cache.folder("work").iterdir()) == []


def test_of_two_builds_at_once_one_waits_and_compiles_nothing(bench: Bench, tmp_path: Path) -> None:
    source = write_source(tmp_path / "same", setup="import time; time.sleep(8)\n" + SETUP)
    builds = [start(bench, "two", source), start(bench, "two", source)]
    ended = [build.communicate(timeout=300) for build in builds]
    assert [build.returncode for build in builds] == [0, 0], ended
    assert sorted(json.loads(out)["same"] for out, _ in ended) == ["built", "cached"]
    assert any("waiting for another compile of cpu/same" in err for _, err in ended), ended


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")
def test_a_full_disk_is_told_and_a_rerun_after_it_succeeds(bench: Bench, own_cache: Path, tmp_path: Path) -> None:
    own_cache.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(own_cache)]
    if subprocess.run(mount, check=False).returncode != 0:
        pytest.skip("this machine does not allow mounting a tmpfs")
    try:
        part = tiny("tiny", write_source(tmp_path / "tiny"))
        with pytest.raises(EnvironmentCannot, match="no space is left") as caught:
            bench.build({"f": part})
        assert caught.value.exit_code == 4 and "DEEPINFER_BUILD_CACHE" in caught.value.next_step
        assert kept() == []
        subprocess.run(["mount", "-o", "remount,size=64m", str(own_cache)], check=True)
        assert bench.build({"f": part})["tiny"].status == "built"
    finally:
        subprocess.run(["umount", str(own_cache)], check=True)
