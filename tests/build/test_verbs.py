"""The verbs as a user types them: exit codes, where output goes, and that a plan changes nothing."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from build import cache, known, pipeline, verbs
from build.call import CallFailed
from build.errors import BuildError, CellFailed, EnvironmentCannot, GateFailed, NothingSelected
from build.gates.result import GateResult
from build.inspection import Inspection
from build.matrix.load import load_matrix
from build.matrix.model import Matrix, Target
from build.outcome import BuildOptions, Outcome, plan_target
from build.plan import Cell
from build.wheels.results import CellResult
from build.wheels.wheelhouse import Wheelhouse
from tests.image_stand_ins import base_facts

NO_DOCKER = "unix:///nonexistent/docker.sock"
VERBS = ("plan", "build", "inspect", "check", "doctor", "clean", "test")
Verb = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DOCKER_HOST", NO_DOCKER)
    monkeypatch.delenv("DEEPINFER_DEBUG", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def verb(folder: Path) -> Verb:
    """Run a verb; no Docker engine can be reached."""

    def run(*words: str, root: Path = cache.REPOSITORY, **variables: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-P", "-m", "invoke", "--search-root", str(root), *words]
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **variables}
        return subprocess.run(argv, cwd=root, env=environment, capture_output=True, text=True, check=False, timeout=120)

    return run


def listing(root: Path) -> dict[str, tuple[int, int, int]]:
    """Every name below a folder with size, time of change and inode."""
    found = {}
    for path in [root, *root.rglob("*")]:
        facts = path.lstat()
        found[str(path.relative_to(root))] = (facts.st_size, facts.st_mtime_ns, facts.st_ino)
    return found


# Through the command line.


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("plan", "--image", "flagtre"), 3, "did you mean 'flagtree'"),
        (("plan", "--image", "nope*"), 3, "no image matches 'nope*'"),
        (("plan", "--image", ","), 3, "names no image"),
        (("plan", "--component", "deep_gem"), 3, "did you mean 'deep_gemm'"),
        (("plan", "--image", "cpu", "--component", "nccl"), 3, "cpu has no component nccl"),
        (("build", "--image", "hos*"), 3, "--image host"),
        (("build", "--image", "$(id);`id`"), 3, "there is no image"),
        (("build", "--image", "cpu", "--base", "vendour"), 1, "use one of: auto, vendor, replica"),
        (("build", "--image", "cpu", "--jobs", "0"), 1, "--jobs '0' is not a whole number of at least 1"),
        (("build", "--image", "host", "--prefix", "~nobody-at-all/x"), 1, "--prefix"),
        (("build", "--image", "cpu", "--prefix", "/x"), 1, "--prefix is for the host"),
        (("build", "--replace-nccl"), 1, "--replace-nccl is for the host"),
        (("build", "--image", "host", "--wheels-from", "registry.example.org/x"), 1, "--wheels-from is for images"),
        (("build", "--image", "host,cpu", "--warm"), 1, "--warm is for images"),
        (("check", "--image", "cpu", "--prefix", "/x"), 1, "--prefix is for the host"),
        (("check", "--image", "cpu", "--gpus", "two"), 1, "--gpus 'two'"),
        (("build", "--image", "cpu"), 4, NO_DOCKER),
        (("check", "--image", "host"), 4, "./run build --image host"),
        (("build", "--image", "host", "--offline", "/nonexistent/packs"), 4, "is not a folder"),
    ],
)
def test_a_mistake_has_its_exit_code_and_says_what_to_do(
    verb: Verb, words: tuple[str, ...], code: int, said: str
) -> None:
    done = verb(*words)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr and "Traceback" not in done.stderr
    assert code == 1 or "next step: " in done.stderr


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_explains_itself_with_an_example_that_is_a_command(verb: Verb, name: str) -> None:
    done = verb("--help", name)
    assert done.returncode == 0
    assert f"Example: ./run {name}" in done.stdout


def test_a_plan_changes_nothing_and_needs_no_docker(verb: Verb, folder: Path) -> None:
    done = verb("plan", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [plan["image"] for plan in document["plans"]] == list(load_matrix().targets)
    assert all(plan["expected"] for plan in document["plans"])
    assert not folder.exists()


def test_a_plan_leaves_a_damaged_component_where_it_lies(verb: Verb, folder: Path) -> None:
    matrix = load_matrix()
    target = matrix.targets["flagtree"]
    seen = base_facts(glibc="2.41")
    known.remember("flagtree", "replica", seen)
    (cell,) = plan_target(matrix, target, "nccl", "replica", seen).cells
    wheel = folder / "some.whl"
    wheel.write_bytes(b"whole")
    kept = Wheelhouse(folder / "wheelhouse").put(cell.key, wheel, {})
    words = ("plan", "--image", "flagtree", "--component", "nccl", "--json")
    assert json.loads(verb(*words).stdout)["cells"] == {"cached": 1, "build": 0, "unsupported": 0}
    kept.write_bytes(b"wholf")
    before = listing(folder)
    assert json.loads(verb(*words).stdout)["cells"] == {"cached": 0, "build": 1, "unsupported": 0}
    assert listing(folder) == before


def test_a_broken_matrix_is_told_with_line_and_key(verb: Verb, tmp_path: Path) -> None:
    copy = tmp_path / "checkout"
    copy.mkdir()
    for name in ("tasks.py", "build", "images", "locks", "deepinfer", "setup.py", "pyproject.toml", "docs"):
        (copy / name).symlink_to(cache.REPOSITORY / name)
    text = (cache.REPOSITORY / "matrix.yaml").read_text()
    (copy / "matrix.yaml").write_text(text.replace("    kind: overlay", "    kimd: overlay"))
    (copy / "build").unlink()
    (copy / "build").mkdir()
    for path in (cache.REPOSITORY / "build").iterdir():
        (copy / "build" / path.name).symlink_to(path)
    # REPOSITORY follows the file that is imported, so that this one has to be the copy's own.
    (copy / "build" / "cache.py").unlink()
    (copy / "build" / "cache.py").write_text((cache.REPOSITORY / "build" / "cache.py").read_text())
    done = verb("plan", "--image", "cpu", root=copy)
    assert (done.returncode, done.stdout) == (2, "")
    line = text.splitlines().index("    kind: overlay") + 1
    assert f"matrix.yaml:{line}" in done.stderr and "kimd" in done.stderr and "'kind'" in done.stderr


def test_the_traceback_is_shown_only_when_it_is_asked_for(verb: Verb) -> None:
    words = ("build", "--image", "cpu")
    assert "Traceback" not in verb(*words).stderr
    assert "Traceback" not in verb(*words, DEEPINFER_DEBUG="0").stderr
    shown = verb(*words, DEEPINFER_DEBUG="1")
    assert shown.returncode == 4
    assert "Traceback" in shown.stderr and "no Docker engine answers" in shown.stderr


# Several images at once; what a build of one ends with is given.


def three(**changes: object) -> Matrix:
    matrix = load_matrix()
    cpu = matrix.targets["cpu"]
    names = ("one", "two", "three")
    return dataclasses.replace(matrix, targets={name: dataclasses.replace(cpu, name=name, **changes) for name in names})  # type: ignore[arg-type]


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Let builds end as told, by target: an outcome, or an error; returns the list of those begun."""

    def let(**by_target: Outcome | Exception) -> list[str]:
        begun: list[str] = []

        def build_target(matrix: Matrix, target: Target, options: BuildOptions) -> Outcome:
            begun.append(target.name)
            how = by_target[target.name]
            if isinstance(how, Exception):
                raise how
            return how

        monkeypatch.setattr(verbs, "load_matrix", three)
        monkeypatch.setattr(pipeline, "build_target", build_target)
        return begun

    return let


