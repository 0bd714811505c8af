"""The wheelhouse: whole entries or none, contents checked at every use."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from build.cache import REPOSITORY
from build.digests import file_sha256
from build.wheels.wheelhouse import ABANDONED_AFTER, Wheelhouse

KEY = "ab" * 32
OTHER = "cd" * 32


@pytest.fixture
def house(tmp_path: Path) -> Wheelhouse:
    return Wheelhouse(tmp_path / "wheelhouse")


@pytest.fixture
def artefact(tmp_path: Path) -> Path:
    path = tmp_path / "thing-1.0-cp313-cp313-linux_x86_64.whl"
    path.write_bytes(bytes(range(256)) * 40)
    return path


def test_what_was_put_is_found_with_its_record(house: Wheelhouse, artefact: Path) -> None:
    kept = house.put(KEY, artefact, {"cell": "flagtree/thing", "seconds": 12.5})
    assert house.find(KEY) == kept
    assert kept.name == artefact.name and kept.read_bytes() == artefact.read_bytes()
    meta = json.loads((kept.parent / "meta.json").read_text())
    assert meta["sha256"] == file_sha256(artefact)
    assert (meta["cell"], meta["seconds"], meta["size"]) == ("flagtree/thing", 12.5, 10240)
    assert house.find(OTHER) is None


def flip_a_byte(folder: Path) -> None:
    (wheel,) = folder.glob("*.whl")
    data = bytearray(wheel.read_bytes())
    data[5000] ^= 1
    wheel.unlink()
    wheel.write_bytes(data)


def cut_short(folder: Path) -> None:
    (wheel,) = folder.glob("*.whl")
    wheel.unlink()
    wheel.write_bytes(b"PK")


def lose_the_artefact(folder: Path) -> None:
    next(folder.glob("*.whl")).unlink()


def lose_the_record(folder: Path) -> None:
    (folder / "meta.json").unlink()


def garble_the_record(folder: Path) -> None:
    (folder / "meta.json").write_text("{")


def point_elsewhere(folder: Path) -> None:
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps({**meta, "artefact": "../../thing.whl"}))


@pytest.mark.parametrize(
    "damage", [flip_a_byte, cut_short, lose_the_artefact, lose_the_record, garble_the_record, point_elsewhere]
)
def test_a_damaged_entry_is_removed_told_and_can_be_put_again(
    house: Wheelhouse, artefact: Path, damage: object, capsys: pytest.CaptureFixture[str]
) -> None:
    house.put(KEY, artefact, {})
    house.put(OTHER, artefact, {})
    assert callable(damage)
    damage(house.root / KEY)
    assert house.find(KEY) is None
    assert not (house.root / KEY).exists()
    assert f"{KEY[:12]} is damaged" in capsys.readouterr().err
    assert house.find(OTHER) is not None, "only the damaged one goes"
    assert house.put(KEY, artefact, {}) == house.find(KEY)


def test_who_may_not_write_there_does_without_a_damaged_entry(house: Wheelhouse, artefact: Path) -> None:
    """As a check of an image with a cache that is mounted read-only."""
    kept = house.put(KEY, artefact, {})
    flip_a_byte(kept.parent)
    (house.root / ".lock").unlink()
    (house.root / ".lock").mkdir()
    assert house.find(KEY) is None and kept.exists()


def test_a_second_put_of_a_key_keeps_one_whole_entry(house: Wheelhouse, artefact: Path) -> None:
    house.put(KEY, artefact, {"run": 1})
    house.put(KEY, artefact, {"run": 2})
    assert house.find(KEY) is not None
    assert [path.name for path in house.root.glob("[!.]*")] == [KEY]


def test_many_writers_of_one_key_leave_one_whole_entry(house: Wheelhouse, artefact: Path) -> None:
    writers = [threading.Thread(target=house.put, args=(KEY, artefact, {"run": number})) for number in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert house.find(KEY) is not None
    assert [path.name for path in house.root.glob("[!.]*")] == [KEY]


def test_kill_9_in_the_middle_of_a_put_leaves_no_entry(house: Wheelhouse, artefact: Path) -> None:
    program = f"""
import sys, time
sys.path.insert(0, {str(REPOSITORY)!r})
from pathlib import Path
from build.wheels import wheelhouse
def half(source, target):
    target.write_bytes(source.read_bytes()[:5000])
    print("half", flush=True)
    time.sleep(600)
wheelhouse._copy = half
wheelhouse.Wheelhouse(Path({str(house.root)!r})).put({KEY!r}, Path({str(artefact)!r}), {{}})
"""
    writer = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert writer.stdout is not None and writer.stdout.readline() == b"half\n"
    writer.kill()
    writer.communicate()
    (left,) = house.root.iterdir()
    assert left.name.startswith(".part-")
    assert house.find(KEY) is None
    assert house.put(KEY, artefact, {}) == house.find(KEY)


def test_sweep_takes_abandoned_parts_and_leaves_fresh_ones(house: Wheelhouse, artefact: Path) -> None:
    for name in (".part-old", ".part-new"):
        (house.root / name).mkdir(parents=True)
        (house.root / name / "half.whl").write_bytes(b"half")
    long_ago = time.time() - ABANDONED_AFTER - 60
    os.utime(house.root / ".part-old", (long_ago, long_ago))
    house.put(KEY, artefact, {})
    assert sorted(path.name for path in house.root.iterdir() if path.is_dir()) == [".part-new", KEY]


def test_a_key_that_is_none_is_refused(house: Wheelhouse) -> None:
    for wrong in ("", "../etc", KEY.upper(), KEY[:-1]):
        with pytest.raises(ValueError, match="not a cell's key"):
            house.find(wrong)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")
def test_a_full_disk_leaves_no_entry(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)], check=False)
    if mounted.returncode != 0:
        pytest.skip("this machine does not allow mounting a tmpfs")
    try:
        large = tmp_path / "large-1.0-py3-none-any.whl"
        large.write_bytes(b"x" * 200_000)
        house = Wheelhouse(small / "wheelhouse")
        with pytest.raises(OSError, match="No space left"):
            house.put(KEY, large, {})
        assert list(house.root.iterdir()) == []
        assert house.find(KEY) is None
    finally:
        subprocess.run(["umount", str(small)], check=True)
