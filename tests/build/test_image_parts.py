"""Parts of images: archives that depend on contents alone, kept whole in the cache."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from build.call import call
from build.digests import file_sha256
from build.errors import EnvironmentCannot
from build.image.context import context, render_dockerfile
from build.image.parts import ORDER, Contents, Part, cached_part, existing_folders, out_of_space, write_archive


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def lay(tree: Path) -> Contents:
    """A tree with a program, a closed file, a link, the cache's folder and one that the base has."""
    for name, data in {"usr/local/bin/run": b"#!/bin/sh\n", "site/own/file": b"x" * 1000}.items():
        (tree / name).parent.mkdir(parents=True)
        (tree / name).write_bytes(data)
    (tree / "usr/local/bin/run").chmod(0o700)
    (tree / "site/own/file").chmod(0o600)
    (tree / "site/own/link").symlink_to("file")
    (tree / "cache").mkdir()
    return Contents(modules=("/site/own",), facts={"seen": 1})


EXISTING = existing_folders("/site", PurePosixPath("/usr/local/bin"))


def test_an_archive_depends_on_contents_and_not_on_times_owners_or_umask(tmp_path: Path) -> None:
    archives = []
    for number, mask in enumerate((0o077, 0o002)):
        old = os.umask(mask)
        try:
            tree = tmp_path / f"tree{number}"
            tree.mkdir()
            lay(tree)
            os.utime(tree / "site/own/file", (number * 1000, number * 1000))
            write_archive(tree, tmp_path / f"{number}.tar", EXISTING)
        finally:
            os.umask(old)
        archives.append((tmp_path / f"{number}.tar").read_bytes())
    assert archives[0] == archives[1]


