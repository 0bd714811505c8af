"""Packages of the distribution: installed with apt by root on Debian or Ubuntu, else named with the command."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence

from build import cache
from build.call import CallFailed, call
from build.errors import EnvironmentCannot


def is_root() -> bool:
    """Whether this process may install packages and start services."""
    return os.geteuid() == 0


def say(text: str) -> None:
    """Tell the user what the set-up does; stdout belongs to the verb."""
    print(f"set-up: {text}", file=sys.stderr, flush=True)


def install_command(packages: Sequence[str]) -> str:
    """The command that a user types to install `packages`."""
    sudo = "" if is_root() else "sudo "
    return f"{sudo}apt-get update && {sudo}apt-get install -y --no-install-recommends {shlex.join(packages)}"


def is_packaged(package: str) -> bool:
    """Whether the distribution has a package of this name, by the lists that are on this machine."""
    if shutil.which("apt-cache") is None:
        return False
    done = subprocess.run(["apt-cache", "show", "--no-all-versions", package], capture_output=True, check=False)
    return done.returncode == 0


def refresh_lists() -> None:
    """Fetch apt's lists of packages anew. A failure shows when something is installed."""
    call("apt-get", "update", "-q", log=cache.folder("logs") / "apt.log", check=False, env=_unattended())


def install(packages: Sequence[str], why: str, *, may_install: bool) -> None:
    """Install packages of the distribution, saying so.

    Raises:
        EnvironmentCannot: not allowed to, or not able to; with the command to type.
    """
    what = " ".join(packages)
    if not may_install or not is_root() or shutil.which("apt-get") is None:
        cause = (
            "./run was told --no-setup"
            if not may_install
            else "installing it needs root"
            if not is_root()
            else "this is not Debian or Ubuntu: there is no apt-get"
        )
        raise EnvironmentCannot(f"{what} is missing: {why}", cause=cause, next_step=install_command(packages))
    say(f"installing {what} from the distribution: {why}")
    log = cache.folder("logs") / "apt.log"
    argv = ["apt-get", "install", "-y", "-q", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=600", *packages]
    try:
        if call(*argv, log=log, check=False, env=_unattended(), stdin=b"").returncode != 0:
            refresh_lists()
            call(*argv, log=log, env=_unattended(), stdin=b"")
    except CallFailed as failed:
        raise EnvironmentCannot(
            f"apt-get could not install {what}",
            cause="the mirror does not answer, or the distribution has no such package",
            next_step=f"read the log, then type: {install_command(packages)}",
            log=log,
        ) from failed


def _unattended() -> dict[str, str]:
    return {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
