"""The gates by name, in the order in which they are judged: the cause before its consequences."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Gate:
    """promise: what holds when it passed.  failure: what usually breaks it, and the cure."""

    name: str
    promise: str
    failure: str


GATES = (
    Gate(
        "readable",
        "Any user can read every file of ours and enter every folder, and write in the cache.",
        "A file was installed with the builder's umask. Set its mode when the overlay is put together.",
    ),
    Gate(
        "needed",
        "Every library that our shared objects NEED is found in a process that imported torch.",
        "A component was linked against a library that this base lacks or keeps elsewhere. Rebuild it on this base.",
    ),
    Gate(
        "symbols",
        "Every undefined symbol of our extension modules, with its version, exists in this torch and Python.",
        "The component was compiled against another torch (or a newer libstdc++). Rebuild it against this base.",
    ),
    Gate(
        "libstdcxx_shared",
        "Our extension modules share the process's libstdc++.so.6 and carry no copy of it.",
        "A relocated gcc linked libstdc++ statically; std::regex then crashes at the first JIT call. "
        'Link with LDFLAGS="-Wl,--no-as-needed /usr/lib/x86_64-linux-gnu/libstdc++.so.6".',
    ),
    Gate(
        "one_nccl",
        "A process that imported torch and all of ours maps one libnccl file.",
        "A second NCCL was installed beside the one that torch loads by path. The newer one has to replace it.",
    ),
    Gate(
        "one_cudart",
        "A process that imported torch and all of ours maps one file for each soname of libcudart.",
        "A library path puts another CUDA runtime in front of torch's own.",
    ),
    Gate(
        "imports",
        "deepinfer and every component import in a fresh process, from /, as a user without rights.",
        "A component crashes, hangs or raises on import; the row says which and how.",
    ),
    Gate(
        "ours",
        "The files that those imports load are ours: in our folders, with the bytes of the recorded artefact.",
        "Another package of the same name comes first, or a file was changed after it was built.",
    ),
    Gate(
        "vendor",
        "torch, Triton and the vendor's own modules import as before, and deep_gemm and deep_ep lead where they did.",
        "Something of ours reached the path of programs that do not import deepinfer.",
    ),
    Gate(
        "pins",
        "Every distribution of the base has the version it had, but for those declared as replaced (NCCL).",
        "An install step resolved dependencies. Install from a full lock with --no-deps.",
    ),
    Gate(
        "flaggems_off",
        "Nothing that we set or add turns FlagGems on.",
        "An environment variable, a .pth file or a sitecustomize of ours enables it.",
    ),
    Gate(
        "toolchain",
        "nvcc compiles a .cu with FP8, libcu++ and sm_90a instructions, as a user without rights.",
        "The run-time tool chain is incomplete (nvvm, cccl, crt, host compiler): no JIT of DeepGEMM or DeepEP works.",
    ),
    Gate(
        "probe",
        "`deepinfer probe` compiles 7 of 7 Triton checks for sm_90a.",
        "This Triton cannot compile for Hopper here; the report names the check and the compiler's words.",
    ),
    Gate(
        "warm",
        "In an image built with --warm a run finds every kernel: `deepinfer warm` compiles none.",
        "The cache was filled with another Triton, ptxas or engine than the image has, or its entries are damaged. "
        "Build it again.",
    ),
    Gate(
        "entrypoint",
        "The entrypoint answers `env --json`, the health check passes, the user is not root, the labels are true.",
        "See the row: each of the four is judged by itself.",
    ),
    Gate(
        "library_path",
        "libcudart.so.12 loads for any user whatever LD_LIBRARY_PATH says, and CUDA 13 maps one libcudart.so.13.",
        "The loader's cache does not know the library; run ldconfig after the file under ld.so.conf.d is written.",
    ),
    Gate(
        "layers",
        "What was added to the base holds no secret, nothing of the builder and nothing of the building machine.",
        "A layer copied more than the overlay, or a secret travelled otherwise than as a secret mount.",
    ),
)

NAMES = tuple(gate.name for gate in GATES)


def as_markdown() -> str:
    """docs/gates.md, whole."""
    lines = [
        "# Gates",
        "",
        "<!-- Generated from build/gates/catalogue.py: python -m build.gates.catalogue > docs/gates.md -->",
        "",
        "A finished image gets its names only after these checks. They run inside it: in fresh containers, without a",
        "GPU or a network, from `/`, with the image's own environment, as uid 12345. `./run check --image NAME` runs",
        "them again. For the host target the same programs run on this machine against the prefix.",
        "",
        "A gate that cannot apply is shown as `n/a` with the reason. Where one fault would fail several gates, the",
        "first in this order fails and the others name it as their reason.",
        "",
        "| gate | what holds when it passes | what breaks it |",
        "|---|---|---|",
    ]
    lines += [f"| `{gate.name}` | {gate.promise} | {gate.failure} |" for gate in GATES]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(as_markdown(), end="")