def test_members_are_roots_readable_and_leave_the_bases_folders_alone(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    lay(tree)
    size = write_archive(tree, tmp_path / "part.tar", EXISTING)
    with tarfile.open(tmp_path / "part.tar") as archive:
        found = {member.name: member for member in archive}
    assert {name: oct(member.mode) for name, member in found.items() if not member.issym()} == {
        "cache": "0o1777",
        "opt": "0o755",
        "opt/deepinfer": "0o755",
        "site/own": "0o755",
        "site/own/file": "0o644",
        "usr/local/bin/run": "0o755",
    }
    assert found["site/own/link"].linkname == "file"
    assert {(member.uid, member.gid) for member in found.values()} == {(0, 0)}
    assert size == 1010


def test_a_part_without_files_still_is_an_archive_with_a_member(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    assert write_archive(tree, tmp_path / "part.tar", frozenset()) == 0
    with tarfile.open(tmp_path / "part.tar") as archive:
        assert archive.getnames() == ["opt", "opt/deepinfer"]


def test_a_part_is_made_once_for_the_same_inputs_and_the_old_one_is_dropped(own_cache: Path) -> None:
    first = cached_part("image", "ours", ["a"], EXISTING, lay)
    again = cached_part("image", "ours", ["a"], EXISTING, lambda tree: pytest.fail("made again"))
    assert (first.fresh, again.fresh) == (True, False)
    assert (again.archive, again.modules, again.facts) == (first.archive, ("/site/own",), {"seen": 1})
    other = cached_part("image", "ours", ["b"], EXISTING, lay)
    assert other.archive != first.archive
    assert sorted(path.suffix for path in (own_cache / "parts/image").iterdir()) == [".json", ".tar"]


def test_a_damaged_archive_is_made_anew() -> None:
    first = cached_part("image", "ours", ["a"], EXISTING, lay)
    whole = first.archive.read_bytes()
    first.archive.write_bytes(whole[:600] + b"!" + whole[601:])
    again = cached_part("image", "ours", ["a"], EXISTING, lay)
    assert again.fresh
    assert again.archive.read_bytes() == whole


@pytest.mark.parametrize("record", ["[]", "{", '{"sha256": 1}', "{}"])
def test_a_part_whose_record_is_damaged_is_made_anew(record: str) -> None:
    first = cached_part("image", "ours", ["a"], EXISTING, lay)
    if record == "{}":  # all of it but the sum was lost
        record = f'{{"sha256": "{file_sha256(first.archive)}"}}'
    first.archive.with_suffix(".json").write_text(record)
    assert cached_part("image", "ours", ["a"], EXISTING, lay).fresh


def test_what_a_killed_run_left_is_swept(own_cache: Path) -> None:
    left = own_cache / "parts/image/.part-dead"
    left.mkdir(parents=True)
    (left / "file").write_text("x")
    (own_cache / "parts/image/.part-file").write_text("x")
    cached_part("image", "ours", ["a"], EXISTING, lay)
    assert not list((own_cache / "parts/image").glob(".part-*"))


def test_a_maker_that_fails_leaves_nothing(own_cache: Path) -> None:
    def fail(tree: Path) -> Contents:
        lay(tree)
        raise EnvironmentCannot("the wheel is damaged")

    with pytest.raises(EnvironmentCannot):
        cached_part("image", "ours", ["a"], EXISTING, fail)
    assert not list((own_cache / "parts/image").iterdir())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    place = tmp_path / "small"
    place.mkdir()
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as problem:
        pytest.skip(f"no tmpfs can be mounted here: {problem}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_is_told_with_figures_and_leaves_nothing(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(small_disk))

    def much(tree: Path) -> Contents:
        (tree / "file").write_bytes(bytes(3_000_000))
        return Contents()

    with pytest.raises(EnvironmentCannot) as told:
        cached_part("image", "ours", ["a"], EXISTING, much)
    assert "MB free of" in str(told.value)
    assert "DEEPINFER_BUILD_CACHE" in told.value.next_step
    assert not list((small_disk / "parts/image").iterdir())


def test_other_faults_of_the_disk_are_not_called_a_full_disk(tmp_path: Path) -> None:
    problem = OSError(errno.EACCES, "Permission denied")
    assert out_of_space(tmp_path, problem) is problem


def make_parts() -> list[Part]:
    return [cached_part("image", name, [], EXISTING, lay) for name in ORDER]


def test_the_context_holds_every_part_and_is_gone_in_the_end(own_cache: Path) -> None:
    stale = own_cache / "contexts/image"
    stale.mkdir(parents=True)
    (stale / "left-by-a-kill").write_text("x")
    prepared = {"libraries": [], "opened": {"pass": ["/root"]}}
    with context("image", make_parts(), python="/usr/bin/python3", environment={}, prepared=prepared) as folder:
        names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        assert [name for name in names if name.endswith(".tar")] == sorted(f"{name}.tar" for name in ORDER)
        assert "left-by-a-kill" not in names
        assert (folder / "steps/compile-ours").read_text() == "/site/own\n"
        assert json.loads((folder / "steps/system.json").read_text()) == prepared
        assert "SHELL" not in (folder / "Dockerfile").read_text().rpartition("ENTRYPOINT")[2]
    assert not stale.exists()


def test_the_dockerfile_lays_every_part_in_order_and_nccl_after_all_third_parties() -> None:
    text = Path("images/Dockerfile").read_text()
    added = [line.split()[1].removesuffix(".tar") for line in text.splitlines() if line.startswith("ADD ")]
    assert tuple(added) == ORDER
    assert added.index("nccl") > max(added.index(name) for name in ("toolchain", "runtime", "ours"))
    assert "LD_LIBRARY_PATH" not in text


def test_lines_of_a_base_are_quoted() -> None:
    text = render_dockerfile("FROM x\n", python="/opt/my python/bin/python3", environment={"NVCC": '/a "b" $c'})
    assert 'CMD ["/opt/my python/bin/python3", "-c", "import deepinfer"]' in text
    assert 'ENV NVCC="/a \\"b\\" \\$c"' in text.splitlines()
    kept = render_dockerfile("FROM x\n", python="/p", environment={}, shell=["/bin/dash", "-euc"])
    assert kept.splitlines()[-1] == 'SHELL ["/bin/dash", "-euc"]'


def test_lay_is_a_program_of_the_standard_library_alone() -> None:
    source = Path("build/image/lay.py")
    done = call(shutil.which("python3") or "python3", "-I", "-S", source, "remove", "/dev/null", quiet=True)
    assert done.stdout == ""
