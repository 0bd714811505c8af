"""The programs of the gates, run on this machine by the same launcher that serves the host's prefix."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from build.gates.collect import Tasks
from build.gates.judge.rows import Ending
from build.gates.launcher import LocalLauncher
from build.gates.programs import conductor, files
from build.gates.programs.elf import NotElf, read_elf

LIBRARY = """
#include <string>
#ifdef PLANTED
namespace at { struct Tensor { int planted(const std::string&) const; }; }
extern "C" int take(const at::Tensor* t) { return t->planted("x"); }
#endif
extern "C" __attribute__((weak)) int not_there_but_weak();
extern "C" int size(int n) { return not_there_but_weak ? 0 : (int) std::to_string(n).append(80, 'x').size(); }
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages, each with one shared object: good, planted, static, needy, versioned."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed: apt-get install g++")
    folder = tmp_path_factory.mktemp("libraries")
    source, lost = folder / "library.cpp", folder / "liblost.so.1"
    source.write_text(LIBRARY)
    common = ["g++", "-O1", "-fPIC", "-shared", str(source)]
    subprocess.run([*common, "-Wl,-soname,liblost.so.1", "-o", str(lost)], check=True)
    variants = {
        "good": [],
        "planted": ["-DPLANTED"],
        "static": ["-static-libstdc++", "-static-libgcc"],
        "needy": ["-Wl,--no-as-needed", str(lost)],
    }
    for name, flags in variants.items():
        (folder / name).mkdir()
        subprocess.run([*common, *flags, "-o", str(folder / name / "_C.so")], check=True)
    lost.unlink()
    return folder


def _linked(folder: Path, tmp_path: Path) -> dict[str, dict[str, Any]]:
    names = ("good", "planted", "static", "needy")
    tasks = Tasks(LocalLauncher(tmp_path), sys.executable)
    tasks.program("linked", "linked", roots=[str(folder)], modules={name: str(folder / name) for name in names})
    ending = tasks.run()["linked"]
    assert ending.ok, ending.stderr
    return {one["module"]: one for one in ending.facts()["libraries"]}


def test_linked_tells_what_the_loader_would_not_find(compiled: Path, tmp_path: Path) -> None:
    found = _linked(compiled, tmp_path)
    assert found["good"]["lost"] == []
    assert found["good"]["undefined"] > 0
    assert {need["how"] for need in found["good"]["needed"]} <= {"loaded", "system"}
    assert [lost["plain"].split("(")[0] for lost in found["planted"]["lost"]] == ["at::Tensor::planted"]
    assert [need["soname"] for need in found["needy"]["needed"] if need["how"] == "missing"] == ["liblost.so.1"]


def test_linked_sees_a_copy_of_libstdcxx(compiled: Path, tmp_path: Path) -> None:
    found = _linked(compiled, tmp_path)
    assert found["static"]["static_cxx"]
    assert "libstdc++.so.6" not in [need["soname"] for need in found["static"]["needed"]]
    assert found["good"]["static_cxx"] == []
    assert found["good"]["cxx"] is True


def test_elf_reads_names_versions_and_search_paths(compiled: Path) -> None:
    elf = read_elf(compiled / "good" / "_C.so")
    assert "libstdc++.so.6" in elf.needed
    symbols = {symbol.name: symbol for symbol in elf.symbols}
    assert symbols["size"].defined
    assert symbols["not_there_but_weak"].weak
    assert any(symbol.version.startswith("GLIBCXX_") for symbol in elf.symbols if not symbol.defined)


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"#!/bin/sh\n", b"\x7fELF\x01\x01" + b"\0" * 100])
def test_what_is_no_shared_object_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.so"
    path.write_bytes(content)
    with pytest.raises(NotElf):
        read_elf(path)


