"""The engine's wheel, packed around a compiled deepinfer._C: a change of Python compiles nothing."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from build import cache
from build.call import CallFailed, call
from build.errors import BuildError
from build.inspection import Inspection

SOURCES = ("deepinfer", "pyproject.toml", "setup.py", "setup.cfg", "README.md", "LICENSE")
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", "*.so")
FILE_TIME = "1767225600"  # 2026-01-01, the same in every wheel: equal inputs give an equal file


def pack_engine(repository: Path, extension: Path | None, inspection: Inspection, folder: Path, *, target: str) -> Path:
    """Pack the wheel of the engine into `folder`; takes a second or two.

    Args:
        target: whose it is, by which the log is called: several targets may be built at once.
        extension: the shared object of deepinfer._C for the base's Python; None packs the twin in Python alone.

    The sources are copied aside first: nothing is written into the checkout, and no earlier build's files get in.

    Raises BuildError with the packer's words.
    """
    log = cache.folder("logs") / f"package-{target}.log"
    log.unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    env = {"SOURCE_DATE_EPOCH": FILE_TIME, "DEEPINFER_PREBUILT_C": "", "DEEPINFER_WHEEL_TAG": ""}
    if extension is None:
        env["DEEPINFER_SKIP_C"] = "1"
    else:
        tag = inspection.python_tag
        env |= {"DEEPINFER_PREBUILT_C": str(extension), "DEEPINFER_WHEEL_TAG": f"{tag}-{tag}-linux_x86_64"}
    with tempfile.TemporaryDirectory(prefix=".part-", dir=folder) as scratch:
        copy = Path(scratch) / "engine"
        _copy(repository, copy)
        argv = [sys.executable, "setup.py", "--quiet", "bdist_wheel", "--dist-dir", str(Path(scratch) / "out")]
        (copy / ".setuptools").mkdir()
        try:
            call(*argv, cwd=copy, env=env, log=log, quiet=True)
        except CallFailed as failed:
            raise BuildError(
                "the engine's wheel could not be packed",
                cause=(failed.tail.splitlines() or ["setup.py failed"])[-1],
                next_step="read the log; `./run test` checks the package",
                log=log,
            ) from failed
        (made,) = (Path(scratch) / "out").glob("*.whl")
        packed = folder / made.name
        made.replace(packed)
    return packed


def _copy(repository: Path, copy: Path) -> None:
    copy.mkdir()
    for name in SOURCES:
        source = repository / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=LEFT_OUT)
        elif source.exists():
            shutil.copyfile(source, copy / name)
