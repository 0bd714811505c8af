"""Archives are the same bytes for the same content; what belongs to this machine stays out; mirrors are read."""

from __future__ import annotations

import os
import tarfile
import time
from pathlib import Path

import pytest

from build.bases import archives, rootfs
from build.errors import EnvironmentCannot, MatrixError


def fill(tree: Path) -> None:
    (tree / "etc").mkdir(parents=True)
    (tree / "etc/hostname").write_text("this machine")
    (tree / "etc/os-release").write_text("Debian")
    (tree / "usr/bin").mkdir(parents=True)
    (tree / "usr/bin/tool").write_text("#!/bin/sh\n")
    (tree / "usr/bin/tool").chmod(0o755)
    (tree / "bin").symlink_to("usr/bin")
    os.link(tree / "usr/bin/tool", tree / "usr/bin/again")


def test_a_folder_is_packed_the_same_whenever_it_was_made(tmp_path: Path) -> None:
    packed = []
    for name, moment in (("one", time.time()), ("two", 1_000_000_000)):
        fill(tmp_path / name)
        os.utime(tmp_path / name / "etc/os-release", (moment, moment))
        target = tmp_path / f"{name}.tar.gz"
        archives.pack_folder(tmp_path / name, target, leave_out=lambda path: path == "etc/hostname")
        packed.append(target.read_bytes())
    assert packed[0] == packed[1]
    with tarfile.open(tmp_path / "one.tar.gz") as archive:
        members = {info.name: info for info in archive}
    assert list(members) == [
        "bin",
        "etc",
        "etc/os-release",
        "usr",
        "usr/bin",
        "usr/bin/again",
        "usr/bin/tool",
    ]
    assert members["bin"].linkname == "usr/bin"
    assert members["usr/bin/tool"].islnk()
    assert members["usr/bin/again"].mode == 0o755
    assert {info.mtime for info in members.values()} == {archives.EPOCH}


def test_an_exported_container_is_repacked_in_order(tmp_path: Path) -> None:
    fill(tmp_path / "tree")
    exported = tmp_path / "export.tar"
    with tarfile.open(exported, "w") as archive:
        for name in ("usr/bin/tool", "usr/bin/again", "etc/hostname", "etc/os-release", "etc", "bin"):
            archive.add(tmp_path / "tree" / name, arcname=name, recursive=False)
    archives.repack(exported, tmp_path / "out.tar.gz", leave_out=lambda path: path == "etc/hostname")
    with tarfile.open(tmp_path / "out.tar.gz") as archive:
        members = archive.getmembers()
        assert [info.name for info in members] == ["bin", "etc", "etc/os-release", "usr/bin/tool", "usr/bin/again"]
        assert archive.extractfile("usr/bin/again").read() == b"#!/bin/sh\n"  # type: ignore[union-attr]


def test_files_and_links_are_packed_with_their_folders(tmp_path: Path) -> None:
    archives.pack_files({"a/b/lib.so.1": b"elf"}, {"a/b/lib.so": "lib.so.1"}, tmp_path / "out.tar.gz")
    with tarfile.open(tmp_path / "out.tar.gz") as archive:
        assert [(info.name, info.type) for info in archive] == [
            ("a", tarfile.DIRTYPE),
            ("a/b", tarfile.DIRTYPE),
            ("a/b/lib.so", tarfile.SYMTYPE),
            ("a/b/lib.so.1", tarfile.REGTYPE),
        ]
        assert archive.extractfile("a/b/lib.so").read() == b"elf"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "out"),
    [
        ("etc/resolv.conf", True),
        ("etc/apt/sources.list", True),
        ("etc/machine-id", True),
        ("var/log/bootstrap.log", True),
        ("var/cache/apt/archives/x.deb", True),
        ("dev/null", True),
        ("dev", False),
        ("etc/apt/trusted.gpg.d/debian.asc", False),
        ("var/lib/dpkg/status", False),
        ("usr/bin/dpkg", False),
    ],
)
def test_what_belongs_to_the_machine_stays_out_of_a_root_file_system(name: str, out: bool) -> None:
    assert rootfs._leave_out(name) is out


DEB822 = """Types: deb
URIs: https://mirror.example.org/debian
Suites: bookworm bookworm-updates
Components: main

Types: deb
URIs: https://mirror.example.org/debian-security/
Suites: bookworm-security
"""


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {"debian.sources": DEB822},
            ("https://mirror.example.org/debian", "https://mirror.example.org/debian-security/"),
        ),
        (
            {"old.list": "# deb http://a/debian x\ndeb [arch=amd64] http://m.org/debian bookworm main\n"},
            ("http://m.org/debian", None),
        ),
        (
            {"ubuntu.list": "deb http://archive.ubuntu.com/ubuntu noble main\n"},
            (rootfs.PUBLIC, f"{rootfs.PUBLIC}-security"),
        ),
        ({"debian.sources.bak": DEB822}, (rootfs.PUBLIC, f"{rootfs.PUBLIC}-security")),
    ],
)
def test_the_mirror_is_the_one_that_this_machine_uses(
    tmp_path: Path, files: dict[str, str], expected: tuple[str, str | None]
) -> None:
    (tmp_path / "sources.list.d").mkdir()
    for name, text in files.items():
        (tmp_path / "sources.list.d" / name).write_text(text)
    assert rootfs.mirrors(tmp_path) == expected


def test_the_image_keeps_the_public_address_only() -> None:
    text = rootfs.public_sources("trixie")
    assert text.count(rootfs.PUBLIC) == 3
    assert "trixie-security" in text


def test_an_unknown_suite_is_refused() -> None:
    with pytest.raises((EnvironmentCannot, MatrixError), match="potato"):
        rootfs.rootfs(None, "potato")  # type: ignore[arg-type]
