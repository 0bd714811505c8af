"""The prefix: moved into place whole, foreign folders left alone, its command usable from anywhere."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from build.errors import EnvironmentCannot, MatrixError, UsageError
from build.host import prefix as prefixes
from build.host.nccl import Replacement
from build.host.offline import OfflineFolder
from build.host.prefix import check_prefix, is_ours, lay_prefix, python_of, remove_prefix
from build.host.target import _prefix_line
from build.matrix.model import Target
from build.plan import Cell, TargetPlan
from build.setup.environment import Environment
from build.wheels.results import CellResult
from tests.host_bench import this_machine
from tests.image_stand_ins import component, make_wheel


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a name that a shell would stumble over."""
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "it's a $(place)"
    folder.mkdir()
    return folder


def lay(
    prefix: Path,
    wheels: Sequence[Path] = (),
    *,
    nccl: Path | None = None,
    replaced: Replacement | None = None,
    runtime_lock: str | None = None,
    offline: OfflineFolder | None = None,
) -> None:
    """Lay a prefix with the engine's twin and these wheels as components."""
    results = []
    for wheel in wheels:
        part = component(wheel.name.split("-")[0])
        results.append(CellResult(Cell("host", part, "build", key="1" * 64), "built", artefact=wheel))
    target = Target("host", "Stand-in", "host", (), runtime_lock=runtime_lock)
    plan = TargetPlan(target, this_machine(), "host", tuple(result.cell for result in results), "2" * 64)
    lay_prefix(prefix, plan, this_machine(), results, nccl=nccl, replaced=replaced, offline=offline)


def good_wheel(folder: Path, version: str = "1.0") -> Path:
    return make_wheel(folder / version, "part", version, {"part/__init__.py": f"v = {version!r}\n".encode()})


def broken_wheel(folder: Path) -> Path:
    """A wheel cut short on its way."""
    wheel = good_wheel(folder, "9.9")
    wheel.write_bytes(wheel.read_bytes()[:-40])
    return wheel


def leftovers(place: Path) -> list[str]:
    return [path.name for path in place.iterdir() if path.name.startswith(".")]