def failed_cell() -> Outcome:
    component = load_matrix().components["_C"]
    log = Path("/logs/one-_C.log")
    cell = CellResult(Cell("one", component, "build"), "failed", 1.0, log=log, reason="no such header")
    return Outcome("one", "component failed", cells=(cell,), times={"compile": 2.0})


def test_with_keep_going_all_are_built_and_the_worst_code_wins(
    ends: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    gate = GateResult("imports", False, "deep_ep does not import", 0.1)
    begun = ends(
        one=failed_cell(),
        two=CallFailed(["apt-get", "update"], 100, "no network", None),
        three=Outcome("three", "gate failed", "deepinfer:three-x", gates=(gate,)),
    )
    assert verbs.build("*", BuildOptions(keep_going=True)) == 6
    assert begun == ["one", "two", "three"]
    table = capsys.readouterr().err.splitlines()[-4:]
    assert [line.split()[0] for line in table] == ["one", "one/_C:", "two", "three"]
    assert "component failed" in table[0] and "2.0 s" in table[0]
    assert "no such header (log: /logs/one-_C.log)" in table[1]
    assert "not possible" in table[2] and "apt-get update ended with status 100" in table[2]
    assert "gate failed" in table[3]


def test_without_it_the_first_failure_ends_the_run_and_the_rest_is_named(
    ends: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    begun = ends(one=Outcome("one", "built", "deepinfer:one"), two=EnvironmentCannot("no space", next_step="free it"))
    assert verbs.build("*", BuildOptions()) == 4
    assert begun == ["one", "two"]
    said = capsys.readouterr().err
    assert "docker run --rm deepinfer:one env" in said
    assert "error: no space\n  next step: free it" in said
    assert said.splitlines()[-1].startswith("three") and "not begun" in said.splitlines()[-1]


@pytest.mark.parametrize(
    ("ending", "code"), [(GateFailed("too large"), 5), (CellFailed("no compile"), 6), (OSError(28, "No space left"), 4)]
)
def test_an_error_of_one_image_keeps_its_code(ends: Callable[..., list[str]], ending: Exception, code: int) -> None:
    ends(one=ending)
    assert verbs.build("one", BuildOptions()) == code


def test_a_component_that_only_some_images_have_leaves_the_others_out(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verbs.plan("cpu,flagtree", "nccl", "auto", as_json=True) == 0
    out, err = capsys.readouterr()
    assert [plan["image"] for plan in json.loads(out)["plans"]] == ["flagtree"]
    assert "note: cpu has no component nccl; left out" in err
    with pytest.raises(NothingSelected, match="'ncc'"):
        verbs.plan("cpu,flagtree", "ncc", "auto", as_json=True)


def test_a_glob_of_a_build_means_images_and_the_host_only_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun: list[str] = []

    def build_target(matrix: Matrix, target: Target, options: BuildOptions) -> Outcome:
        begun.append(target.name)
        return Outcome(target.name, "built")

    monkeypatch.setattr(pipeline, "build_target", build_target)
    assert verbs.build("*", BuildOptions()) == 0
    assert "host" not in begun and {"cpu", "flagtree"} <= set(begun)
    begun.clear()
    assert verbs.build("host,c*", BuildOptions()) == 0
    assert begun == ["cpu", "host"]


def test_what_a_plan_goes_by_is_the_last_inspection_of_the_base_that_a_build_would_use(folder: Path) -> None:
    both = load_matrix().targets["flagtree"]
    vendor_only = dataclasses.replace(both, replica=None)
    seen: Inspection = base_facts()
    assert pipeline.known_base(both, "auto") == ("replica", None)
    assert pipeline.known_base(vendor_only, "replica") == ("vendor", None)
    known.remember("flagtree", "replica", seen)
    assert pipeline.known_base(both, "auto") == ("replica", seen)
    assert pipeline.known_base(both, "vendor") == ("vendor", None)
    known.remember("flagtree", "vendor", seen)
    assert pipeline.known_base(both, "auto") == ("vendor", seen)


def test_a_plan_of_the_host_goes_by_its_last_inspection_of_the_same_python(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    host = load_matrix().targets["host"]
    assert pipeline.known_base(host, "auto") == ("host", None)
    monkeypatch.setenv("DEEPINFER_PYTHON", sys.executable)
    seen = dataclasses.replace(base_facts(gcc="9.1"), reference=sys.executable)
    known.remember("host", "host", seen)
    assert pipeline.known_base(host, "auto") == ("host", seen)
    assert verbs.plan("host", "_C", "auto", as_json=True) == 0
    (cell,) = json.loads(capsys.readouterr().out)["plans"][0]["cells"]
    assert cell["reason"] == "needs gcc >= 11, this machine has 9.1" and not cell["expected"]
    known.remember("host", "host", dataclasses.replace(seen, reference="/another/python3"))
    assert pipeline.known_base(host, "auto") == ("host", None)


def test_the_exit_codes_are_those_of_the_readme() -> None:
    codes = {error.__name__: error.exit_code for error in BuildError.__subclasses__()}
    assert set(codes.values()) == {1, 2, 3, 4, 5, 6}
    assert (codes["MatrixError"], codes["NothingSelected"], codes["EnvironmentCannot"]) == (2, 3, 4)
    assert (codes["UsageError"], codes["GateFailed"], codes["CellFailed"]) == (1, 5, 6)
