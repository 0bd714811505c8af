"""Replacing NCCL's file and putting it back, with real files."""

from __future__ import annotations

from pathlib import Path

import pytest

from build.errors import EnvironmentCannot
from build.host.nccl import replace_nccl, restore_nccl


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "libnccl.so.2").write_bytes(b"old library")
    (tmp_path / "new.so").write_bytes(b"new library")
    return folder


def test_replaced_file_is_whole_and_comes_back(site: Path) -> None:
    loaded, new = site / "libnccl.so.2", site.parent / "new.so"
    replace_nccl(loaded, new, "2.32.3")
    assert loaded.read_bytes() == b"new library"
    assert restore_nccl() == [f"put the old {loaded} back"]
    assert loaded.read_bytes() == b"old library"
    assert [path.name for path in site.iterdir()] == ["libnccl.so.2"]


def test_a_running_program_keeps_the_file_it_opened(site: Path) -> None:
    loaded = site / "libnccl.so.2"
    with loaded.open("rb") as mapped:
        replace_nccl(loaded, site.parent / "new.so", "2.32.3")
        assert mapped.read() == b"old library"


def test_replacing_twice_keeps_the_original(site: Path) -> None:
    loaded, new = site / "libnccl.so.2", site.parent / "new.so"
    replace_nccl(loaded, new, "2.32.3")
    replace_nccl(loaded, new, "2.32.3")
    new.write_bytes(b"newer library")
    replace_nccl(loaded, new, "2.33.0")
    assert loaded.read_bytes() == b"newer library"
    restore_nccl()
    assert loaded.read_bytes() == b"old library"


def test_of_a_torch_that_was_reinstalled_the_library_is_kept_that_it_brought(site: Path) -> None:
    loaded, new = site / "libnccl.so.2", site.parent / "new.so"
    replace_nccl(loaded, new, "2.32.3")
    loaded.unlink()
    loaded.write_bytes(b"a later release that pip installed")
    replace_nccl(loaded, new, "2.32.3")
    assert restore_nccl() == [f"put the old {loaded} back"]
    assert loaded.read_bytes() == b"a later release that pip installed"
    assert [path.name for path in site.iterdir()] == ["libnccl.so.2"]


def test_an_upgrade_that_was_interrupted_keeps_the_original(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, new = site / "libnccl.so.2", site.parent / "new.so"
    replace_nccl(loaded, new, "2.32.3")
    new.write_bytes(b"newer library")
    with monkeypatch.context() as broken, pytest.raises(EnvironmentCannot):
        broken.setattr("build.host.nccl.shutil.copyfile", interrupted)
        replace_nccl(loaded, new, "2.33.0")
    assert loaded.read_bytes() == b"new library"
    replace_nccl(loaded, new, "2.33.0")
    assert loaded.read_bytes() == b"newer library"
    restore_nccl()
    assert loaded.read_bytes() == b"old library"


def interrupted(*_: object) -> None:
    raise OSError("the copy did not end")


def test_a_link_is_followed_and_stays_a_link(site: Path) -> None:
    real = site / "libnccl.so.2.28"
    (site / "libnccl.so.2").rename(real)
    (site / "libnccl.so.2").symlink_to(real.name)
    replace_nccl(site / "libnccl.so.2", site.parent / "new.so", "2.32.3")
    assert (site / "libnccl.so.2").is_symlink()
    assert real.read_bytes() == b"new library"


def test_what_somebody_else_installed_since_is_left_alone(site: Path) -> None:
    loaded = site / "libnccl.so.2"
    replace_nccl(loaded, site.parent / "new.so", "2.32.3")
    loaded.write_bytes(b"a later release that pip installed")
    assert restore_nccl() == [f"left {loaded} as it is: it was replaced by something else since"]
    assert loaded.read_bytes() == b"a later release that pip installed"
    assert restore_nccl() == []


def test_restoring_what_was_never_replaced_does_nothing(site: Path) -> None:
    assert restore_nccl() == []
    assert (site / "libnccl.so.2").read_bytes() == b"old library"


def test_a_missing_target_is_the_environments_fault(site: Path) -> None:
    with pytest.raises(EnvironmentCannot, match="cannot be replaced"):
        replace_nccl(site / "absent" / "libnccl.so.2", site.parent / "new.so", "2.32.3")
