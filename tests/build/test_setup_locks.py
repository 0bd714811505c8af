"""The hash-locked sets: each fits its .in file, and everything in it is pinned and hashed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from build.doctor import lock_problems
from build.errors import MatrixError
from build.setup import relock
from build.setup.lockfile import LOCKS, Pin, read_pins

SETS = ("build", "test", "test-cuda")


@pytest.mark.parametrize("name", ["build", "test"])
def test_every_requirement_is_pinned_within_its_bounds(name: str) -> None:
    assert lock_problems(name) == []


def test_a_requirement_without_a_fitting_pin_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("build.doctor.LOCKS", tmp_path)
    (tmp_path / "build.in").write_text("# words\ninvoke>=4  # newer\nnothere\nPyYAML\n")
    (tmp_path / "build.lock").write_text(
        f"invoke==3.0.3 --hash=sha256:{'0' * 64}\npyyaml==6 --hash=sha256:{'1' * 64}\n"
    )
    assert lock_problems("build") == [
        "build.lock has invoke 3.0.3, build.in wants invoke>=4",
        "build.lock has no nothere",
    ]


@pytest.mark.parametrize("name", SETS)
def test_locks_name_no_index_and_no_file(name: str) -> None:
    text = (LOCKS / f"{name}.lock").read_text()
    assert not re.search(r"://|--index|--find-links|--extra|@|^\s*-[^-]", text, re.MULTILINE)
    assert all(pin.hashes for pin in read_pins(LOCKS / f"{name}.lock").values())


def test_sets_that_share_an_environment_agree() -> None:
    build, test, cuda = (read_pins(LOCKS / f"{name}.lock") for name in SETS)
    assert {name: test[name].version for name in build.keys() & test.keys()} == {
        name: build[name].version for name in build.keys() & test.keys()
    }
    assert not cuda.keys() & (build.keys() | test.keys())
    assert "torch" not in build and not any(name.startswith("nvidia") for name in (*build, *test))


def test_torch_may_be_the_cpu_build_or_the_index_s() -> None:
    torch = read_pins(LOCKS / "test.lock")["torch"]
    assert torch.version == "2.13.0" and len(torch.hashes) == 4  # CPython 3.11, 3.12, 3.13, and the CPU build
    assert read_pins(LOCKS / "test.lock")["triton"].version == "3.7.1"


def test_compiled_packages_have_a_wheel_for_each_python() -> None:
    assert len(read_pins(LOCKS / "build.lock")["pyyaml"].hashes) == 3
    assert len(read_pins(LOCKS / "test.lock")["numpy"].hashes) == 3


def test_versions_that_differ_between_pythons_are_an_error() -> None:
    one, two = (Pin("numpy", version, frozenset({"0" * 64})) for version in ("2.4", "2.5"))
    with pytest.raises(MatrixError, match=r"CPython 3\.13 takes numpy 2\.5, an earlier one takes 2\.4"):
        relock.merge({"3.12": {"numpy": one}, "3.13": {"numpy": two}})


def test_an_extra_hash_for_another_version_is_an_error() -> None:
    pins = {"torch": Pin("torch", "2.14.0", frozenset({"0" * 64}))}
    line = f"#+ torch==2.14.0 sha256:{'a' * 64} CPU build"
    assert relock.with_extra_hashes(pins, line)["torch"].hashes == {"0" * 64, "a" * 64}
    with pytest.raises(MatrixError, match=r"the lock has 2\.14\.0"):
        relock.with_extra_hashes(pins, line.replace("2.14.0", "2.13.0"))


def test_a_written_lock_is_read_back(tmp_path: Path) -> None:
    pins = {
        name: Pin(name, "1.0", frozenset({f"{index:064x}", f"{index + 5:064x}"})) for index, name in enumerate("ab")
    }
    lock = tmp_path / "x.lock"
    lock.write_text(relock.render("Title.", pins.values()))
    assert read_pins(lock) == pins


@pytest.mark.parametrize("line", ["invoke", "invoke>=3", "invoke==3", "invoke==3 --hash=md5:00", "-r other.txt"])
def test_lines_that_are_not_pins_are_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "x.lock").write_text(f"# title\n{line}\n")
    with pytest.raises(MatrixError, match="is not `name==version"):
        read_pins(tmp_path / "x.lock")
    with pytest.raises(MatrixError, match="cannot be read"):
        read_pins(tmp_path / "absent.lock")


def test_a_lock_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "build.lock").write_bytes(b"\x7fELF\xff\xfe")
    with pytest.raises(MatrixError, match="is not text"):
        read_pins(tmp_path / "build.lock")
