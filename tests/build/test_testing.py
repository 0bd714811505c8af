"""The `test` verb: what it runs in which order, how it ends, what it leaves behind."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from build import room, testing
from build.cache import REPOSITORY
from build.clean.images import our_images
from build.containers import LABEL, Engine
from build.errors import EnvironmentCannot
from build.room import NEEDED_GB, Disks, check_room, peak_use
from build.testing import Result, Stage


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record of the last run is not these tests'."""
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "cache"))


def _stage(name: str, program: str, **more: object) -> Stage:
    return Stage(name, (sys.executable, "-c", program), **more)  # type: ignore[arg-type]


def test_the_run_is_unit_tests_then_one_image_after_the_other() -> None:
    plan = testing.stages()
    assert [(stage.name, stage.image) for stage in plan] == [
        ("unit tests", ""),
        ("cpu: build and gates", "cpu"),
        ("cpu: Docker tests", "cpu"),
        ("flagtree: build and gates", "flagtree"),
        ("flagtree: Docker tests", "flagtree"),
    ]
    for stage in plan[1::2]:
        assert stage.argv[-5:] == ("build", "--image", stage.image, "--base", "replica")
    assert plan[2].argv[-2:] == ("-k", "not flagtree and not vllm and not flagos and not pull_back")
    assert plan[4].argv[-2:] == ("-k", "flagtree and not pull_back")


def test_all_images_are_more_stages_of_the_same_kind() -> None:
    images = testing.every_image()
    assert images == ("cpu", "flagtree", "vllm", "flagos")
    every = testing.stages(images, pull_back=True)
    whats = ("build and gates", "Docker tests", "publish and pull back")
    assert [stage.name for stage in every[1:]] == [f"{image}: {what}" for image in images for what in whats]
    assert [stage for stage in testing.stages() if stage not in every] == []
    assert every[-2].argv[-1] == "flagos and not pull_back" and every[-1].argv[-1] == "flagos and pull_back"
    assert every[-2].may_be_empty and not every[-1].may_be_empty
    assert "--timeout=0" in every[-1].argv and "--timeout=900" in every[-2].argv, "what is slow is not stuck"


