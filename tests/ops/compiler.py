"""Every variant that the cases use, compiled for sm_90a under each Triton that the project pins.

A process for each version, two at a time, which tells of each family as it is done. What came out is kept in the build
cache by the engine's sources and the versions; Triton's own cache, there too, keeps what was compiled.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch

import deepinfer

ROOT = Path(__file__).resolve().parents[2]
AT_A_TIME = 2
CACHE_FOLDER = "test-variants"
Row = dict[str, Any]
SUMMARY: list[str] = []
"""Lines for the end of pytest's output."""


class Compiler:
    """Compiles pairs of version and family, from now on; `row` waits for one of them."""

    def __init__(self, wanted: Iterable[tuple[str, str]]) -> None:
        self._turns = threading.Semaphore(AT_A_TIME)
        self._sources = _sources()
        self._closed = False
        self._children: set[subprocess.Popen[str]] = set()
        self.rows: dict[tuple[str, str], Future[Row]] = {one: Future() for one in wanted}
        for version in dict.fromkeys(version for version, _ in self.rows):
            threading.Thread(target=self._run, args=(version,), daemon=True).start()

    def row(self, version: str, family: str) -> Row:
        """What `deepinfer.ops.variants --events` says of a family. Raises RuntimeError if its process did not."""
        return self.rows[version, family].result()

    def summary(self) -> list[str]:
        """For each version: how many variants there are, and whence they came."""
        lines = []
        for version in dict.fromkeys(version for version, _ in self.rows):
            futures = [future for (of, _), future in self.rows.items() if of == version and future.done()]
            rows = [future.result() for future in futures if future.exception() is None]
            kernels: dict[str, set[str]] = {}
            for name, hashes in (item for row in rows for item in row["variants"].items()):
                kernels.setdefault(name, set()).update(hashes)
            compiled = sum(row["compiled"] for row in rows if not row["kept"])
            kept = sum(row["kept"] for row in rows)
            lines.append(
                f"Triton {version}: {sum(map(len, kernels.values()))} variants of {len(kernels)} kernels for sm_90a, "
                f"{compiled} compiled now, {kept} of {len(rows)} families unchanged since an earlier run"
            )
        return lines

    def close(self) -> None:
        """End what still runs."""
        self._closed = True
        for child in list(self._children):
            child.kill()

    def _families(self, version: str) -> list[str]:
        return [family for of, family in self.rows if of == version]

    def _run(self, version: str) -> None:
        try:
            with self._turns:
                families = self._kept(version)
                if families and not self._closed:
                    self._compile(version, families)
        except BaseException as problem:  # whoever waits for a row has to be told
            self._fail(version, str(problem))
        else:
            self._fail(version, "its process did not tell")

    def _fail(self, version: str, why: str) -> None:
        for family in self._families(version):
            future = self.rows[version, family]
            if not future.done():
                future.set_exception(RuntimeError(f"Triton {version}, {family}: {why}"))

    def _kept(self, version: str) -> list[str]:
        """Take what an earlier run has kept; the families that are left."""
        left = []
        for family in self._families(version):
            path = self._path(version, family)
            row = json.loads(path.read_text()) if path.is_file() else {}
            if row.get("sources") == self._sources:
                self.rows[version, family].set_result({**row, "kept": True})
            else:
                left.append(family)
        return left

    def _compile(self, version: str, families: Sequence[str]) -> None:
        from build import cache
        from build.triton_versions import triton_dir

        path = os.pathsep.join([str(triton_dir(version)), str(ROOT)])
        triton_cache = str(cache.folder(f"{CACHE_FOLDER}/triton-{version}"))
        environment = {**os.environ, "PYTHONPATH": path, "TRITON_CACHE_DIR": triton_cache, "OMP_NUM_THREADS": "1"}
        environment.pop("TRITON_INTERPRET", None)
        with (cache.folder(CACHE_FOLDER) / f"said-{version}-{os.getpid()}.txt").open("w+") as said:
            child = subprocess.Popen(
                [sys.executable, "-m", "deepinfer.ops.variants", "--events", *families],
                env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said, text=True,
            )  # fmt: skip
            self._children.add(child)
            try:
                for line in child.stdout or ():
                    row = {**json.loads(line), "sources": self._sources, "kept": False}
                    assert row["triton"] == version, f"the process took Triton {row['triton']}"
                    if not row["problems"] and _sources() == self._sources:  # nobody edits them meanwhile
                        cache.atomic_write(self._path(version, row["family"]), json.dumps(row))
                    self.rows[version, row["family"]].set_result(row)
                child.wait()
            finally:
                self._children.discard(child)
                Path(said.name).unlink()
            said.seek(0)
            if child.returncode not in (0, 1):
                raise RuntimeError(f"its process ended with {child.returncode}\n{said.read()[-3000:]}")

    def _path(self, version: str, family: str) -> Path:
        from build import cache

        return (
            cache.folder(f"{CACHE_FOLDER}/{version}")
            / f"{family}-cp{sys.version_info.major}{sys.version_info.minor}.json"
        )


def _sources() -> str:
    """What the variants depend on beside Triton: our sources, and PyTorch, whose numbers the cases are made of."""
    digest = hashlib.sha256(f"{torch.__version__} {sys.version}".encode())
    package = Path(deepinfer.__file__).parent
    for path in sorted(package.rglob("*.py")):
        digest.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
