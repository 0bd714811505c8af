"""The folder of packs: found by content or name, unpacked whole, refused when broken."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from build.errors import EnvironmentCannot
from build.host.offline import OfflineFolder


@pytest.fixture
def packs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "packs"
    folder.mkdir()
    return folder


def pack(target: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(target, "w:xz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o755
            tar.addfile(info, io.BytesIO(content))


def test_a_source_is_found_by_its_hash_not_its_name(packs: Path) -> None:
    (packs / "sources").mkdir()
    (packs / "sources" / "renamed.tar.gz").write_bytes(b"sdist")
    folder = OfflineFolder(packs)
    assert folder.by_sha256(hashlib.sha256(b"sdist").hexdigest()) == packs / "sources" / "renamed.tar.gz"
    assert folder.by_sha256(hashlib.sha256(b"other").hexdigest()) is None


def test_tritons_are_found_packed_and_unpacked(packs: Path) -> None:
    pack(packs / "triton-3.7.1.tar.xz", {"triton/__init__.py": b"", "triton/backends/nvidia/bin/ptxas": b"#!"})
    (packs / "triton-3.5.1" / "triton").mkdir(parents=True)
    found = OfflineFolder(packs).tritons()
    assert sorted(found) == ["3.5.1", "3.7.1"]
    ptxas = found["3.7.1"] / "triton/backends/nvidia/bin/ptxas"
    assert ptxas.stat().st_mode & 0o100, "ptxas has to stay executable"


def test_a_pack_made_of_the_current_folder_is_unpacked(packs: Path) -> None:
    tree = packs / "tree"
    (tree / "usr" / "include").mkdir(parents=True)
    (tree / "usr" / "include" / "libdw.h").touch()
    (tree / "usr" / "link.h").symlink_to("include/libdw.h")
    with tarfile.open(packs / "elfutils.tar.xz", "w:xz") as tar:
        tar.add(tree, arcname=".")
    found = OfflineFolder(packs).tree("elfutils")
    assert found is not None and (found / "usr" / "include" / "libdw.h").is_file()
    assert (found / "usr" / "link.h").readlink() == Path("include/libdw.h")


def test_unpacking_again_uses_what_is_there(packs: Path) -> None:
    pack(packs / "nccl.tar.xz", {"nvidia/nccl/lib/libnccl.so.2": b"library"})
    first = OfflineFolder(packs).tree("nccl")
    assert first is not None
    (first / "mark").touch()
    assert OfflineFolder(packs).tree("nccl") == first
    assert (first / "mark").exists()


def test_a_changed_pack_is_unpacked_anew(packs: Path) -> None:
    pack(packs / "nccl.tar.xz", {"a": b"1"})
    first = OfflineFolder(packs).tree("nccl")
    pack(packs / "nccl.tar.xz", {"a": b"2"})
    second = OfflineFolder(packs).tree("nccl")
    assert second is not None and second != first
    assert (second / "a").read_bytes() == b"2"


def test_a_truncated_pack_is_refused_and_leaves_nothing(packs: Path, tmp_path: Path) -> None:
    pack(packs / "nccl.tar.xz", {"a": b"x" * 100_000})
    whole = (packs / "nccl.tar.xz").read_bytes()
    (packs / "nccl.tar.xz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(EnvironmentCannot, match=r"nccl\.tar\.xz cannot be unpacked"):
        OfflineFolder(packs).tree("nccl")
    assert not list((tmp_path / "cache" / "host" / "packs").iterdir())


def test_a_pack_that_leaves_its_folder_is_refused(packs: Path, tmp_path: Path) -> None:
    pack(packs / "nccl.tar.xz", {"../../escaped": b"x"})
    with pytest.raises(EnvironmentCannot):
        OfflineFolder(packs).tree("nccl")
    assert not list(tmp_path.rglob("escaped"))


def test_a_missing_folder_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentCannot, match="not a folder") as caught:
        OfflineFolder(tmp_path / "absent")
    assert caught.value.next_step
