"""The program beside the compiler, really run: a twenty-line extension compiled, stripped, repacked, judged."""

import base64
import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from build.errors import CellFailed
from build.matrix.model import Component, Source
from build.wheels.diagnose import check_linking, compile_failed, error_line
from build.wheels.recipe import INSIDE, Places, make_recipe

LIBSTDCXX = Path("/usr/lib/x86_64-linux-gnu/libstdc++.so.6")
needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None or not LIBSTDCXX.exists(), reason="needs g++ with its shared libstdc++"
)

CODE = """
#include <Python.h>
#include <regex>
static int matches(const char *text) { return std::regex_match(text, std::regex("a+b")); }
static PyObject *check(PyObject *, PyObject *) { return PyLong_FromLong(matches("aab")); }
static PyMethodDef methods[] = {{"check", check, METH_NOARGS, ""}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "tiny._C", "", -1, methods};
PyMODINIT_FUNC PyInit__C() { return PyModule_Create(&module); }
"""
SETUP = """
from setuptools import Extension, setup
setup(name="tiny", version="1.0", packages=["tiny"],
      ext_modules=[Extension("tiny._C", ["tiny/module.cpp"], language="c++")])
"""


def source(folder: Path, code: str = CODE, setup: str = SETUP) -> Path:
    (folder / "tiny").mkdir(parents=True)
    (folder / "setup.py").write_text(setup)
    (folder / "tiny/__init__.py").write_text("")
    (folder / "tiny/module.cpp").write_text(code)
    return folder


def component(kind: str = "wheel", **environment: str) -> Component:
    assert kind in ("wheel", "extension")
    return Component("tiny", "Tiny", kind, "1.0", Source(path="."), environment=environment)  # type: ignore[arg-type]


def carry_out(part: Component, tree: Path, tmp_path: Path) -> tuple[int, str, Path]:
    """Run the job as a container would; status, what it printed, and the result folder."""
    places = Places(
        python=sys.executable,
        source=str(tree),
        out=str(tmp_path / "out"),
        work=str(tmp_path / "work"),
        result=str(tmp_path / "result"),
        path=(str(Path(sys.executable).parent), "/usr/bin", "/bin"),
        libstdcxx=str(LIBSTDCXX),
    )
    job = tmp_path / "job.json"
    job.write_text(json.dumps(make_recipe(part, places, jobs=1).to_job()))
    done = subprocess.run([sys.executable, INSIDE, job], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr, tmp_path / "result"


def record(result: Path) -> dict[str, Any]:
    return dict(json.loads((result / "result.json").read_text()))


@needs_compiler
def test_a_wheel_comes_out_stripped_with_a_true_record_and_works(tmp_path: Path) -> None:
    status, output, result = carry_out(component(), source(tmp_path / "src"), tmp_path)
    assert status == 0, output
    found = record(result)
    wheel = result / found["artefact"]
    (module,) = found["modules"]
    assert "libstdc++.so.6" in module["needed"] and module["size"] < module["size_before"]
    check_linking("cpu/tiny", found, tmp_path / "log")
    with zipfile.ZipFile(wheel) as archive:
        lines = archive.read("tiny-1.0.dist-info/RECORD").decode().splitlines()
        listed = {line.rsplit(",", 2)[0]: line.rsplit(",", 2)[1] for line in lines}
        assert sorted(listed) == sorted(archive.namelist())
        for name, told in listed.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(archive.read(name)).digest()).rstrip(b"=").decode()
            assert told in ("", f"sha256={digest}"), name
        archive.extractall(tmp_path / "site")
    program = "import tiny._C; raise SystemExit(0 if tiny._C.check() == 1 else 3)"
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path / "site", check=True)


@needs_compiler
def test_an_extension_comes_out_as_its_shared_object(tmp_path: Path) -> None:
    status, output, result = carry_out(component("extension"), source(tmp_path / "src"), tmp_path)
    assert status == 0, output
    assert record(result)["artefact"].startswith("_C.cpython-")
    assert sorted(path.name for path in result.iterdir()) == sorted([record(result)["artefact"], "result.json"])


