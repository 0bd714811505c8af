"""Builds deepinfer._C; everything else about the package is in pyproject.toml.

Environment:
    DEEPINFER_SKIP_C=1          package without the extension; its twin in Python is used
    DEEPINFER_PREBUILT_C=FILE   pack this compiled extension; torch is not needed
    DEEPINFER_WHEEL_TAG=TAG     with a prebuilt extension: the wheel's tag, such as cp313-cp313-linux_x86_64
    CUDA_HOME                   where to look first for the CUDA runtime's headers and library
Otherwise the extension is compiled against the torch of the interpreter that runs this file.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any, NoReturn

import setuptools
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
CSRC = Path("deepinfer/csrc")
NAME = "deepinfer._C"
# -g0 and the prefix maps: no debug section and no path of the build machine, so the same source gives the same bytes.
COMPILE_FLAGS = [
    *("-std=c++20", "-O2", "-g0", "-Wall", "-Wextra", "-fvisibility=hidden", "-fvisibility-inlines-hidden"),
    f"-ffile-prefix-map={ROOT}=.",
]
SOURCES = [
    *("abi", "arguments", "blake2b", "block_manager", "engine_bindings", "module", "prefix_bindings", "prefix_index"),
    *("sampler_bindings", "sampler_inputs"),
]


def stop(what: str, cause: str, next_step: str) -> NoReturn:
    """End with a message a user can act on; exit code 4 says that this machine cannot."""
    print(f"error: {what}\n  likely cause: {cause}\n  next step: {next_step}", file=sys.stderr)
    raise SystemExit(4)


if int(setuptools.__version__.split(".")[0]) < 77:
    stop(
        f"setuptools {setuptools.__version__} cannot read this project's pyproject.toml",
        "its licence is written as PEP 639 has it, which setuptools 77 was the first to read",
        f"{sys.executable} -m pip install 'setuptools>=77'",
    )
from setuptools.command.bdist_wheel import bdist_wheel  # noqa: E402 - older setuptools do not have it


def python_tag() -> str:
    return f"cp{sys.version_info.major}{sys.version_info.minor}"


def import_torch() -> Any:
    try:
        import torch
        import torch.utils.cpp_extension
    except ImportError as problem:
        stop(
            f"deepinfer._C is compiled against torch, which {sys.executable} cannot import ({problem})",
            "torch is not installed there, or pip built in an environment of its own, which hides it",
            "add --no-build-isolation where torch is installed, or set DEEPINFER_SKIP_C=1 to go without the extension",
        )
    return torch


def cuda_roots() -> list[Path]:
    """Where the CUDA runtime may lie, most wanted first: what the user named, the system's, the wheels beside torch."""
    named = [os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH")]
    nvcc = shutil.which("nvcc")
    named += [str(Path(nvcc).resolve().parent.parent) if nvcc else "", "/usr/local/cuda"]
    site = Path(sysconfig.get_path("purelib")) / "nvidia"
    roots = [Path(name) for name in named if name] + [site / "cu13", site / "cuda_runtime"]
    return list(dict.fromkeys(roots))


def find_cuda(version: str) -> tuple[Path, Path]:
    """The include folder and the runtime library of the CUDA major version that torch was built for."""
    major = version.split(".")[0]
    includes: list[Path] = []
    libraries: list[Path] = []
    for root in cuda_roots():
        header = root / "include" / "cuda_runtime_api.h"
        # The crt headers come in a wheel of their own, without which the first include already fails.
        if header.is_file() and (root / "include" / "crt" / "host_defines.h").is_file():
            found = re.search(r"#define\s+CUDART_VERSION\s+(\d+)\d{3}\b", header.read_text(errors="replace"))
            if found and found[1] == major:
                includes.append(header.parent)
        for folder in ("lib64", "lib", "targets/x86_64-linux/lib"):
            libraries += sorted((root / folder).glob(f"libcudart.so.{major}*"))[:1]
    if not includes or not libraries:
        missing = "cuda_runtime_api.h and crt/host_defines.h" if not includes else f"libcudart.so.{major}"
        stop(
            f"torch was built for CUDA {version} and no {missing} of CUDA {major} was found",
            "looked under " + ", ".join(str(root) for root in cuda_roots()),
            f"set CUDA_HOME to a CUDA {major} installation with include/ and lib64/",
        )
    return includes[0], libraries[0]


def shared_libstdcxx() -> list[str]:
    """The shared C++ library, named before the compiler names its own.

    A relocated gcc may have only the static one; linked in, it crashes beside torch's at the first std::regex.
    """
    compiler = os.environ.get("CXX", "c++").split()
    if shutil.which(compiler[0]) is None:
        stop(
            f"no C++ compiler: {compiler[0]} was not found",
            "gcc is not installed, or CXX names something else",
            "install g++ (12 or newer), or set DEEPINFER_SKIP_C=1 to go without the extension",
        )
    answer = subprocess.run(
        [*compiler, "-print-file-name=libstdc++.so.6"], capture_output=True, text=True, check=False
    ).stdout.strip()
    usual = ["/usr/lib/x86_64-linux-gnu/libstdc++.so.6", "/usr/lib64/libstdc++.so.6", "/usr/lib/libstdc++.so.6"]
    for candidate in [answer, *usual]:
        if Path(candidate).is_absolute() and Path(candidate).exists():
            return ["-Wl,--no-as-needed", candidate]
    return []  # checked after the link


def check_linked(path: Path) -> None:
    """Stop unless the finished file asks for the shared C++ library."""
    readelf = shutil.which("readelf")
    if readelf is None:
        print(f"note: no readelf here, so how {path.name} is linked was not checked", file=sys.stderr)
        return
    dynamic = subprocess.run([readelf, "-d", str(path)], capture_output=True, text=True, check=True).stdout
    if "[libstdc++.so.6]" not in dynamic:
        path.unlink()
        stop(
            "libstdc++ was linked into deepinfer._C statically, which crashes beside torch",
            "the compiler has no shared libstdc++ of its own",
            'set LDFLAGS="-Wl,--no-as-needed /path/to/libstdc++.so.6" or use the distribution\'s g++',
        )


def read_abi(path: Path) -> dict[str, str]:
    """What a compiled extension says of itself; {} when it is not one of ours, or not all of it is there."""
    if not path.is_file() or path.stat().st_size == 0:
        return {}
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        start = data.find(b"DEEPINFER-C-ABI {")
        end = data.find(b"\0", start)
        if data[:4] != b"\x7fELF" or start < 0 or end < 0:
            return {}
        text = data[data.find(b"{", start) : end]
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    complete = isinstance(found, dict) and {"python", "torch", "torch_git", "cuda"} <= found.keys()
    return {str(key): str(value) for key, value in found.items()} if complete else {}


class CompileNative(build_ext):
    """Compiles through torch's BuildExtension. torch is imported only here: metadata can be read without it."""

    def run(self) -> None:
        torch = import_torch()
        extension = self.describe(torch)
        self.distribution.ext_modules = [extension]
        has_ninja = torch.utils.cpp_extension.is_ninja_available()
        command = torch.utils.cpp_extension.BuildExtension(self.distribution, use_ninja=has_ninja)
        for option in ("build_lib", "build_temp", "inplace", "force", "parallel", "editable_mode", "debug"):
            setattr(command, option, getattr(self, option))
        command.ensure_finalized()
        command.run()
        command.inplace = self.inplace
        check_linked(Path(command.get_ext_fullpath(NAME)))

    def describe(self, torch: Any) -> setuptools.Extension:
        generated = Path(self.build_temp).resolve() / "generated"
        self.write_abi(torch, generated)
        include_dirs, objects = [str(generated)], []
        if torch.version.cuda:
            include, library = find_cuda(torch.version.cuda)
            include_dirs.append(str(include))
            objects.append(str(library))
        timer = "graph_timer_cuda" if torch.version.cuda else "graph_timer_none"
        includes = [*include_dirs, *torch.utils.cpp_extension.include_paths()]
        return torch.utils.cpp_extension.CppExtension(
            NAME,
            [str(CSRC / f"{source}.cpp") for source in sorted([*SOURCES, timer])],
            include_dirs=include_dirs,
            extra_objects=objects,
            extra_compile_args=[*COMPILE_FLAGS, *(f"-ffile-prefix-map={path}=include" for path in includes)],
            extra_link_args=shared_libstdcxx(),
        )

    def write_abi(self, torch: Any, folder: Path) -> None:
        """The header that becomes the file's .deepinfer.abi section."""
        fields = {
            "python": python_tag(),
            "torch": str(torch.__version__),
            "torch_git": str(torch.version.git_version),
            "cuda": str(torch.version.cuda or ""),
        }
        text = f"#define DEEPINFER_ABI_FIELDS {json.dumps(json.dumps(fields)[1:-1])}\n"
        folder.mkdir(parents=True, exist_ok=True)
        header = folder / "deepinfer_abi.inc"
        if not header.exists() or header.read_text() != text:
            header.write_text(text)
            self.force = True  # objects of another torch lie in the same folder


class PackNative(build_ext):
    """Puts a compiled extension into the package as it is."""

    def run(self) -> None:
        source = Path(os.environ["DEEPINFER_PREBUILT_C"])
        abi = read_abi(source)
        if not abi:
            stop(
                f"DEEPINFER_PREBUILT_C={source} is not a compiled deepinfer._C",
                "the file is missing, cut short or something else",
                "build one with `python setup.py build_ext`, or unset DEEPINFER_PREBUILT_C to compile here",
            )
        if abi["python"] != wheel_tag().split("-")[0]:
            stop(
                f"{source} is for {abi['python']} and the wheel's tag says {wheel_tag()}",
                "it was compiled by another Python",
                f"set DEEPINFER_WHEEL_TAG={abi['python']}-{abi['python']}-linux_x86_64",
            )
        target = Path(self.get_ext_fullpath(NAME))
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        target.chmod(0o755)

    def get_ext_filename(self, fullname: str) -> str:
        digits = wheel_tag().split("-")[0].removeprefix("cp")
        return f"{fullname.replace('.', '/')}.cpython-{digits}-x86_64-linux-gnu.so"


def wheel_tag() -> str:
    tag = os.environ.get("DEEPINFER_WHEEL_TAG") or f"{python_tag()}-{python_tag()}-linux_x86_64"
    if not re.fullmatch(r"(cp3\d+)-\1-(linux|manylinux\w+)_x86_64", tag):
        stop(f"DEEPINFER_WHEEL_TAG={tag} is not a tag", "a slip of the pen", "write it as cp313-cp313-linux_x86_64")
    return tag


class PackWheel(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        python, abi, platform = wheel_tag().split("-")
        return python, abi, platform


class CleanBuildPy(build_py):
    """Starts from an empty package folder: what an earlier build left there would end in the wheel."""

    def run(self) -> None:
        if not self.editable_mode:
            shutil.rmtree(Path(self.build_lib) / "deepinfer", ignore_errors=True)
        super().run()


def main() -> None:
    with contextlib.suppress(OSError):  # read-only sources: compiling elsewhere needs no folder here
        (ROOT / ".setuptools").mkdir(exist_ok=True)  # setup.cfg's egg_base, which must exist
    commands: dict[str, type[setuptools.Command]] = {"build_py": CleanBuildPy}
    extensions = [setuptools.Extension(NAME, [str(CSRC / f"{source}.cpp") for source in SOURCES])]
    if os.environ.get("DEEPINFER_PREBUILT_C"):
        commands |= {"build_ext": PackNative, "bdist_wheel": PackWheel}
    elif os.environ.get("DEEPINFER_WHEEL_TAG"):
        stop("DEEPINFER_WHEEL_TAG is set without DEEPINFER_PREBUILT_C", "only a packed extension has a tag of its own",
             "unset it: what is compiled here is tagged for this Python")  # fmt: skip
    elif os.environ.get("DEEPINFER_SKIP_C", "").lower() not in ("", "0", "false", "no", "off"):
        extensions = []
    else:
        commands["build_ext"] = CompileNative
    setuptools.setup(ext_modules=extensions, cmdclass=commands)


main()
