"""Locks: reading them, and fetching their wheels with the real pip (from a folder, without network)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from build import relock
from build.digests import file_sha256
from build.errors import EnvironmentCannot, MatrixError
from build.locks import Pin, fetch_lock, fetched_wheels, read_lock
from tests.build.small_wheels import make_wheel

ONES, TWOS = "1" * 64, "2" * 64


def write_lock(path: Path, *wheels: Path, header: str = "") -> Path:
    """A lock that names these wheels."""
    lines = []
    for wheel in wheels:
        name, version = wheel.name.split("-")[:2]
        lines.append(f"{name}=={version} \\\n    --hash=sha256:{file_sha256(wheel)}\n")
    path.write_text(header + "".join(lines))
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that is all that pip finds, and a fresh build cache."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "cache"))
    return folder


def test_a_lock_is_read_with_comments_continuations_and_several_hashes(tmp_path: Path) -> None:
    lock = tmp_path / "some.lock"
    lock.write_text(
        "# how it was made\n# index: https://example.org/simple\n"
        f"Some_Name==1.0+cpu \\\n    --hash=sha256:{ONES} \\\n    --hash=sha256:{TWOS}  # two builds\n\n"
        f"other==2 --hash=sha256:{TWOS}\n"
    )
    read = read_lock(lock)
    assert read.pins == (Pin("some-name", "1.0+cpu", (ONES, TWOS), 3), Pin("other", "2", (TWOS,), 7))
    assert read.indexes == ("https://example.org/simple",)
    assert read.pin("Some.Name") == read.pins[0]
    assert read.pin("absent") is None


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("alpha==1.0", "alpha==1.0 has no --hash"),
        (f"alpha>=1.0 --hash=sha256:{ONES}", "is not `name==version"),
        (f"alpha --hash=sha256:{ONES}", "is not `name==version"),
        (f"alpha==1.* --hash=sha256:{ONES}", "is not `name==version"),
        ("alpha==1.0 --hash=sha256:12ab", "something else than sha256 sums"),
        ("alpha==1.0 --hash=md5:" + "1" * 32, "something else than sha256 sums"),
        (f'alpha==1.0 ; python_version < "3.12" --hash=sha256:{ONES}', "something else"),
        ("--index-url https://example.org", "is not `name==version"),
        ("-r other.txt", "is not `name==version"),
        (f"beta==1 --hash=sha256:{ONES}", "beta is already pinned in line 1"),
    ],
)
def test_a_line_that_pins_nothing_is_refused_with_its_place(tmp_path: Path, line: str, words: str) -> None:
    lock = tmp_path / "bad.lock"
    lock.write_text(f"beta==1 --hash=sha256:{ONES}\n{line}\nworse\n")
    with pytest.raises(MatrixError) as caught:
        read_lock(lock)
    assert f"{lock}:2: " in caught.value.what
    assert words in caught.value.what
    assert f"{lock}:3: " in caught.value.what, "all problems are told at once"


def test_a_lock_that_is_missing_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(MatrixError) as caught:
        read_lock(tmp_path / "absent.lock")
    assert "relock" in caught.value.next_step


@pytest.mark.parametrize(
    ("content", "words"), [(b"", "pins nothing"), (b"# made by\n\n", "pins nothing"), (b"\x7fELF\xff", "is not text")]
)
def test_a_lock_that_was_emptied_or_is_no_text_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "some.lock").write_bytes(content)
    with pytest.raises(MatrixError, match=words) as told:
        read_lock(tmp_path / "some.lock")
    assert "some.lock" in told.value.what and told.value.next_step


def test_the_key_of_a_lock_follows_its_pins_and_the_python_only(tmp_path: Path) -> None:
    first, second = tmp_path / "first.lock", tmp_path / "second.lock"
    first.write_text(f"# made today\na==1 --hash=sha256:{ONES}\nb==2 --hash=sha256:{TWOS}\n")
    second.write_text(f"b==2 \\\n  --hash=sha256:{TWOS}\na==1 --hash=sha256:{ONES}\n")
    assert read_lock(first).key("3.13") == read_lock(second).key("3.13")
    assert read_lock(first).key("3.13") != read_lock(first).key("3.12")
    second.write_text(f"a==1 --hash=sha256:{TWOS}\nb==2 --hash=sha256:{TWOS}\n")
    assert read_lock(first).key("3.13") != read_lock(second).key("3.13")


@pytest.mark.parametrize("lock", sorted(Path(__file__).parents[2].glob("images/*/*.lock")), ids=lambda path: path.stem)
def test_the_committed_locks_are_complete(lock: Path) -> None:
    assert read_lock(lock).pins


def test_wheels_are_fetched_for_another_python_and_a_newer_glibc(tmp_path: Path, index: Path) -> None:
    binary = make_wheel(index, "beta", tag="cp313-cp313-manylinux_2_34_x86_64")
    make_wheel(index, "beta", tag="cp312-cp312-manylinux_2_34_x86_64")
    lock = write_lock(tmp_path / "good.lock", make_wheel(index), binary)
    folder = fetch_lock(lock, "3.13")
    assert {name: path.name for name, path in fetched_wheels(folder).items()} == {
        "alpha": "alpha-1.0-py3-none-any.whl",
        "beta": "beta-1.0-cp313-cp313-manylinux_2_34_x86_64.whl",
    }
    assert not list((tmp_path / "cache").rglob(".part-*"))


def test_what_is_fetched_is_not_asked_for_again(tmp_path: Path, index: Path) -> None:
    wheel = make_wheel(index)
    lock = write_lock(tmp_path / "good.lock", wheel)
    folder = fetch_lock(lock, "3.13")
    wheel.unlink()
    assert fetch_lock(lock, "3.13") == folder
    # Another lock with the same wheel finds it in the store.
    other = fetch_lock(write_lock(tmp_path / "other.lock", folder / wheel.name), "3.12")
    assert other != folder
    assert (other / wheel.name).samefile(folder / wheel.name)


def test_a_wheel_with_one_byte_changed_is_refused(tmp_path: Path, index: Path) -> None:
    wheel, good = make_wheel(index), make_wheel(index, "beta")
    lock = write_lock(tmp_path / "good.lock", good, wheel)
    data = bytearray(wheel.read_bytes())
    data[60] ^= 1
    wheel.write_bytes(data)
    with pytest.raises(MatrixError) as caught:
        fetch_lock(lock, "3.13")
    assert caught.value.exit_code == 2
    assert "alpha==1.0 (line 3)" in caught.value.what
    assert "beta" not in caught.value.what
    assert caught.value.log is not None and caught.value.log.exists()
    assert not fetched_wheels(tmp_path / "cache/downloads/locks")


def test_a_wheel_that_nobody_has_is_named(tmp_path: Path, index: Path) -> None:
    wheel = make_wheel(index, "gone", "3.1")
    lock = write_lock(tmp_path / "good.lock", make_wheel(index), wheel)
    wheel.unlink()
    with pytest.raises(EnvironmentCannot) as caught:
        fetch_lock(lock, "3.13")
    assert "gone==3.1 (line 3)" in caught.value.what
    assert "alpha" not in caught.value.what
    assert caught.value.exit_code == 4


def test_the_locks_own_index_is_asked_where_the_usual_one_has_nothing(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # An index that is empty, and another in which the wheel lies.
    (tmp_path / "empty").mkdir()
    wheel = make_wheel(tmp_path / "more/alpha", version="1.0+cpu")
    (tmp_path / "more/alpha/index.html").write_text(f'<a href="{wheel.name.replace("+", "%2B")}">{wheel.name}</a>')
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "empty").as_uri())
    lock = write_lock(tmp_path / "cpu.lock", wheel, header=f"# index: {(tmp_path / 'more').as_uri()}\n")
    assert fetched_wheels(fetch_lock(lock, "3.11"))["alpha"].name == wheel.name
    assert "asking file://" in capfd.readouterr().err


@pytest.mark.parametrize("where", ["folder", "store"])
def test_a_fetched_wheel_that_was_changed_is_fetched_again(
    tmp_path: Path, index: Path, where: str, capfd: pytest.CaptureFixture[str]
) -> None:
    wheel = make_wheel(index)
    lock = write_lock(tmp_path / "good.lock", wheel)
    folder = fetch_lock(lock, "3.13")
    if where == "folder":  # the one file, by both its names
        with (folder / wheel.name).open("r+b") as data:
            data.seek(60)
            data.write(b"\xff")
    else:
        (stored,) = (tmp_path / "cache/downloads/wheels").glob("*/*.whl")
        stored.unlink()
        stored.write_bytes(b"rubbish")
        (folder / wheel.name).unlink()
    again = fetch_lock(lock, "3.13")
    assert file_sha256(again / wheel.name) == file_sha256(wheel)
    assert "was changed" in capfd.readouterr().err


def test_what_a_killed_run_left_is_cleared_away(tmp_path: Path, index: Path) -> None:
    lock = write_lock(tmp_path / "good.lock", make_wheel(index))
    folder = fetch_lock(lock, "3.13")
    (folder / ".wheels.json").unlink()
    left = folder.parent / f".part-{folder.name}" / "download"
    left.mkdir(parents=True)
    (left / "half.whl").write_bytes(b"half")
    assert fetch_lock(lock, "3.13") == folder
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


@pytest.mark.parametrize("kilobytes", [1000, 2600])
def test_a_full_disk_is_told(tmp_path: Path, index: Path, kilobytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = write_lock(tmp_path / "good.lock", make_wheel(index, files={"alpha/large.txt": "x" * 2_000_000}))
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(small)], check=False)
    if mounted.returncode != 0:
        pytest.skip("needs to mount a small tmpfs, which only root may")
    try:
        monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(small))
        (small / "taken").write_bytes(b"x" * (kilobytes * 1024 - 500_000))
        with pytest.raises(EnvironmentCannot) as caught:
            fetch_lock(lock, "3.13")
        assert caught.value.next_step
        assert not list(small.glob("downloads/**/*.whl"))
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_two_processes_fetch_one_lock_together(tmp_path: Path, index: Path) -> None:
    lock = write_lock(tmp_path / "good.lock", make_wheel(index), make_wheel(index, "beta"))
    program = "import sys; from pathlib import Path; from build.locks import fetch_lock; "
    program += "print(fetch_lock(Path(sys.argv[1]), '3.13'))"
    root = Path(__file__).parents[2]
    running = [
        subprocess.Popen([sys.executable, "-c", program, str(lock)], cwd=root, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    answers = {process.communicate()[0] for process in running}
    assert [process.returncode for process in running] == [0, 0]
    (answer,) = answers
    assert set(fetched_wheels(Path(answer.strip()))) == {"alpha", "beta"}


def test_a_lock_is_made_from_a_list_and_fetched(tmp_path: Path, index: Path) -> None:
    make_wheel(index, "alpha", needs="beta>=1", tag="cp313-cp313-manylinux_2_39_x86_64")
    make_wheel(index, "beta", "1.5")
    make_wheel(index, "beta", "0.9")
    make_wheel(index, "gamma", needs="absent")
    source = tmp_path / "some.in"
    source.write_text("alpha\n# alone: gamma==1.0\n")
    assert relock.main(["relock", str(source), "--python", "3.13"]) == 0
    lock = read_lock(tmp_path / "some.lock")
    assert [(pin.name, pin.version) for pin in lock.pins] == [("alpha", "1.0"), ("beta", "1.5"), ("gamma", "1.0")]
    assert "relock some.in --python 3.13" in lock.path.read_text()
    assert str(tmp_path) not in lock.path.read_text()
    assert len(fetched_wheels(fetch_lock(lock.path, "3.13"))) == 3


def test_one_lock_for_several_pythons_of_what_is_named_alone(
    tmp_path: Path, index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = make_wheel(index, "alpha", needs="absent", tag="cp312-cp312-manylinux_2_28_x86_64")
    new = make_wheel(index, "alpha", needs="absent", tag="cp313-cp313-manylinux_2_28_x86_64")
    any_python = make_wheel(index, "beta")
    source = tmp_path / "some.in"
    source.write_text("# needs: none\nalpha\nbeta>=0.5\n")
    words = ["relock", str(source), "--python", "3.12,3.13"]
    assert relock.main(words) == 0
    lock = read_lock(tmp_path / "some.lock")
    assert [(pin.name, pin.hashes) for pin in lock.pins] == [
        ("alpha", tuple(sorted((file_sha256(old), file_sha256(new))))), ("beta", (file_sha256(any_python),)),
    ]  # fmt: skip
    assert "--python 3.12,3.13" in lock.path.read_text()
    for python, wheel in (("3.12", old), ("3.13", new)):
        assert fetched_wheels(fetch_lock(lock.path, python))["alpha"].name == wheel.name
    before = lock.path.read_text()
    make_wheel(index, "alpha", "1.1", tag="cp313-cp313-manylinux_2_28_x86_64")
    assert relock.main(words) == 2
    assert "alpha is 1.1 for Python 3.13, and 1.0 for 3.12" in capsys.readouterr().err
    assert lock.path.read_text() == before


def test_requirements_that_nothing_satisfies_leave_no_lock(
    tmp_path: Path, index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "some.in"
    source.write_text("absent==1\n")
    assert relock.main(["relock", str(source), "--python", "3.13"]) == 2
    assert "absent==1" in capsys.readouterr().err
    assert not source.with_suffix(".lock").exists()