@needs_compiler
def test_equal_sources_give_equal_wheels(tmp_path: Path) -> None:
    wheels = []
    for run in ("one", "two"):
        tree = tmp_path / "src"
        shutil.rmtree(tree, ignore_errors=True)
        status, output, result = carry_out(component(), source(tree), tmp_path)
        assert status == 0, output
        wheels.append((result / record(result)["artefact"]).read_bytes())
        shutil.move(result, tmp_path / run)
        shutil.rmtree(tmp_path / "out")
        shutil.rmtree(tmp_path / "work")
    assert wheels[0] == wheels[1]


@needs_compiler
def test_libstdcxx_linked_statically_is_refused_with_the_cure(tmp_path: Path) -> None:
    status, output, result = carry_out(component(LDFLAGS="-static-libstdc++"), source(tmp_path / "src"), tmp_path)
    assert status == 0, output
    with pytest.raises(CellFailed, match="linked statically into _C") as caught:
        check_linking("cpu/tiny", record(result), tmp_path / "log")
    assert "LDFLAGS" in caught.value.next_step


@needs_compiler
def test_a_compile_error_ends_with_its_status_and_its_line(tmp_path: Path) -> None:
    broken = CODE.replace("PyLong_FromLong", "PyLong_FromNowhere")
    status, output, result = carry_out(component(), source(tmp_path / "src", broken), tmp_path)
    assert status != 0 and not result.exists()
    log = tmp_path / "cpu-tiny.log"
    log.write_text(output)
    problem = compile_failed(component(), "cpu/tiny", status, log, memory_gib=3.0, out_of_memory=False)
    assert "PyLong_FromNowhere" in problem.cause and "module.cpp:5" in problem.cause
    assert str(log) in str(problem) and "next step" in str(problem)
    assert problem.exit_code == 6


@needs_compiler
def test_two_wheels_or_none_are_no_product(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/other-1.0-py3-none-any.whl").write_bytes(b"")
    status, output, _ = carry_out(component(), source(tmp_path / "src"), tmp_path)
    assert status == 1 and "expected one *.whl" in output


def test_a_killed_compile_ends_as_a_shell_would_say_it(tmp_path: Path) -> None:
    suicide = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    status, _, _ = carry_out(component(), source(tmp_path / "src", setup=suicide), tmp_path)
    assert status == 137


# Reading logs.

NINJA = """\
[1/3] c++ -MMD -c /build/src/csrc/a.cpp -o a.o
FAILED: a.o
In file included from /build/src/csrc/a.cpp:1:
/build/src/csrc/a.hpp:4:10: fatal error: elfutils/libdwfl.h: No such file or directory
    4 | #include <elfutils/libdwfl.h>
compilation terminated.
ninja: build stopped: subcommand failed.
Traceback (most recent call last):
  File "torch/utils/cpp_extension.py", line 2597, in _run_ninja_build
subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1.
RuntimeError: Error compiling objects for extension
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (NINJA, "/build/src/csrc/a.hpp:4:10: fatal error: elfutils/libdwfl.h: No such file or directory"),
        ("a.cpp:1:1: error: first\nb.cpp:2:2: error: second\n", "a.cpp:1:1: error: first"),
        ("x.o: undefined reference to `ncclCommProperties'\ncollect2: error: ld returned 1 exit status\n",
         "x.o: undefined reference to `ncclCommProperties'"),
        ("/usr/bin/ld: cannot find -lcudart: No such file\n", "/usr/bin/ld: cannot find -lcudart: No such file"),
        ("Traceback\n  File x\nModuleNotFoundError: No module named 'torch'\n",
         "ModuleNotFoundError: No module named 'torch'"),
        ("cc1plus: a.cpp:3:1: error: x\nas: No space left on device\n", "as: No space left on device"),
        ("just\nsome text\n\n", "some text"),
        ("", "it printed nothing"),
    ],
)  # fmt: skip
def test_the_telling_line_of_a_log(text: str, line: str) -> None:
    assert error_line(text) == line


def test_a_compiler_that_was_killed_for_memory_says_what_to_raise(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("c++: fatal error: Killed signal terminated program cc1plus\n")
    problem = compile_failed(component(), "flagtree/tiny", 1, log, memory_gib=3.75, out_of_memory=False)
    assert "3.8 GiB" in problem.cause or "3.7 GiB" in problem.cause
    assert "components.tiny.memory_gib" in problem.next_step
