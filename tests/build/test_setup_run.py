"""`./run` as a user types it, in a small repository: set-up, repair, refusal. Real venv, real pip, real invoke."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from build.setup.program import ENGINE_VERBS
from deepinfer.cli import VERBS
from tests.build.setup_project import (
    Project,
    children_of,
    pin,
    pure_wheel,
    stopped,
    until_it_waits,
    wheel_of,
)

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, which only root can")
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A repository that has been set up; tests leave it as it is."""
    project = Project.make(tmp_path_factory.mktemp("ready"))
    first = project.run("show", "--word", "first")
    assert first.code == 0, first.err
    assert "build.lock (1 packages): what every verb needs" in first.err
    assert json.loads(first.out)["word"] == "first"
    return project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project.make(tmp_path)


def test_help_needs_nothing_installed(project: Project) -> None:
    for words in ((), ("--help",), ("-h",)):
        shown = project.run(*words)
        assert shown.code == 0 and "usage: ./run" in shown.out
        assert "show   Show what arrived." in shown.out and "build  Build nothing." in shown.out
    assert not (project.root / ".venv").exists()


def test_a_machine_without_python_is_told_how_to_get_one(project: Project, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sh", "sed", "id", "dirname", "readlink", "env"):
        (programs / name).symlink_to(str(shutil.which(name)))
    for words in ((), ("-h",), ("--help",)):
        shown = project.run(*words, PATH=str(programs))
        assert shown.code == 0 and "\n  show\n  build\n" in shown.out and "apt-get update && " in shown.out
    refused = project.run("show", PATH=str(programs))
    assert refused.code == 4 and "apt-get update && " in refused.err and "python3-venv" in refused.err


def test_second_start_installs_and_writes_nothing(ready: Project) -> None:
    before = ready.record.stat()
    again = ready.run("show")
    assert (again.code, again.err) == (0, "")
    after = ready.record.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_verb_runs_where_the_user_stands_with_every_word_whole(ready: Project, tmp_path: Path) -> None:
    (tmp_path / "invoke.py").write_text("raise SystemExit('the wrong invoke')")
    words = ["-k", "a or b", "", "it's", '"', "$HOME; ls", "*"]
    ended = ready.run("show", "--word", "two words", "--", *words, cwd=tmp_path)
    seen = json.loads(ended.out)
    assert seen["cwd"] == str(tmp_path) and seen["word"] == "two words"
    assert shlex.split(seen["rest"]) == words
    assert seen["python"] == str(ready.root / ".venv" / "bin" / "python") and seen["setup"] == "1"


def test_starts_through_a_link(ready: Project, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(ready.root / "run")
    done = subprocess.run(
        [tmp_path / "link", "show"], env=ready.environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and json.loads(done.stdout)["word"] == "none"


def test_usage_errors_are_exit_1_and_an_unknown_verb_too(ready: Project) -> None:
    for words, text in (
        (["--nosetup", "show"], "does not know the option --nosetup"),
        (["--"], "needs a command"),
        (["--offline"], "--offline needs"),
        (["--offline", "/nonexistent", "show"], "--offline before the verb goes with DEEPINFER_PYTHON"),
        (["shwo"], "no verb 'shwo'; did you mean 'show'?"),
        (["ask", "--model", "m", "x"], "commands of the engine go after --: ./run -- deepinfer ask …"),
        (["deepinfer", "ask"], "commands go after --: ./run -- deepinfer …"),
        (["bench", "--help"], "./run -- deepinfer bench …"),
        (["show", "--wrod", "x"], "show has no option '--wrod'; did you mean '--word'?"),
        (["show", "--word"], "--word needs a value"),
        (["show", "extra"], "'extra' is none"),
        (["shwo", "--help"], "no verb 'shwo'; did you mean 'show'?"),
        (["show", "-c"], "show has no option '-c'"),
        (["show", "--collection"], "show has no option --collection"),
        (["show", "build"], "'show' and 'build' are two"),
        (["build", "--dry"], "build has no option --dry"),
    ):
        ended = ready.run(*words)
        assert ended.code == 1 and text in ended.err and ended.out == "" and "Traceback" not in ended.err
        assert ended.err.startswith("error: ") and "next step: " in ended.err


def test_the_engines_verbs_are_known() -> None:
    assert sorted(ENGINE_VERBS) == sorted(verb.name for verb in VERBS)


def test_help_of_a_verb_does_nothing_else(ready: Project) -> None:
    for words in (["build", "-h"], ["build", "--image", "host", "-h"], ["build", "--help"]):
        ended = ready.run(*words)
        assert ended.code == 0 and "usage: ./run build [OPTIONS]" in ended.out and "built" not in ended.out


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("./run --help >&-", 0),
        ("./run show >&- 2>&- <&-", 0),
        ("./run shwo 2>&-", 1),
        ("./run --nosetup 2>&-", 1),
        ("./run --help >/dev/full", 4),
        ("./run show >/dev/full", 4),
        # The reader is gone before anything is written: it has told so through another file.
        ('(read _ <"$TMPDIR/gone"; exec ./run --help) | (exec <&-; echo >"$TMPDIR/gone"); exit ${PIPESTATUS[0]}', 141),
    ],
)
def test_streams_that_are_closed_full_or_not_read(ready: Project, tmp_path: Path, words: str, code: int) -> None:
    os.mkfifo(tmp_path / "gone")
    environment = ready.environment(TMPDIR=str(tmp_path))
    done = subprocess.run(
        ["bash", "-c", words], cwd=ready.root, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr, done.stderr
    assert code != 4 or "No space left" in done.stderr


def test_a_terminal_without_unicode_and_a_home_that_is_none(ready: Project) -> None:
    done = ready.run("show", "--word", "├ü", PYTHONIOENCODING="ascii", PYTHONUTF8="0", LC_ALL="C", HOME="/dev/null")
    assert done.code == 0 and "Traceback" not in done.err, done.err


def test_settings_of_invoke_elsewhere_count_for_nothing(ready: Project, tmp_path: Path) -> None:
    (tmp_path / ".invoke.py").write_text("raise SystemExit(99)")
    done = ready.run("show", HOME=str(tmp_path))
    assert done.code == 0, done.err


def test_no_setup_prints_commands_that_are_enough(project: Project) -> None:
    refused = project.run("--no-setup", "show")
    assert refused.code == 4 and not (project.root / ".venv").exists()
    both = project.run("--no-setup", "build", DOCKER_HOST="unix:///nonexistent/docker.sock")
    assert both.code == 4 and "no Docker engine" in both.err and " -m venv " in both.err, "all is told at once"
    lines = [line.strip() for line in refused.err.splitlines() if " -m venv " in line or " pip install " in line]
    assert len(lines) == 2
    for line in lines:
        subprocess.run(line, shell=True, check=True, env=project.environment(), capture_output=True, cwd="/")
    accepted = project.run("--no-setup", "show")
    assert accepted.code == 0 and json.loads(accepted.out)["setup"] == "0"
    later = project.run("show")
    assert later.code == 0 and "making" not in later.err


def test_killed_install_is_repaired(project: Project) -> None:
    project.lock("build", pure_wheel(project.links, "bulk", "1", files=600), wheel_of("invoke"))
    process = project.start("show")
    while not list(project.root.glob(".venv/lib/python3*/site-packages/bulk/module*.py")):
        assert process.poll() is None, "it ended before it could be killed"
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    refused = project.run("--no-setup", "show")
    assert refused.code == 4 and "interrupted" in refused.err and "rm -rf" in refused.err
    repaired = project.run("show")
    assert repaired.code == 0 and "an install into it was interrupted" in repaired.err
    assert json.loads(project.record.read_text())["busy"] is False


def test_two_starts_at_once_make_one_environment(project: Project) -> None:
    first = project.start("show")
    project.wait_until_busy(first)
    with stopped(first.pid):
        second = project.start("show")
        met = until_it_waits(second)
    (_, first_err), (_, second_err) = first.communicate(timeout=300), second.communicate(timeout=300)
    assert (first.returncode, second.returncode) == (0, 0), first_err + met + second_err
    assert "installing" in first_err and "installing" not in met + second_err


def test_start_that_died_alone_keeps_the_next_one_out_until_its_installer_ends(project: Project) -> None:
    first = project.start("show")
    project.wait_until_busy(first)
    while b"venv" not in children_of(first.pid):
        assert first.poll() is None
    with stopped(first.pid):
        os.kill(first.pid, signal.SIGKILL)
        second = project.start("show")
        until_it_waits(second)
    _, err = second.communicate(timeout=300)
    first.communicate()
    assert second.returncode == 0, err


def test_environment_that_cannot_be_trusted_is_made_anew(ready: Project, tmp_path: Path) -> None:
    project = ready.copied(tmp_path)
    assert project.run("--no-setup", "show").code == 0, "the copy is as good"
    python = project.root / ".venv" / "bin" / "python"

    def python_gone() -> str:
        python.unlink()
        python.symlink_to("/nonexistent/python3")
        return "its Python is gone"

    def lock_changed() -> str:
        project.lock("build", wheel_of("invoke"), pure_wheel(project.links, "extra", "1"))
        return "locks/build.lock changed"

    def record_damaged() -> str:
        project.record.write_text('{"python": ')
        return "an install into it was interrupted"

    for damage in (python_gone, lock_changed, record_damaged):
        stale = project.root / ".venv" / "stale"
        stale.touch()
        reason = damage()
        again = project.run("show")
        assert again.code == 0 and reason in again.err and not stale.exists()


def test_wheel_with_another_hash_is_refused_and_not_trusted_later(project: Project) -> None:
    lock = project.root / "locks" / "build.lock"
    good = lock.read_text()
    lock.write_text(pin(wheel_of("invoke"), "0" * 64))
    refused = project.run("show")
    assert refused.code == 4 and "not the one that the lock names" in refused.err and "setup.log" in refused.err
    assert "Traceback" not in refused.err
    lock.write_text(good)
    assert project.run("show").code == 0


def test_malformed_lock_is_named(project: Project) -> None:
    (project.root / "locks" / "build.lock").write_text("invoke>=3\n")
    refused = project.run("show")
    assert refused.code == 2 and "build.lock: `invoke>=3`" in refused.err and not (project.root / ".venv").exists()


def test_command_runs_in_the_environment_with_its_own_status(project: Project) -> None:
    project.lock("build", wheel_of("invoke"), wheel_of("setuptools"))
    project.lock("test", pure_wheel(project.links, "hello", "1"))
    (project.root / "deepinfer").mkdir()
    (project.root / "deepinfer" / "__init__.py").write_text("")
    (project.root / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "deepinfer-hopper"\nversion = "1"\n'
        '[tool.setuptools]\npackages = ["deepinfer"]\n'
    )
    program = "import sys, hello, deepinfer; print(hello.VERSION, deepinfer.__file__); sys.exit(7)"
    ended = project.run("--", "python", "-c", program, cwd=Path("/"))
    assert ended.code == 7, ended.err
    assert ended.out.split(maxsplit=1) == ["1", f"{project.root}/deepinfer/__init__.py\n"]
    unknown = project.run("--", "no-such-command")
    assert unknown.code == 127 and "no-such-command cannot be run" in unknown.err


@needs_root
def test_tree_that_cannot_be_written_says_so(project: Project) -> None:
    for path in (project.root, *project.root.parents):
        if path.stat().st_uid == 0 and not path.stat().st_mode & 0o001:
            path.chmod(path.stat().st_mode | 0o055)
    python = _python_for_all()
    project.cache.mkdir()
    project.cache.chmod(0o777)
    refused = project.run("show", prefix=NOBODY, HOME="/nonexistent", PATH=f"{python}:/usr/bin:/bin")
    assert refused.code == 4, refused.err
    assert "cannot be written" in refused.err and "Traceback" not in refused.err


def _python_for_all() -> Path:
    for candidate in ("/usr/bin/python3", "/usr/local/bin/python3"):
        if Path(candidate).exists():
            done = subprocess.run(
                [candidate, "-c", "import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))"], check=False
            )
            if done.returncode == 0:
                return Path(candidate).parent
    pytest.skip("no Python from 3.11 to 3.13 that other users can run")


@needs_root
def test_without_root_the_docker_commands_are_printed(ready: Project) -> None:
    program = (
        "from build.setup import docker_engine, system\n"
        "from build.errors import EnvironmentCannot\n"
        "try: docker_engine.ensure(may_install=True, stays=True)\n"
        "except EnvironmentCannot as problem: print(problem)\n"
    )
    folder = ready.root.parent / "for nobody"
    shutil.copytree(ready.root / "build", folder / "build", dirs_exist_ok=True)
    for path in (folder, *folder.parents):
        if path.stat().st_uid == 0 and not path.stat().st_mode & 0o001:
            path.chmod(path.stat().st_mode | 0o055)
    variables = ready.environment(
        HOME="/nonexistent", DEEPINFER_BUILD_CACHE="/nonexistent/cache", PYTHONDONTWRITEBYTECODE="1"
    )
    argv = [*NOBODY, str(_python_for_all() / "python3"), "-c", program]
    done = subprocess.run(argv, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    assert "no Docker engine answers at /var/run/docker.sock" in done.stdout, done.stderr
    assert "sudo usermod -aG docker" in done.stdout and "DOCKER_HOST" in done.stdout


def test_docker_host_that_does_not_answer_is_only_reported(ready: Project) -> None:
    ended = ready.run("build", "--image", "cpu", DOCKER_HOST="unix:///nonexistent/docker.sock")
    assert ended.code == 4 and "DOCKER_HOST=unix:///nonexistent/docker.sock" in ended.err
    assert "installing" not in ended.err and "started" not in ended.err and "built" not in ended.out
    host = ready.run("build", "--help", DOCKER_HOST="unix:///nonexistent/docker.sock")
    assert host.code == 0