def test_the_command_works_from_any_folder_and_finds_its_own(place: Path, tmp_path: Path) -> None:
    prefix = place / "new" / "prefix"
    lay(prefix, [good_wheel(tmp_path)])
    assert is_ours(prefix) and leftovers(place / "new") == []
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "deepinfer").mkdir(parents=True)
    (elsewhere / "deepinfer" / "__init__.py").write_text("raise SystemExit('the wrong one')")
    environment = {**os.environ, "PYTHONPATH": str(elsewhere), "DEEPINFER_CACHE_DIR": str(tmp_path / "run")}
    argv = [prefix / "bin" / "deepinfer", "env", "--json"]
    done = subprocess.run(argv, cwd=elsewhere, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert str(prefix / "site") in done.stdout
    held = json.loads((prefix / "image.json").read_text())
    assert (held["image"], held["components"]["part"]["status"]) == ("host", "installed")
    assert oct((prefix / "bin" / "deepinfer").stat().st_mode)[-3:] == "755"


def test_a_new_build_takes_the_place_of_the_old_one_and_of_its_files(place: Path, tmp_path: Path) -> None:
    prefix = place / "prefix"
    lay(prefix, [good_wheel(tmp_path)])
    (prefix / "site" / "stale.py").touch()
    lay(prefix, [good_wheel(tmp_path, "2.0")])
    assert (prefix / "site" / "part" / "__init__.py").read_text() == "v = '2.0'\n"
    assert not (prefix / "site" / "stale.py").exists()
    assert leftovers(place) == []


def test_a_prefix_of_ours_is_removed_and_nothing_else(place: Path, tmp_path: Path) -> None:
    prefix, other = place / "prefix", place / "other"
    other.mkdir()
    (other / "image.json").write_text('{"image": "cpu"}')
    for folder, said in ((prefix, "is not there"), (other, "holds something else and is left alone")):
        with pytest.raises(EnvironmentCannot, match=said):
            remove_prefix(folder)
    lay(prefix, [good_wheel(tmp_path)])
    remove_prefix(prefix)
    assert [path.name for path in place.rglob("*")] == ["other", "image.json"]


def test_what_took_the_place_of_a_prefix_meanwhile_stays(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = place / "prefix"
    lay(prefix)

    def changed(folder: Path) -> bool:
        ours = is_ours(folder)
        if folder == prefix:
            (prefix / "image.json").unlink()
            (prefix / "mine").touch()
        return ours

    monkeypatch.setattr(prefixes, "is_ours", changed)
    with pytest.raises(EnvironmentCannot, match="left alone"):
        remove_prefix(prefix)
    assert (prefix / "mine").exists() and leftovers(place) == []


def test_the_line_of_a_prefix_names_its_python_and_whose_place_it_takes(place: Path) -> None:
    prefix = place / "prefix"
    assert _prefix_line(prefix, "/a/python3") == f"host: prefix {prefix} for /a/python3"
    lay(prefix)
    own = this_machine().executable
    assert python_of(prefix) == own
    assert _prefix_line(prefix, own) == f"host: prefix {prefix} for {own}"
    assert _prefix_line(prefix, "/a/python3").endswith(f"for /a/python3, in place of the one for {own}")
    (prefix / "image.json").write_text('{"image": "host", "base": []}')
    assert python_of(prefix) == ""


def test_the_old_prefix_survives_what_fails(place: Path, tmp_path: Path) -> None:
    prefix = place / "prefix"
    lay(prefix, [good_wheel(tmp_path)])
    with pytest.raises((EnvironmentCannot, MatrixError)):
        lay(prefix, [broken_wheel(tmp_path)])
    assert is_ours(prefix) and (prefix / "site" / "part" / "__init__.py").read_text() == "v = '1.0'\n"
    assert leftovers(place) == []


def test_killed_between_its_two_renames_the_old_prefix_comes_back(place: Path, tmp_path: Path) -> None:
    prefix = place / "prefix"
    lay(prefix, [good_wheel(tmp_path)])
    left = place / ".part-prefix-abcdefgh"
    (left / "tree").mkdir(parents=True)
    prefix.rename(left / "old")
    with pytest.raises((EnvironmentCannot, MatrixError)):
        lay(prefix, [broken_wheel(tmp_path)])
    assert is_ours(prefix) and leftovers(place) == []


def test_what_somebody_writes_into_an_empty_folder_meanwhile_is_left_alone(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, plain = place / "theirs", prefixes._lay_command
    theirs.mkdir()

    def lay_command(*arguments: Any) -> None:
        plain(*arguments)
        (theirs / "photo.jpg").touch()

    monkeypatch.setattr(prefixes, "_lay_command", lay_command)
    with pytest.raises(EnvironmentCannot, match="theirs holds something else and is left alone"):
        lay(theirs)
    assert [path.name for path in theirs.iterdir()] == ["photo.jpg"] and leftovers(place) == []


def test_two_that_lay_one_prefix_with_caches_of_their_own_take_turns(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix, plain, others = place / "prefix", prefixes._lay_command, []

    def lay_command(*arguments: Any) -> None:
        if not others:
            monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "another"))
            others.append(threading.Thread(target=lay, args=(prefix,)))
            others[0].start()
            others[0].join(0.3)  # time to do harm, if it may
        plain(*arguments)

    monkeypatch.setattr(prefixes, "_lay_command", lay_command)
    lay(prefix)
    others[0].join(300)
    assert is_ours(prefix) and leftovers(place) == []


@pytest.mark.parametrize("parent", [".", ".venv"])
def test_a_prefix_in_the_repository_waits_for_no_lock_of_run_itself(place: Path, parent: str) -> None:
    """In `.venv` it would wait for ever: for the end of the very process that lays it."""
    environment = Environment(place)
    environment.folder.mkdir()
    assert environment.use()
    laying = threading.Thread(target=lay, args=(place / parent / "prefix",), daemon=True)
    with environment.locked():
        laying.start()
        laying.join(60)
        assert is_ours(place / parent / "prefix")
    assert leftovers(place / parent) in ([], [".venv"])


@pytest.mark.parametrize("content", ["photo.jpg", "image.json", ".hidden"])
def test_somebody_elses_folder_is_left_alone(place: Path, content: str) -> None:
    (place / "theirs").mkdir()
    (place / "theirs" / content).write_text('{"image": "another"}')
    for attempt in (check_prefix, lay):
        with pytest.raises(EnvironmentCannot, match="holds something else and is left alone"):
            attempt(place / "theirs")
    assert [path.name for path in (place / "theirs").iterdir()] == [content]


def test_an_empty_folder_is_used_and_a_file_is_not(place: Path) -> None:
    (place / "empty").mkdir()
    lay(place / "empty")
    assert is_ours(place / "empty")
    (place / "file").touch()
    with pytest.raises(EnvironmentCannot, match="left alone"):
        lay(place / "file")
    with pytest.raises(EnvironmentCannot, match="cannot be written") as refused:
        lay(place / "file" / "below")
    assert "--prefix" in refused.value.next_step


def test_a_colon_would_split_the_path(place: Path) -> None:
    with pytest.raises(UsageError, match="colon"):
        check_prefix(place / "a:b")


def test_nccl_is_headers_and_a_link_to_the_file_that_torch_loads(place: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    include = tree / "nvidia" / "nccl" / "include"
    include.mkdir(parents=True)
    (include / "nccl.h").write_text("#define NCCL_MAJOR 2\n")
    loaded = tmp_path / "site" / "libnccl.so.2"
    replaced = Replacement(str(loaded), "", "2.32.3", "0" * 64)
    lay(place / "prefix", nccl=tree, replaced=replaced)
    assert (place / "prefix" / "nccl" / "include" / "nccl.h").is_file()
    assert (place / "prefix" / "nccl" / "lib" / "libnccl.so.2").readlink() == loaded
    declared = json.loads((place / "prefix" / "image.json").read_text())["declared"]
    assert declared["nccl"]["version"] == "2.32.3" and declared["nccl"]["path"] == str(loaded)


def test_what_the_interpreter_lacks_comes_from_the_packs_or_is_named(place: Path, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "packs" / "runtime", "nowhere_else", "3.1", {"nowhere_else.py": b"x = 1\n"})
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    lock = tmp_path / "runtime.lock"
    lock.write_text(f"nowhere-else==3.1 --hash=sha256:{digest}\ntorch==0.1 --hash=sha256:{'0' * 64}\n")
    lock.with_suffix(".in").write_text("nowhere-else\ntorch\n")
    packs = OfflineFolder(tmp_path / "packs")
    lay(place / "prefix", runtime_lock=str(lock), offline=packs)
    assert (place / "prefix" / "site" / "nowhere_else.py").is_file()
    statuses = {
        name: fact["status"] for name, fact in json.loads((place / "prefix/image.json").read_text())["runtime"].items()
    }
    assert statuses["nowhere-else"] == "added" and statuses["torch"] != "added"

    wheel.unlink()
    with pytest.raises(EnvironmentCannot, match=r"lacks nowhere-else==3\.1, and the packs do not have them"):
        lay(place / "prefix", runtime_lock=str(lock), offline=packs)
    assert (place / "prefix" / "site" / "nowhere_else.py").is_file()


def test_what_the_interpreter_has_too_old_is_kept_and_told(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = tmp_path / "runtime.lock"
    lock.write_text(f"packaging==9999.0 --hash=sha256:{'0' * 64}\n")
    lock.with_suffix(".in").write_text("packaging>=9999\n")
    lay(place / "prefix", runtime_lock=str(lock))
    told = capsys.readouterr().err
    assert "note: packaging " in told and "the engine wants packaging>=9999" in told


def test_another_prefix_beside_it_is_not_touched(place: Path, tmp_path: Path) -> None:
    lay(place / "prefix", [good_wheel(tmp_path)])
    shutil.copytree(place / "prefix", place / ".part-prefix-2-abcdefgh")
    lay(place / "prefix", [good_wheel(tmp_path, "2.0")])
    lay(place / "other", [good_wheel(tmp_path)])
    assert leftovers(place) == [".part-prefix-2-abcdefgh"]
