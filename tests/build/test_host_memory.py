"""The memory that a process may have, read from made-up /proc and cgroup trees."""

import os
from pathlib import Path

import pytest

import build.host_memory
import deepinfer.host_memory
from build.host_memory import host_memory

MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
V2 = "30 23 0:26 {shown} {mount} rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"
V1 = "35 31 0:32 {shown} {mount} rw,relatime - cgroup cgroup rw,memory"
CPU = "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu"


def process(root: Path, groups: str, *mounts: str) -> None:
    """A process in these groups, which sees these mounts."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    (root / "proc/self/mountinfo").write_text(
        "".join(f"{mount}\n" for mount in ("21 1 0:20 / / rw - ext4 x rw", *mounts))
    )


def limit(root: Path, group: str, text: object, name: str = "memory.max") -> None:
    folder = root / group
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"{text}\n")


def test_both_programs_read_it_alike() -> None:
    one, other = (Path(str(module.__file__)).read_bytes() for module in (build.host_memory, deepinfer.host_memory))
    assert one == other


def test_the_smallest_limit_on_the_path_to_the_root_counts(tmp_path: Path) -> None:
    process(tmp_path, "0::/a.slice/b.scope/c\n", V2.format(shown="/", mount="/sys/fs/cgroup"))
    assert host_memory(tmp_path) == MACHINE
    limit(tmp_path, "sys/fs/cgroup/a.slice/b.scope/c", "max")
    assert host_memory(tmp_path) == MACHINE
    limit(tmp_path, "sys/fs/cgroup/a.slice/b.scope", 3 * 2**20)
    limit(tmp_path, "sys/fs/cgroup/a.slice", 2 * 2**20)
    limit(tmp_path, "sys/fs/cgroup/a.slice/other", 5)
    limit(tmp_path, "sys/fs", 7)
    assert host_memory(tmp_path) == 2 * 2**20
    limit(tmp_path, "sys/fs/cgroup/a.slice/b.scope/c", 2**20)
    assert host_memory(tmp_path) == 2**20


def test_a_container_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    process(tmp_path, "0::/\n", V2.format(shown="/", mount="/sys/fs/cgroup"))
    limit(tmp_path, "sys/fs/cgroup", 2**29)
    assert host_memory(tmp_path) == min(2**29, MACHINE)


@pytest.mark.parametrize(
    ("group", "shown", "folder"),
    [
        ("/", "/", ""),
        ("/docker/3f", "/docker/3f", ""),  # the machine's name of the group, and a mount that begins with it
        ("/docker/3f/inner", "/docker/3f", "inner"),
        ("/docker/3f", "/", "docker/3f"),
        ("/docker/3f", "/kubepods/9", ""),
        ("/../../3f", "/", ""),
    ],
)
def test_version_1_beside_other_groups(tmp_path: Path, group: str, shown: str, folder: str) -> None:
    groups = f"9:name=systemd:/x\n4:cpuset,memory:{group}\n1:cpu:/y\n0::/\n"
    unified = V2.format(shown="/", mount="/sys/fs/cgroup/unified")
    process(tmp_path, groups, CPU, V1.format(shown=shown, mount="/sys/fs/cgroup/memory"), unified)
    limit(tmp_path, "sys/fs/cgroup/memory", 9223372036854771712, "memory.limit_in_bytes")
    limit(tmp_path, "sys/fs/cgroup/cpu/y", 3, "memory.limit_in_bytes")
    assert host_memory(tmp_path) == MACHINE
    limit(tmp_path, f"sys/fs/cgroup/memory/{folder}", 2**20, "memory.limit_in_bytes")
    assert host_memory(tmp_path) == 2**20


def test_names_that_mountinfo_writes_as_numbers(tmp_path: Path) -> None:
    mount = V2.format(shown="/my\\134x2dslice", mount="/sys/fs/my\\040cgroup")
    process(tmp_path, "0::/my\\x2dslice/a:b\n", mount)
    limit(tmp_path, "sys/fs/my cgroup/a:b", 2**20)
    assert host_memory(tmp_path) == 2**20


@pytest.mark.parametrize("text", ["", "max", "-1", "1.5", "many", "0x10", " "])
def test_what_is_no_number_limits_nothing(tmp_path: Path, text: str) -> None:
    process(tmp_path, "0::/a\n", V2.format(shown="/", mount="/sys/fs/cgroup"))
    limit(tmp_path, "sys/fs/cgroup/a", text)
    assert host_memory(tmp_path) == MACHINE


def test_what_cannot_be_read_limits_nothing(tmp_path: Path) -> None:
    assert host_memory(tmp_path) == MACHINE, "no /proc"
    process(tmp_path, "0::/a\n", V2.format(shown="/", mount="/sys/fs/cgroup"))
    (tmp_path / "sys/fs/cgroup/a/memory.max").mkdir(parents=True)
    assert host_memory(tmp_path) == MACHINE, "a folder in the place of the file"
    limit(tmp_path, "sys/fs/cgroup", 2**20)
    assert host_memory(tmp_path) == 2**20, "the others count all the same"


@pytest.mark.parametrize(
    ("groups", "mounts"),
    [
        ("", ""),
        ("nonsense\n4:memory\n\n", "1 2 3 - cgroup2\n - cgroup2 x\ncgroup2 - cgroup2 a b\n"),
        ("\0\xff:", "\xff"),
    ],
)
def test_tables_that_are_none(tmp_path: Path, groups: str, mounts: str) -> None:
    process(tmp_path, groups)
    (tmp_path / "proc/self/mountinfo").write_text(mounts, encoding="latin-1")
    limit(tmp_path, "sys/fs/cgroup", 5)
    assert host_memory(tmp_path) == MACHINE


def test_of_this_process_it_is_no_more_than_the_machine_has() -> None:
    assert 0 < host_memory() <= MACHINE
