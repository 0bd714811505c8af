"""Debian's docker-registry on the loopback, for as long as a test needs it."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from build.setup import system
from tests.publish_stand_ins import free_port


@contextmanager
def loopback_registry(folder: Path, store: Path) -> Iterator[str]:
    """A registry that keeps its blobs in `store`; gives HOST:PORT. Skips the test where it cannot be had."""
    if shutil.which("docker-registry") is None:
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            pytest.skip(f"needs docker-registry: {system.install_command(['docker-registry'])}")
        system.install(["docker-registry"], "tests pull vendors' images from it", may_install=True)
    address = f"127.0.0.1:{free_port()}"
    settings = folder / "registry.yml"
    settings.write_text(
        f'version: 0.1\nlog: {{level: warn}}\nstorage: {{filesystem: {{rootdirectory: "{store}"}}}}\n'
        f'http: {{addr: "{address}"}}\n'
    )
    with (folder / "registry.log").open("w") as log:
        process = subprocess.Popen(["docker-registry", "serve", settings], stdout=log, stderr=log)
    try:
        _wait_for(address, folder / "registry.log")
        yield address
    finally:
        process.terminate()
        process.wait(30)


def _wait_for(address: str, log: Path) -> None:
    deadline = time.monotonic() + 120
    while True:
        try:
            urlopen(f"http://{address}/v2/").close()
            return
        except URLError:
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
