"""Which CUDA runtimes of a base are put on the loader's path: the rules, and what is done inside the image."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from build.image import lay
from build.image.library_path import (
    Candidate,
    LibraryPath,
    choose,
    needs_examination,
    sonames_in_cache,
)
from build.inspection import Library
from tests.image_stand_ins import SITE, TRITON_CUDART, base_facts

ELF = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00\x3e\x00"


def candidate(path: str = TRITON_CUDART, version: str | None = None, **changes: object) -> Candidate:
    made = Candidate(path, "libcudart.so.12", version, path, ELF, 728800)
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def decide(*candidates: Candidate, known: tuple[str, ...] = ()) -> LibraryPath:
    return choose(candidates, known, libc="glibc", has_ldconfig=True)


def test_only_other_majors_than_torchs_are_looked_at() -> None:
    assert [library.path for library in needs_examination(base_facts())] == [TRITON_CUDART]


def test_nothing_is_done_where_torch_has_cuda_12_itself() -> None:
    runtime = Library(f"{SITE}/nvidia/cuda_runtime/lib/libcudart.so.12", "libcudart.so.12", "12.8.90")
    facts = base_facts(cuda="12.8", cudart=(Library(TRITON_CUDART, "libcudart.so.12", "12.8.57"), runtime))
    assert needs_examination(facts) == ()


def test_nothing_is_done_without_cuda() -> None:
    assert needs_examination(base_facts(cuda=None)) == ()


def test_the_hidden_runtime_is_copied_under_its_full_version_with_its_soname() -> None:
    (copy,) = decide(candidate()).copies
    assert (copy.source, copy.target) == (TRITON_CUDART, "/opt/deepinfer/lib/libcudart.so.12.8.57")
    assert (copy.soname, copy.version) == ("libcudart.so.12", "12.8.57")


def test_a_version_that_contradicts_the_soname_does_not_name_the_file() -> None:
    (copy,) = decide(candidate("/srv/cuda-13.1.0/libcudart.so.12")).copies
    assert copy.target == "/opt/deepinfer/lib/libcudart.so.12"


def test_a_library_that_the_loader_finds_is_left_alone() -> None:
    decision = decide(candidate(), known=("libcudart.so.12",))
    assert decision.copies == ()
    assert "the loader finds a libcudart.so.12 already" in decision.notes[0]


def test_the_newest_of_several_is_taken_by_number_not_by_text() -> None:
    older, newer = candidate("/a/libcudart.so.12.8.90"), candidate("/b/libcudart.so.12.10.7")
    for order in ((older, newer), (newer, older)):
        decision = decide(*order)
        assert [copy.version for copy in decision.copies] == ["12.10.7"]
        (note,) = decision.notes
        assert note.startswith("/a/libcudart.so.12.8.90: /b/libcudart.so.12.10.7 is taken")


def test_each_major_version_gets_its_own_copy() -> None:
    eleven = candidate("/a/libcudart.so.11.8.89", soname="libcudart.so.11")
    assert [copy.soname for copy in decide(candidate(), eleven).copies] == ["libcudart.so.11", "libcudart.so.12"]


def test_one_file_under_two_names_is_no_choice_to_tell_of() -> None:
    link = candidate(TRITON_CUDART.removesuffix(".8.57"), real=TRITON_CUDART)
    decision = decide(link, candidate())
    assert len(decision.copies) == 1
    assert decision.notes == ()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"head": b"", "error": "No such file or directory", "real": "/gone"}, "a link to /gone, which"),
        ({"head": b"", "error": "Permission denied"}, "cannot be read: Permission denied"),
        ({"head": b"/* GNU ld script */\n"}, "not an ELF file"),
        ({"head": b""}, "not an ELF file"),
        ({"head": ELF[:4] + b"\x01" + ELF[5:]}, "not a shared library for x86-64"),
        ({"head": ELF[:18] + b"\xb7\x00"}, "not a shared library for x86-64"),
        ({"head": ELF[:16] + b"\x01\x00" + ELF[18:]}, "not a shared library for x86-64"),
        ({"soname": "libcudart.so"}, "names no version"),
    ],
)
def test_what_is_no_loadable_library_is_skipped_with_the_reason(change: dict[str, object], reason: str) -> None:
    decision = decide(candidate(**change))
    assert decision.copies == ()
    assert reason in decision.notes[0]
    assert TRITON_CUDART in decision.notes[0]


def test_a_broken_newer_one_does_not_hide_a_good_older_one() -> None:
    broken = candidate("/a/libcudart.so.12.9.1", error="No such file or directory", real="/b", head=b"")
    assert [copy.version for copy in decide(candidate(), broken).copies] == ["12.8.57"]


@pytest.mark.parametrize(
    ("libc", "has_ldconfig", "said"), [("glibc", False, "it has no ldconfig"), ("unknown", True, "is not glibc")]
)
def test_a_base_without_a_loader_cache_is_told(libc: str, has_ldconfig: bool, said: str) -> None:
    decision = choose([candidate()], (), libc=libc, has_ldconfig=has_ldconfig)
    assert decision.copies == ()
    assert said in decision.problem
    assert "libcudart.so.12" in decision.problem


def test_a_base_without_a_loader_cache_and_nothing_to_do_has_no_problem() -> None:
    assert choose([], (), libc="unknown", has_ldconfig=False) == LibraryPath()


@given(st.permutations([candidate(f"/{name}/libcudart.so.12.{name}") for name in ("1.1", "4.0", "8.57", "8.90")]))
def test_the_choice_does_not_depend_on_the_order_of_the_inspection(candidates: list[Candidate]) -> None:
    assert decide(*candidates).copies == decide(*sorted(candidates, key=lambda one: one.path)).copies
    assert decide(*candidates).copies[0].version == "12.8.90"


def test_the_loaders_list_is_read_by_architecture() -> None:
    printed = (
        "3 libs found in cache `/etc/ld.so.cache'\n"
        "\tlibcudart.so.12 (libc6,x86-64) => /opt/x/libcudart.so.12\n"
        "\tlibcudart.so.11 (libc6) => /usr/lib/i386-linux-gnu/libcudart.so.11\n"
        "\tlibz.so.1 (libc6,x86-64, OS ABI: Linux 3.2.0) => /lib/x86_64-linux-gnu/libz.so.1\n"
    )
    assert sonames_in_cache(printed) == {"libcudart.so.12", "libz.so.1"}


def test_the_copy_is_readable_by_all_and_linked_by_its_soname(tmp_path: Path) -> None:
    source = tmp_path / "closed" / "libcudart.so.12.8.57"
    source.parent.mkdir(mode=0o700)
    source.write_bytes(ELF)
    source.chmod(0o600)
    target = tmp_path / "lib" / source.name
    lay.copy_libraries([{"source": str(source), "target": str(target), "soname": "libcudart.so.12"}])
    assert target.read_bytes() == ELF
    assert target.stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "lib" / "libcudart.so.12").readlink() == Path("libcudart.so.12.8.57")


def test_a_library_that_vanished_stops_the_build(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gone = {"source": str(tmp_path / "gone"), "target": str(tmp_path / "lib/x"), "soname": "x"}
    with pytest.raises(SystemExit):
        lay.copy_libraries([gone])
    assert "is not in the base any more" in capsys.readouterr().err


def test_the_user_is_added_once_and_to_files_without_a_last_newline(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh")
    for _ in range(2):
        lay.add_user(tmp_path)
    lines = (tmp_path / "etc/passwd").read_text().splitlines()
    assert [line.split(":")[:4] for line in lines] == [["root", "x", "0", "0"], ["deepinfer", "x", "10001", "10001"]]
    assert (tmp_path / "etc/group").read_text() == "deepinfer:x:10001:\n"


def test_a_base_that_uses_the_name_for_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("deepinfer:x:1000:1000::/home/me:/bin/sh\n")
    with pytest.raises(SystemExit):
        lay.add_user(tmp_path)


def test_replaced_files_are_removed_by_pattern(tmp_path: Path) -> None:
    for name in ("nvidia_nccl_cu13-2.28.9.dist-info/RECORD", "nvidia/nccl/lib/libnccl.so.2", "nvidia/other/file"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("old")
    lay.remove(f"{tmp_path}/nvidia_nccl_cu13-*.dist-info\n{tmp_path}/nvidia/nccl/lib/libnccl*\n{tmp_path}/none*\n")
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert left == ["nvidia/other/file"]
