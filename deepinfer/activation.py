"""What `import deepinfer` does to its own process: find the optional parts, and give their JIT compilers a place to
work. It never fails and makes no folder: what it could not do is in `Activation.notices`, and `deepinfer env` says it.
"""

from __future__ import annotations

import functools
import os
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

from deepinfer import envs, platform
from deepinfer.errors import VariableError

PACKAGE = Path(__file__).resolve().parent
DEFAULT_HOME = Path("/opt/deepinfer")


@dataclass(frozen=True)
class Activation:
    """What was found and set.

    home: the folder with the optional parts (it need not exist); home_source: why that one.
    site: home/site where it exists, now first on sys.path.
    cache: where compiled kernels go; cache_source: why there.
    warm: the folder of Triton kernels that came with the image, which are only read; None without any.
    given: other programs' variables that were set here, with the reason.
    notices: what the user should know.
    """

    home: Path
    home_source: str
    site: Path | None
    cache: Path
    cache_source: str
    warm: Path | None
    given: dict[str, str]
    notices: tuple[str, ...]


@functools.cache
def activate() -> Activation:
    """Do it, once a process; later calls return what the first found."""
    notices: list[str] = []
    home, home_source = _home(notices)
    site = _put_first(home / "site")
    cache, cache_source = _cache(notices)
    warm = home / "warm" / "triton"
    given = _give(home, None if cache_source == "not writable" else cache)
    return Activation(
        home, home_source, site, cache, cache_source, warm if warm.is_dir() else None, given, tuple(notices)
    )


def _home(notices: list[str]) -> tuple[Path, str]:
    chosen = _value(envs.HOME, notices)
    if chosen is not None:
        if not chosen.is_dir():
            notices.append(f"DEEPINFER_HOME={chosen} is no folder: the optional parts are not looked for elsewhere")
        return chosen, "DEEPINFER_HOME"
    around = PACKAGE.parent.parent
    if (around / "image.json").is_file():
        return around, "around the package"
    return DEFAULT_HOME, "default"


def _value(variable: envs.Variable[Path | None], notices: list[str]) -> Path | None:
    """The variable's value. A bad one is as good as none here, and said at once: an import must not fail on it."""
    try:
        return variable.get()
    except VariableError as problem:
        notices.append(str(problem))
        warnings.warn(f"{problem.what}; it is ignored ({problem.cause})", RuntimeWarning, stacklevel=5)
        return None


def _put_first(site: Path) -> Path | None:
    if not site.is_dir():
        return None
    entry = str(site)
    sys.path[:] = [entry, *(other for other in sys.path if other != entry)]
    return site


def _cache(notices: list[str]) -> tuple[Path, str]:
    source = "DEEPINFER_CACHE_DIR"
    wanted = _value(envs.CACHE_DIR, notices)
    if wanted is None:
        source = "default"
        try:
            wanted = Path("~/.cache/deepinfer").expanduser()
        except RuntimeError:  # a user without a home folder
            wanted = Path("/nonexistent")
    if _can_write(wanted):
        return wanted, source
    instead = _own_temporary()
    if instead is None:
        notices.append(f"neither {wanted} nor a temporary folder can be written: compiled kernels cannot be kept")
        return wanted, "not writable"
    notices.append(f"{wanted} cannot be written: compiled kernels go to {instead}, which may not outlive this machine")
    return instead, "temporary"


def _can_write(folder: Path) -> bool:
    """Whether the folder is writable, or could be made: judged without making it."""
    try:
        nearest = next(place for place in (folder, *folder.parents) if place.exists())
        return nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
    except OSError:  # a parent that may not even be looked into
        return False


def _own_temporary() -> Path | None:
    """A folder under the temporary one that no other user can have planted compiled code in."""
    try:
        folder = Path(tempfile.gettempdir()) / f"deepinfer-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if not folder.is_symlink() and found.st_uid == os.getuid() and not found.st_mode & 0o022:
            return folder
        return Path(tempfile.mkdtemp(prefix="deepinfer-"))
    except OSError:
        return None


def _give(home: Path, cache: Path | None) -> dict[str, str]:
    """Set what the JIT compilers read, where the user has not settled it. Returns the reasons."""
    wanted: list[tuple[envs.Foreign, str, str]] = []
    if cache is not None:
        # torch.compile, which deep_ep uses at import, else names its folder after a user; a bare uid has no name.
        caches = (
            envs.TRITON_CACHE_DIR, envs.DG_JIT_CACHE_DIR, envs.EP_JIT_CACHE_DIR, envs.TORCHINDUCTOR_CACHE_DIR,
        )  # fmt: skip
        folders = zip(caches, ("triton", "deep_gemm", "deep_ep", "inductor"), strict=True)
        wanted += [(variable, str(cache / name), "under the cache folder") for variable, name in folders]
    if (home / "warm" / "triton").is_dir():
        manager = "deepinfer.warm.cache:WarmCacheManager"
        wanted.append((envs.TRITON_CACHE_MANAGER, manager, "kernels that came with the image are found too"))
    if (home / "cuda").is_dir() and platform.system_nvcc() is None:
        wanted.append((envs.CUDA_HOME, str(home / "cuda"), "no other nvcc was found"))
    if (home / "nccl").is_dir():
        wanted.append((envs.EP_NCCL_ROOT_DIR, str(home / "nccl"), "replaced NCCL's headers"))
    if not platform.infiniband_devices():
        wanted.append((envs.EP_DISABLE_GIN, "1", "no InfiniBand device"))
    return {variable.name: reason for variable, value, reason in wanted if envs.set_unless_settled(variable, value)}