def test_first_failure_ends_the_run_with_its_status(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    mark = tmp_path / "ran"
    plan = [
        _stage("first", "pass"),
        _stage("second", "raise SystemExit(3)"),
        _stage("third", f"open({str(mark)!r}, 'w')"),
    ]
    assert testing.run(plan=plan) == 3 and not mark.exists()
    table = capfd.readouterr().err
    assert "first   passed" in table and "second  failed (3)" in table and "third   not run" in table


def test_empty_selection_fails_unless_it_may_be_empty() -> None:
    assert testing.run(plan=[_stage("none", "raise SystemExit(5)")]) == 5
    assert testing.run(plan=[_stage("none", "raise SystemExit(5)", may_be_empty=True)]) == 0


def test_stages_have_no_stdin_and_see_no_word_of_the_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPINFER_SETUP", "1")
    program = "import os, sys; sys.exit(bool(sys.stdin.read()) or 'DEEPINFER_SETUP' in os.environ)"
    assert testing.run(plan=[_stage("only", program)]) == 0
    program = f"import os, sys; sys.exit(os.getcwd() != {str(REPOSITORY)!r})"
    assert testing.run(plan=[_stage("only", program)]) == 0


def test_arguments_go_to_pytest_as_they_are(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test_it.py").write_text("def test_a(): pass\ndef test_b(): pass\n")
    where = ["--rootdir", str(tmp_path), "-p", "no:cacheprovider", str(tmp_path / "test_it.py")]
    assert testing.run([*where, "-k", "test_a or nothing"]) == 0
    assert "1 passed, 1 deselected" in capfd.readouterr().out
    quoted = " ".join(f"'{word}'" for word in where)
    assert testing.run(f"{quoted} -k 'test_a or test_b'") == 0
    assert "2 passed" in capfd.readouterr().out


def test_statuses_of_pytest_become_exit_codes_of_run(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_a(): pass\ndef test_b(): raise ValueError\n")
    where = ["-q", "--rootdir", str(tmp_path), "-p", "no:cacheprovider"]
    file = str(tmp_path / "test_it.py")
    assert testing.run([*where, file, "-k", "nothing"]) == 3, "nothing selected"
    assert testing.run([*where, str(tmp_path / "absent.py")]) == 1, "usage"
    assert testing.run([*where, file, "--no-such-option"]) == 1
    assert testing.run([*where, file]) == 5, "a check failed"
    of_pytest = Stage("unit", (sys.executable, "-m", "pytest", *where, file, "-k", "nothing"))
    assert testing.run(plan=[of_pytest]) == 3
    assert testing.run(plan=[_stage("killed", "import os; os.kill(os.getpid(), 9)")]) == 137


def test_no_engine_is_told_before_an_image_is_begun(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    mark = tmp_path / "ran"
    with pytest.raises(EnvironmentCannot, match="no Docker engine"):
        testing.run(plan=[_stage("unit", "pass"), _stage("build", f"open({str(mark)!r}, 'w')", image="cpu")])
    assert not mark.exists()


def test_disk_that_is_too_small_is_told_with_both_figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    check_room("cpu", [])
    monkeypatch.setitem(NEEDED_GB, "cpu", 1e9)
    with pytest.raises(EnvironmentCannot, match=r"takes 1000000000 GB, and .* GB free"):
        check_room("cpu", [tmp_path])


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A disk of its own: how many GB are used on it. On a real one others write and remove files meanwhile."""
    used = [1.0]
    monkeypatch.setattr(room.shutil, "disk_usage", lambda place: SimpleNamespace(used=int(used[0] * 1e9)))
    return used


def test_peak_of_the_disk_outlasts_what_was_deleted(tmp_path: Path, disk: list[float]) -> None:
    with peak_use([tmp_path], every=0.01) as peak:
        disk[0] = 1.4
        deadline = time.monotonic() + 120
        while not peak[0] and time.monotonic() < deadline:
            time.sleep(0.01)
        disk[0] = 0.9
    assert peak[0] == pytest.approx(0.4)


def test_table_adds_up() -> None:
    rows = [
        Result(Stage("a", ()), 0, 10.2),
        Result(Stage("b", (), "cpu"), 6, 60.0, 7.25, 1.5),
        Result(Stage("c", (), "cpu"), 0, 1.0, 0.5, 4.0),
        Result(Stage("d", (), "cpu")),
    ]
    text = testing.as_table(rows)
    assert "+7.2 GB" in text and "failed (6)" in text and "not run" in text and "71 s   +8.8 GB" in text
    record = json.loads(testing.write_record(rows).read_text())
    assert (record["seconds"], record["peak_gb"]) == (71.2, 8.75), "what is left of earlier stages counts"
    assert record["stages"][1] == {
        "name": "b", "image": "cpu", "status": 6, "seconds": 60.0, "peak_gb": 7.25, "held_gb": 1.5,
    }  # fmt: skip
    assert record["stages"][3] == {"name": "d", "image": "cpu", "status": None}


def test_what_stages_leave_on_the_disks_is_counted_once_a_disk(disk: list[float]) -> None:
    disks = Disks()
    places = len(disks.places)
    disks.watch(Path(disks.places[0]))
    assert len(disks.places) == places
    disk[0] = 1.4
    assert disks.grown() == pytest.approx(0.4 * places)


@pytest.mark.docker
def test_what_a_stage_adds_to_docker_is_removed_and_nothing_else(tmp_path: Path) -> None:
    engine = Engine.connect()
    (tmp_path / "Dockerfile").write_text(f"FROM scratch\nCOPY Dockerfile /{tmp_path.name}\n")
    kept = engine.build(
        tmp_path, tag="deepinfer:freeing-old", labels={f"{LABEL}.image": "freeing"}, log=tmp_path / "log"
    )
    program = (
        "from pathlib import Path; from build.containers import LABEL, Engine\n"
        f"folder = Path({str(tmp_path)!r}); (folder / 'Dockerfile').write_text('FROM scratch\\nCOPY log /new\\n')\n"
        "labels = {f'{LABEL}.image': 'freeing'}\n"
        "Engine.connect().build(folder, tag='deepinfer:freeing', labels=labels, log=folder / 'l')\n"
    )
    try:
        assert testing.run(plan=[_stage("adds", program, image="freeing")]) == 0
        assert engine.image_id("deepinfer:freeing") is None and engine.image_id("deepinfer:freeing-old") == kept
        assert testing.run(plan=[_stage("adds", program, image="freeing")], keep=True) == 0
        assert engine.image_id("deepinfer:freeing") is not None
        assert any(image.target == "freeing" for image in our_images(engine))
    finally:
        engine.remove_images({f"{LABEL}.image": "freeing"})