@settings(max_examples=150)
@given(data=st.data())
def test_a_damaged_file_gives_an_answer_or_a_refusal(
    compiled: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = bytearray((compiled / "good" / "_C.so").read_bytes())
    changes = data.draw(st.lists(st.tuples(st.integers(0, len(whole) - 1), st.integers(0, 255)), max_size=8))
    # Headers and tables are where a change matters: the file's first and last kilobytes.
    for at, value in changes:
        whole[at % 512 if value % 2 else -1 - at % 2048] = value
    cut = data.draw(st.integers(0, len(whole)))
    path = tmp_path_factory.getbasetemp() / "damaged.so"
    path.write_bytes(whole[:cut] if changes and changes[0][1] % 3 == 0 else whole)
    try:
        read_elf(path)
    except NotElf:
        return


def test_a_crash_a_hang_and_a_missing_program_are_told_apart() -> None:
    crash = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    hang = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    tasks: list[dict[str, Any]] = [
        {"name": "crash", "argv": [sys.executable, "-c", crash]},
        {"name": "hang", "argv": [sys.executable, "-c", hang], "timeout": 0.5},
        {"name": "lost", "argv": ["/nonexistent/program"]},
        {"name": "exit", "argv": [sys.executable, "-c", "import sys; sys.exit('a reason')"]},
    ]
    endings = {name: Ending(**facts) for name, facts in conductor.main(tasks, 2).items()}
    assert list(endings) == ["crash", "hang", "lost", "exit"]
    assert endings["crash"].problem() == "killed by SIGSEGV"
    assert endings["hang"].timed_out
    assert "hung" in endings["hang"].problem()
    assert endings["lost"].problem() == "status 127: /nonexistent/program: No such file or directory"
    assert endings["exit"].problem() == "status 1: a reason"


def test_a_process_that_a_task_leaves_behind_holds_nothing_up() -> None:
    leaves = "import subprocess; print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid)"
    ending = Ending(**conductor.run_task({"name": "leaves", "argv": [sys.executable, "-c", leaves], "timeout": 120}))
    os.kill(int(ending.stdout), signal.SIGKILL)  # it lives on while the ending is told
    assert ending.ok


def test_the_environment_of_a_task_is_laid_over_and_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATES_KEPT", "kept")
    monkeypatch.setenv("GATES_GONE", "gone")
    monkeypatch.setenv("PYTHONPATH", "/kept")
    names = "('GATES_KEPT', 'GATES_GONE', 'GATES_NEW', 'PYTHONPATH')"
    code = f"import os; print([os.environ.get(n) for n in {names}], os.getcwd())"
    env = {"GATES_NEW": "new", "PYTHONPATH": "/first"}
    ending = conductor.run_task(
        {"name": "x", "argv": [sys.executable, "-c", code], "env": env, "unset": ["GATES_GONE"]}
    )
    assert ending["stdout"].strip() == "['kept', None, 'new', '/first:/kept'] /"


def test_what_was_loaded_before_a_crash_is_still_told(tmp_path: Path) -> None:
    for name, text in {
        "sound": "value = 1\n",
        "raises": "raise RuntimeError('no luck')\n",
        "crashes": "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n",
        "later": "value = 2\n",
    }.items():
        (tmp_path / f"{name}.py").write_text(text)
    tasks = Tasks(LocalLauncher(tmp_path), sys.executable)
    names = ["sound", "raises", "crashes", "later"]
    tasks.program("loaded", "loaded", env={"PYTHONPATH": str(tmp_path)}, modules=names, library="")
    ending = tasks.run()["loaded"]
    assert ending.signal == "SIGSEGV"
    lines = ending.lines()
    assert [line["starts"] for line in lines if "starts" in line] == ["sound", "raises", "crashes"]
    errors = {line["module"]: line["error"] for line in lines if "module" in line}
    assert errors == {"sound": "", "raises": "RuntimeError: no luck"}
    assert ending.problem().startswith(f"killed by SIGSEGV at {tmp_path}/crashes.py:2")


def test_a_start_up_that_prints_without_a_line_end_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("print('welcome', end=' ')\n")
    metadata = "Metadata-Version: 2.1\nName: Some__Package.x\nVersion: 1.0\n"
    (site / "some_package_x-1.0.dist-info").mkdir()
    (site / "some_package_x-1.0.dist-info" / "METADATA").write_text(metadata)
    monkeypatch.setenv("PYTHONPATH", str(site))
    tasks = Tasks(LocalLauncher(tmp_path), sys.executable)
    tasks.program("neighbours", "neighbours", modules=["json"], ours=[], site="")
    ending = tasks.run()["neighbours"]
    assert ending.stdout.startswith("welcome ")
    (listed,) = [line["distributions"] for line in ending.lines() if "distributions" in line]
    assert "some-package-x" in {one["name"] for one in listed}, "as the inspection calls it"


def test_a_launcher_that_cannot_start_python_says_so_for_every_task(tmp_path: Path) -> None:
    tasks = Tasks(LocalLauncher(tmp_path), "/nonexistent/python")
    tasks.command("one", ["true"])
    assert tasks.run()["one"].problem() == "status 127: /nonexistent/python: No such file or directory"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA1234567890\n", "a private key"),
        ("token = ghp_" + "a1B2" * 9, "an access token"),
        ("url = https://me:secret@packages.example/simple\n", "a URL with a password"),
        ("[global]\nindex-url = https://packages.example/simple\n", "a package index"),
        ("fetched through mirror.internal.example today", "the host of pip's index"),
    ],
)
def test_secrets_in_added_text_are_found(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    needles = {"the host of pip's index": "mirror.internal.example"}
    assert files.search([str(path)], [], needles) == [{"path": str(path), "what": what}]


def test_examples_in_packages_and_binary_files_are_no_secrets(tmp_path: Path) -> None:
    text, binary, link = tmp_path / "doc.py", tmp_path / "data", tmp_path / "link"
    text.write_text('"""urlopen("http://user:pass@host/") and -----BEGIN PRIVATE KEY----- as words"""')
    binary.write_bytes(b"\0https://me:secret@packages.example/")
    link.symlink_to("/nonexistent")
    assert files.search([str(text), str(binary), str(link)], [str(tmp_path)], {}) == []


def test_added_files_are_those_that_the_base_has_not_or_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = {"/same": "5 100", "/changed": "5 100", "/odd\nname\udcff": "1 1"}
    monkeypatch.setattr(files, "listing", lambda: base)
    packed = tmp_path / "base"
    packed.write_text(files.packed_listing())
    now = {"/same": "5 100", "/changed": "6 100", "/new": "link /same", "/tmp/own": "1 1"}
    monkeypatch.setattr(files, "listing", lambda: now)
    assert files.added_files(packed, ["/tmp/own"]) == ["/changed", "/new"]


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    assert files.writable(str(tmp_path)) == ""
    assert list(tmp_path.iterdir()) == []
    assert "No such file or directory" in files.writable(str(tmp_path / "none"))
