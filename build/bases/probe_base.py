"""Prints what a base holds, as one line of JSON. Standard library only: it runs in the base, with the base's Python.

Whatever may crash or hang (importing torch, running a compiler) happens in a child process with a time limit and ends
as an entry of `problems`, never as the end of this program. Works from Python 3.8 on: the base's may be old.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

MARK = "DEEPINFER-INSPECTION "
KEPT = 2001  # names of unreadable files: one more than can be opened
IMPORT_LIMIT = 180  # seconds; a cold import of torch from a slow disk takes up to a minute
HERE = Path(__file__).absolute()
NCCL_NUMBERS = re.compile(r"#define\s+NCCL_(MAJOR|MINOR|PATCH)\s+(\d+)")


def normalised(name: str) -> str:
    """A distribution's name as PyPI compares them."""
    return re.sub(r"[-_.]+", "-", name).lower()


def program(*argv: str, limit: float = 30) -> tuple[int | None, str]:
    """Status and output of a program; status None when it cannot be started or takes too long."""
    try:
        done = subprocess.run(
            argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=limit, cwd="/", check=False
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        return None, str(problem)
    return done.returncode, done.stdout.decode("utf-8", "replace")


def in_child(mode: str, problems: list[str]) -> dict[str, Any]:
    """Import a module in a child (this program with an argument): its facts, or {} and a problem."""
    status, text = program(sys.executable, str(HERE), mode, limit=IMPORT_LIMIT)
    for line in text.splitlines():
        if line.startswith(MARK):
            return dict(json.loads(line[len(MARK) :]))
    last = (text.strip().splitlines() or ["it printed nothing"])[-1][:300]
    how = f"it was killed by signal {-status}" if status is not None and status < 0 else last
    problems.append(f"{mode} does not import: {how}")
    return {}


def mapped(name: str) -> list[str]:
    """Files called name* that this process maps, in order of address."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = "/" + line.partition("/")[2]
        if Path(path).name.startswith(name) and path not in found:
            found.append(path)
    return found


def torch_facts() -> dict[str, Any]:
    """In a child: torch as it imports, and which NCCL and C++ library that process maps."""
    import torch

    facts: dict[str, Any] = {
        "torch": str(torch.__version__),
        "torch_git": getattr(torch.version, "git_version", None),
        "torch_path": str(Path(str(torch.__file__)).absolute().parent),
        "cuda": torch.version.cuda,
    }
    for path in mapped("libstdc++.so.6")[:1]:
        plain = Path(path).with_name("libstdc++.so.6")
        facts["libstdcxx"] = str(plain) if plain.exists() else path
    for path in mapped("libnccl.so")[:1]:
        # Asked of the library: torch.cuda.nccl.version() is the one that torch was compiled with.
        code = ctypes.c_int()
        ctypes.CDLL(path).ncclGetVersion(ctypes.byref(code))
        facts["nccl_loaded"] = path
        facts["nccl_version"] = f"{code.value // 10000}.{code.value % 10000 // 100}.{code.value % 100}"
    return facts


def module_facts(name: str) -> dict[str, Any]:
    """In a child: the version that a module states of itself."""
    return {"version": getattr(__import__(name), "__version__", None)}


def installed() -> dict[str, str]:
    """Normalised name -> version of all distributions; the first on the path counts, as it does for imports."""
    found: dict[str, str] = {}
    for one in importlib.metadata.distributions():
        name = one.metadata["Name"]
        if name and one.version:
            found.setdefault(normalised(name), one.version)
    return found


def present(module: str) -> bool:
    """Whether a top-level module can be found, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def homes() -> list[Path]:
    """The home folders of all users that exist here."""
    found = {Path("/root"), Path("~").expanduser()}
    try:
        users = Path("/etc/passwd").read_text(errors="replace").splitlines()
    except OSError:
        users = []
    found |= {Path(line.split(":")[5]) for line in users if line.count(":") >= 6}
    # os.path answers False where this user may not look, and Path.is_dir raises there.
    return sorted(home for home in found if home != Path("/") and home.is_absolute() and os.path.isdir(home))  # noqa: PTH112


def globbed(folder: Path, pattern: str) -> list[Path]:
    """What matches below a folder, sorted; nothing where this user may not look."""
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []


def loader_cache() -> list[tuple[str, str]]:
    """(soname, path) as the dynamic linker's cache has them for x86-64."""
    _, text = program(shutil.which("ldconfig") or "/sbin/ldconfig", "-p")
    return re.findall(r"^\s*(\S+) \(libc6,x86-64[^)]*\) => (\S+)$", text, re.MULTILINE)


def library_folders(sites: list[Path]) -> list[Path]:
    """Where CUDA's and NCCL's libraries lie: search path, packages, tool kits, the system, Triton's own downloads."""
    folders = [Path(entry) for entry in os.environ.get("LD_LIBRARY_PATH", "").split(":") if entry]
    for site in sites:
        folders += [*sorted(site.glob("nvidia/*/lib")), site / "torch/lib"]
    toolkits = sorted(Path("/usr/local").glob("cuda*"))
    folders += [folder / part for folder in toolkits for part in ("lib64", "targets/x86_64-linux/lib")]
    folders += [Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib64"), Path("/usr/local/lib")]
    for home in homes():
        folders += globbed(home / ".triton", "**/lib")
    return folders


def search(name: str, cached: list[tuple[str, str]], sites: list[Path]) -> list[str]:
    """Every real file called name*, each once."""
    candidates = [Path(path) for soname, path in cached if soname.startswith(name)]
    for folder in library_folders(sites):
        candidates += globbed(folder, name + "*")
    return sorted({str(path.resolve()) for path in candidates if os.path.isfile(path)})  # noqa: PTH113


def library(path: str, brought: dict[str, tuple[str, str]]) -> dict[str, Any]:
    """A file as the inspection lists it; its version is in its name, or is that of what installed it."""
    name = Path(path).name
    match = re.match(r"(lib.+?\.so)\.(\d+)((?:\.\d+)*)$", name)
    version = brought[path][1] if path in brought else None
    if match is not None and match.group(3):
        version = match.group(2) + match.group(3)
    soname = f"{match.group(1)}.{match.group(2)}" if match is not None else name
    return {"path": path, "soname": soname, "version": version, "size": Path(path).stat().st_size}


def owners() -> dict[str, tuple[str, str]]:
    """Real path of each NCCL and CUDA run-time library -> name and version of the distribution that installed it."""
    found = {}
    for one in importlib.metadata.distributions():
        name = normalised(one.metadata["Name"] or "")
        if name.startswith("nvidia-"):
            for file in one.files or ():
                if re.match(r"lib(nccl|cudart)\.so\.", file.name):
                    found[str(Path(str(one.locate_file(file))).resolve())] = (name, one.version)
    return found


def nccl_header(loaded: str) -> str | None:
    """Version in the header beside a library, else in the system's."""
    beside = Path(loaded).parent.parent / "include/nccl.h"
    for path in (beside, Path("/usr/include/nccl.h"), Path("/usr/local/cuda/include/nccl.h")):
        if path.is_file():
            numbers = dict(NCCL_NUMBERS.findall(path.read_text(errors="replace")))
            if len(numbers) == 3:
                return "{MAJOR}.{MINOR}.{PATCH}".format(**numbers)
    return None


def toolkit() -> tuple[str | None, str | None]:
    """Folder of a CUDA tool kit and its nvcc's version; no version where only the headers are there."""
    places = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    places += [Path("/usr/local/cuda"), *sorted(Path("/usr/local").glob("cuda-*"), reverse=True)]
    on_path = shutil.which("nvcc")
    if on_path is not None:
        places.append(Path(on_path).resolve().parent.parent)
    headers = None
    for place in places:
        match = re.search(r"\bV(\d+\.\d+\.\d+)", program(str(place / "bin/nvcc"), "--version")[1])
        if match is not None:
            return str(place), match.group(1)
        if headers is None and (place / "include/cuda_runtime.h").is_file():
            headers = str(place)
    return headers, None


def compiler(problems: list[str]) -> str | None:
    """Version of the C++ compiler called g++, None without one."""
    for flag in ("-dumpfullversion", "-dumpversion"):
        status, text = program("g++", flag)
        if status == 0 and re.match(r"\d+(\.\d+)*$", text.strip()):
            return text.strip()
    if shutil.which("gcc"):
        problems.append("gcc is there without g++: nothing in C++ can be compiled")
    return None


def libc(problems: list[str]) -> str | None:
    """Version of glibc, None where the C library is another one."""
    try:
        text = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        text = ""
    if not text.startswith("glibc "):
        problems.append("the C library is not glibc")
        return None
    return text.split()[1]


def system() -> str:
    """The distribution's own name for itself."""
    try:
        release = Path("/etc/os-release").read_text()
    except OSError:
        return platform.system()
    return str(dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', release, re.MULTILINE)).get("PRETTY_NAME", "Linux"))


def python_facts(problems: list[str]) -> dict[str, Any]:
    """The interpreter, what torch says of itself, and the Tritons."""
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "python_tag": f"cp{sys.version_info[0]}{sys.version_info[1]}",
        "ext_suffix": sysconfig.get_config_var("EXT_SUFFIX") or "",
        "executable": str(Path(sys.executable).absolute()),
        "site": sysconfig.get_path("purelib"),
        "distributions": installed(),
    }
    if platform.python_implementation() != "CPython":
        problems.append(f"the Python is {platform.python_implementation()}, not CPython")
    if present("torch"):
        facts.update(in_child("torch", problems))
    else:
        problems.append(f"there is no torch for {facts['executable']}")
    if "torch_path" in facts:
        facts["torch_lib"] = str(Path(facts["torch_path"]) / "lib")
    for module in ("triton", "tokenspeed_triton"):
        version = facts["distributions"].get(normalised(module))
        # The package `triton` may be another distribution's (FlagTree's): what it says of itself counts.
        if present(module) and (module == "triton" or version is None):
            version = in_child(module, problems).get("version") or version
        facts[module] = version
    return facts


def on_the_way(path: Path, seen: set[Path]) -> None:
    """Add every folder that has to be passed to reach a path to `seen`: those above it, and above what links name."""
    for parent in [*reversed(path.parents), path]:
        if parent.is_symlink():
            on_the_way(parent.parent / os.readlink(parent), seen)  # noqa: PTH115 (Python 3.8 has no Path.readlink)
    real = Path(os.path.realpath(path))
    seen.update(real.parents)


def closed_to_users(trees: list[Path], files: list[Path]) -> dict[str, Any]:
    """What of `trees` and `files` others than their owner cannot reach or read, by the modes: see the Inspection.

    The group's bits count as well: a user without a name may be of root's group, as clusters and `--user 12345` do it.
    """
    way: set[Path] = set()
    private: dict[str, int] = {}

    def look(path: Path, wanted: int) -> None:
        try:
            status = path.stat()
        except OSError:  # a broken link
            return
        if status.st_mode & wanted != wanted:
            private[os.path.realpath(path)] = 0 if path.is_dir() else status.st_size

    for path in files:
        on_the_way(path, way)
        look(path, 0o44)
    for tree in trees:
        on_the_way(tree, way)
        look(tree, 0o55)
        for folder, below, names in os.walk(tree):
            for name in below:
                look(Path(folder, name), 0o55)
            for name in names:
                look(Path(folder, name), 0o44)
    closed = sorted(str(folder) for folder in way if folder.stat().st_mode & 0o11 != 0o11)
    return {
        "closed": [folder for folder in closed if folder not in private],
        "unreadable": sorted(private)[:KEPT],
        "unreadable_bytes": sum(private.values()),
    }


def reach(facts: dict[str, Any]) -> dict[str, Any]:
    """Whether a user without rights can use this Python."""
    folders = [Path(sys.executable).parent, Path(sysconfig.get_path("stdlib"))]
    folders += [Path(sysconfig.get_path("purelib")), Path(sysconfig.get_path("platlib")), *map(Path, sys.path)]
    # The commands of a virtual environment; a folder such as /usr/bin is the system's own business.
    trees = {folder for folder in folders[1:] if folder.is_dir()}
    trees |= {folders[0]} if (Path(sys.prefix) / "pyvenv.cfg").is_file() else set()
    inner = sorted(tree for tree in trees if not any(other in tree.parents for other in trees))
    files = [Path(sys.executable), Path(sys.prefix, "pyvenv.cfg"), *(path for path in folders if path.is_file())]
    files += [Path(facts[name]) for name in ("nccl_loaded", "libstdcxx") if facts.get(name)]
    return closed_to_users(inner, [path for path in files if path.exists()])


def main() -> dict[str, Any]:
    """All facts, by the names of the inspection's fields."""
    problems: list[str] = []
    sites = sorted({Path(sysconfig.get_path("purelib")), Path(sysconfig.get_path("platlib")), *map(Path, sys.path)})
    cached = loader_cache()
    facts = {
        "os": system(),
        "machine": platform.machine(),
        "gcc": compiler(problems),
        "glibc": libc(problems),
        "libstdcxx": next((path for soname, path in cached if soname == "libstdc++.so.6"), None),
        **python_facts(problems),
    }
    brought = owners()
    facts["nccl"] = [library(path, brought) for path in search("libnccl.so.", cached, sites)]
    facts["cudart"] = [library(path, brought) for path in search("libcudart.so.", cached, sites)]
    loaded = facts.get("nccl_loaded")
    if loaded:
        facts["nccl_header"] = nccl_header(loaded)
        facts["nccl_dist"] = brought.get(str(Path(loaded).resolve()), (None, None))[0]
    facts["cuda_home"], facts["nvcc"] = toolkit()
    facts.update(reach(facts))
    facts["problems"] = problems
    return facts


if __name__ == "__main__":
    # A script's own folder is on its path, and must not be what `import` finds first.
    sys.path[:] = [entry for entry in sys.path if entry and Path(entry).absolute() != HERE.parent]
    asked = sys.argv[1] if len(sys.argv) > 1 else ""
    answer = main() if not asked else torch_facts() if asked == "torch" else module_facts(asked)
    print("\n" + MARK + json.dumps(answer, sort_keys=True), flush=True)
