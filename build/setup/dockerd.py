"""A dockerd of our own: started, remembered, found again and stopped.

It is remembered in the cache with its process id, the time that process started and the machine's boot, so that no
other process is ever taken for it. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from build import cache
from build.errors import EnvironmentCannot
from build.processes import identity
from build.setup import system
from build.setup.engine_answer import refusal

_START_SECONDS = 60.0
_STOP_SECONDS = 60.0


def system_path() -> str:
    """PATH with the folders of administrators' programs, which users and cron jobs often lack."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])


def start(*, stays: bool, options: Sequence[str] = ()) -> bool:
    """Start dockerd (with `options`), apart from this process, and wait until it answers on the default socket.

    Returns False where another start was quicker.
    """
    with cache.locked("dockerd", waiting_for="start of dockerd"):
        if not refusal():
            return False
        program = shutil.which("dockerd", path=system_path())
        if program is None:
            raise EnvironmentCannot("dockerd is not installed", next_step=system.install_command(["docker.io"]))
        log = cache.folder("logs") / "dockerd.log"
        with log.open("ab") as out:
            process = subprocess.Popen(
                [program, *options],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd="/",
                env={**os.environ, "PATH": system_path()},
            )
        cache.atomic_write(_record_path(), json.dumps(identity(process.pid)))
        problem = wait_for_answer(_START_SECONDS, process)
        if problem:
            with contextlib.suppress(EnvironmentCannot):
                stop()
            raise EnvironmentCannot(
                f"dockerd was started and does not answer: {problem}",
                cause=_last_error(log),
                next_step="read the log; on a machine that allows no containers, set DOCKER_HOST to one that does",
                log=log,
            )
    end = "it stays running; stop it with `./run clean --docker`" if stays else "it is stopped when the tests end"
    system.say(f"started Docker's engine (dockerd, process {process.pid}, log {log}); {end}")
    return True


def started_by_us() -> int | None:
    """The process id of a running dockerd that `./run` started; None if there is none."""
    try:
        known = json.loads(_record_path().read_text())
        return int(known["pid"]) if identity(int(known["pid"])) == known else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def stop() -> int | None:
    """Stop the dockerd that `./run` started, and no other; returns its process id, None if there was none.

    The caller holds the lock `dockerd` or the whole cache: the record of one that is just being started stays.

    Raises:
        EnvironmentCannot: it does not end, or belongs to another user.
    """
    pid = started_by_us()
    if pid is not None:
        try:
            os.kill(pid, signal.SIGTERM)
        except PermissionError as problem:
            raise EnvironmentCannot(
                f"dockerd (process {pid}) belongs to another user", next_step="run the same command as root"
            ) from problem
        deadline = time.monotonic() + _STOP_SECONDS
        while started_by_us() == pid:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            if time.monotonic() > deadline:
                raise EnvironmentCannot(
                    f"dockerd (process {pid}) is still there after {_STOP_SECONDS:.0f} s",
                    cause="containers that do not end",
                    next_step=f"stop them (`docker ps`), or end it with: kill -9 {pid}",
                )
            time.sleep(0.1)
    _record_path().unlink(missing_ok=True)
    return pid


def _record_path() -> Path:
    return cache.folder("docker") / "dockerd.json"


def wait_for_answer(seconds: float, process: subprocess.Popen[bytes] | None) -> str:
    """Wait until an engine answers; returns the last refusal, empty when it does."""
    deadline = time.monotonic() + seconds
    while problem := refusal():
        if process is not None and process.poll() is not None:
            return f"it ended with status {process.returncode}"
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    return problem


def _last_error(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return next((line for line in reversed(lines) if "level=fatal" in line or "failed" in line), "")[-300:]
