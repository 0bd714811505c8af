"""An engine behind ssh, reached as Docker's own command reaches it: `ssh HOST docker system dial-stdio` a connection.

The docker package can do that only with a second implementation of ssh beside it. Here a socket of this process stands
for the engine, and the ssh command, with the user's own settings and keys, is what is behind every connection to it.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import socket
import subprocess
import tempfile
import threading
from pathlib import Path
from urllib.parse import urlsplit

from build.errors import EnvironmentCannot

_LOADER = ("LD_LIBRARY_PATH", "LD_PRELOAD")
"""Not for ssh: what a compile needs may hold another OpenSSL."""


@functools.cache
def local_address(host: str) -> str:
    """`unix:///…`, where the engine at `ssh://[USER@]NAME[:PORT][/SOCKET]` answers as long as this process lives.

    Nothing is asked of the engine yet. Raises EnvironmentCannot where there is no ssh command, or the address is none.
    """
    argv = command(host)
    if shutil.which("ssh") is None:
        raise EnvironmentCannot(
            f"{host} is reached by ssh, which is not installed", next_step="apt-get install openssh-client"
        )
    folder = Path(tempfile.mkdtemp(prefix="deepinfer-ssh-"))
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(folder / "s"))
    listening.listen(16)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    threading.Thread(target=_serve, args=(listening, argv), daemon=True).start()
    return f"unix://{folder}/s"


def command(host: str) -> list[str]:
    """The ssh command of an address. Raises EnvironmentCannot where it is none."""
    try:
        parts = urlsplit(host)
        name, port = parts.hostname, parts.port
    except ValueError:
        name, port = None, None
    if not name or name.startswith("-") or (parts.username or "").startswith("-") or parts.password or parts.query:
        raise EnvironmentCannot(
            f"{host.partition('@')[2] or host} is no address of an engine behind ssh",
            next_step="ssh://USER@HOST, with :PORT where it is not 22; a password is never part of it",
        )
    # The name as it was written: urlsplit makes it lower case, and an alias of ~/.ssh/config may not be.
    written = parts.netloc.rpartition("@")[2]
    written = written.removesuffix(f":{port}") if port is not None else written
    argv = ["ssh", "-o", "ConnectTimeout=15", "-T"]
    argv += ["-l", parts.username] if parts.username else []
    argv += ["-p", str(port)] if port is not None else []
    there = ["docker", *(["--host", f"unix://{parts.path}"] if parts.path.strip("/") else []), "system", "dial-stdio"]
    return [*argv, "--", written.strip("[]"), *there]


def _serve(listening: socket.socket, argv: list[str]) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in _LOADER}
    while True:
        connection, _ = listening.accept()
        # Ctrl-C must reach us alone, who have to take along what runs in the engine: hence setsid.
        with connection:
            process = subprocess.Popen(
                argv, stdin=connection.fileno(), stdout=connection.fileno(), stderr=subprocess.DEVNULL, env=environment,
                start_new_session=True,
            )  # fmt: skip
        threading.Thread(target=process.wait, daemon=True).start()
