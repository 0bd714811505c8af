"""Every kind of mistake in matrix.yaml is named with its line and key, all of them at once."""

from collections.abc import Callable
from pathlib import Path

import pytest

from build.cache import REPOSITORY
from build.errors import MatrixError
from build.matrix.load import load_matrix

REAL = (REPOSITORY / "matrix.yaml").read_text()
Edit = Callable[[str, str], MatrixError]


def clone(folder: Path, text: str | bytes) -> Path:
    """A repository with just what the real matrix names, and a matrix of its own."""
    for name in ("flagtree", "vllm", "flagos", "cpu", "host"):
        (folder / "images" / name).mkdir(parents=True, exist_ok=True)
        for lock in ("replica.lock", "runtime.lock", "toolchain.lock"):
            (folder / "images" / name / lock).touch()
    (folder / "deepinfer" / "csrc").mkdir(parents=True, exist_ok=True)
    (folder / "images" / "shims").mkdir(parents=True, exist_ok=True)
    (folder / "images" / "shims" / "cuda12_memcpy_batch.hpp").touch()
    (folder / "setup.py").touch()
    file = folder / "matrix.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


@pytest.fixture
def edited(tmp_path: Path) -> Edit:
    """Replace one text of the real file by another and give the error that follows."""

    def edit(old: str, new: str) -> MatrixError:
        assert REAL.count(old) >= 1, f"the matrix has no {old!r} any more"
        with pytest.raises(MatrixError) as caught:
            load_matrix(clone(tmp_path, REAL.replace(old, new, 1)))
        return caught.value

    return edit


def line_of(text: str, inside: str = REAL) -> int:
    """The line on which a text begins."""
    return inside[: inside.index(text)].count("\n") + 1


LOCK = "runtime_lock: images/cpu/runtime.lock"
CPU_NAMES = "components: [_C, deep_gemm, deep_ep]"
HERE = "path: .\n      include: [deepinfer/csrc, setup.py]"
GEMM_SHA = "sha256: aad050965750f809b8dbb744a8db54fc4eba0eb3bc99d565fa9b41010fe25351"
MISTAKES = {
    "unknown key": (
        "    memory_gib: 2.0",
        "    memory_gb: 2.0",
        ["components._C.memory_gb: unknown key", "memory_gib"],
    ),
    "unknown key far from all": ("schema: 1", "schema: 1\nqqq: 1", ["qqq: unknown key; one of schema, components"]),
    "version as a number": (
        'version: "2.8.2"\n    source',
        "version: 2.10\n    source",
        ['2.10 is a number to YAML where text is wanted: write "2.10" in quotes'],
    ),
    "version as a date": ('python: "3.12"', "python: 2026-01-01", ["is a date to YAML", "in quotes"]),
    "yes is not text": ("licence: MIT", "licence: no", ["true/false value to YAML", '"no" in quotes']),
    "text is not a boolean": ("toolchain: true", "toolchain: yes", ["toolchain: must be true or false, not 'yes'"]),
    "octal": ("memory_gib: 2.0", "memory_gib: 0o7", ["must be a number above 0"]),
    "sexagesimal": ("memory_gib: 2.0", "memory_gib: 1:30", ["must be a number above 0"]),
    "infinite memory": ("memory_gib: 2.0", "memory_gib: .inf", ["must be a number above 0"]),
    "negative memory": ("memory_gib: 2.0", "memory_gib: -1", ["must be a number above 0, 10000 at most, not '-1'"]),
    "null": ("licence: MIT", "licence:", ["components.deep_gemm.licence: has no value"]),
    "bad specifier": ('gcc: ">=11"', 'gcc: "=>11"', ["components._C.requires.gcc", "not a version specifier"]),
    "empty specifier": ('gcc: ">=11"', 'gcc: ","', ["components._C.requires.gcc", "is empty"]),
    "unknown suite": (
        "suite: trixie",
        "suite: trixy",
        ["replica.suite", "must be one of the Debian suites bookworm, trixie"],
    ),
    "unknown fact": ('gcc: ">=11"', 'gc: ">=11"', ["requires.gc: unknown fact; did you mean 'gcc'?"]),
    "fact that cannot be required": ('gcc: ">=11"', 'triton: ">=3"', ["requires.triton: unknown fact"]),
    "unknown expected fact": ('tokenspeed-triton: "', 'tokenspeed: "', ["expect.tokenspeed: unknown fact"]),
    "expected fact no version": ('glibc: "2.39"', 'glibc: "new"', ["expect.glibc", "is not a version"]),
    "missing hash": (f"      {GEMM_SHA}\n", "", ["deep_gemm.source.sha256: missing: a pypi source needs it"]),
    "short hash": (GEMM_SHA, "sha256: aad05096", ["must be a sha256: 64 digits"]),
    "upper-case hash": (GEMM_SHA, f"sha256: {GEMM_SHA[8:].upper()}", ["must be a sha256"]),
    "placeholder": (GEMM_SHA, f'sha256: "{"0" * 64}"', ["placeholder of zeros"]),
    "hash as a number": (GEMM_SHA, f"sha256: {'1' * 64}", ["is a number to YAML"]),
    "two sources": (
        f"{GEMM_SHA}\n",
        f"{GEMM_SHA}\n      path: deepinfer\n",
        ["exactly one of pypi, path, git", "pypi and path"],
    ),
    "no source": ("      path: .\n", "", ["components._C.source: needs exactly one of pypi, path, git; it has none"]),
    "stray hash": (
        "      path: .\n",
        f"      path: .\n      {GEMM_SHA}\n",
        ["sha256: does not belong to a path source"],
    ),
    "abbreviated commit": (
        HERE,
        "git: https://example.org/x.git\n      commit: abc1234",
        ["must be a full commit: 40 digits"],
    ),
    "commit missing": (
        HERE,
        "git: https://example.org/x.git",
        ["source.commit: missing: a git source needs it"],
    ),
    "git over plain text": (
        HERE,
        "git: ext::sh -c touch% /tmp/x\n      commit: " + "a1" * 20,
        ["must be an https:// or ssh:// URL"],
    ),
    "versions differ": (
        'version: "2.8.2"\n    source',
        'version: "2.8.3"\n    source',
        ["differs from the component's version 2.8.3"],
    ),
    "duplicate key": ("  cpu:\n", "  flagtree:\n", ["the key 'flagtree' stands here and on line"]),
    "duplicate in a list": (CPU_NAMES, "components: [_C, _C]", ["components[1]: '_C' stands in this list twice"]),
    "names too alike": ("  deep_ep:\n", "  Deep-GEMM:\n", ["is too like 'deep_gemm'"]),
    "unknown component": (
        CPU_NAMES,
        "components: [_C, deep_gem]",
        ["images.cpu.components[1]: unknown component 'deep_gem'; did you mean 'deep_gemm'?"],
    ),
    "no components": (CPU_NAMES, "components: []", ["images.cpu.components: names no component"]),
    "parent path": (LOCK, "runtime_lock: ../cpu.lock", ["leaves the repository"]),
    "hidden parent path": (LOCK, "runtime_lock: images/../../x", ["leaves the repository"]),
    "absolute path": (LOCK, "runtime_lock: /etc/passwd", ["must be a path below the repository"]),
    "missing file": (LOCK, "runtime_lock: images/cpu/x.lock", ["no such file: images/cpu/x.lock"]),
    "folder for a lock": (LOCK, "runtime_lock: images/cpu", ["is not a file"]),
    "file for a folder": (HERE, "path: setup.py", ["is not a folder"]),
    "python tag": (
        "title: NCCL",
        "title: !!python/object/apply:os.system ['true']",
        ["tags are not accepted", "python"],
    ),
    "harmless tag": ("title: NCCL", "title: !!str NCCL", ["tags are not accepted"]),
    "own tag": ("title: NCCL", "title: !x NCCL", ["tags are not accepted: remove '!x'"]),
    "anchor": ("title: NCCL", "title: &a NCCL", ["components.nccl.title: anchors (&name) are not accepted"]),
    "merge key": ("    title: NCCL", "    <<: {}\n    title: NCCL", ["the key '<<' is a merge to YAML"]),
    "number as a key": ("    title: NCCL", "    1: x\n    title: NCCL", ["the key '1' is a number to YAML"]),
    "list as a key": ("    title: NCCL", "    ? [a]\n    : x\n    title: NCCL", ["cannot be a key"]),
    "two documents": ("components:\n  nccl", "---\ncomponents:\n  nccl", ["a second document starts here"]),
    "tab": ("    title: NCCL", "\ttitle: NCCL", ["not YAML:"]),
    "escape that does not exist": ("title: NCCL", 'title: "\\UFFFFFFFF"', ["not YAML:"]),
    "lone surrogate": ("title: NCCL", 'title: "\\uD800"', ["must be one line of printable text"]),
    "control character": ("title: NCCL", 'title: "a\\e[31mb"', ["must be one line of printable text"]),
    "shell in a name": ("  deep_ep:\n", '  "x; touch y":\n', ["must be a name: letters, digits"]),
    "substitution in a name": ("  cpu:\n", '  "$(id)":\n', ["images.'$(id)'", "must be a name"]),
    "option as a name": ("  cpu:\n", '  "-v":\n', ["must be a name"]),
    "option as a package": (
        "apt: [ca-certificates",
        'apt: ["--force", ca-certificates',
        ["the name of a Debian package"],
    ),
    "no module": ("    module: deep_gemm\n", "", ["components.deep_gemm.module: missing"]),
    "overlay that changes nothing": ("    provides: nccl\n", "", ["components.nccl.provides: missing"]),
    "wheel that provides": (
        "module: deep_gemm",
        "module: deep_gemm\n    provides: cuda",
        ["only an overlay provides a fact"],
    ),
    "beyond nothing": ("beyond:\n      torch:", "beyond:\n      glibc:", ["`requires` says nothing about glibc"]),
    "beyond without a reason": ('        stated: ">=13.1"\n', "", ["beyond.cuda.stated: missing"]),
    "shims for nothing": (
        "    shims: [images/shims/cuda12_memcpy_batch.hpp]\n",
        "",
        ["deep_ep.shims_where: there are no shims that it could be about"],
    ),
    "shims for an unknown fact": ('      cuda: "<13"', '      cudaa: "<13"', ["unknown fact; did you mean 'cuda'?"]),
    "host with a base": ("kind: host", "kind: host\n    vendor: x", ["the host has no base: remove it"]),
    "image without a base": ("kind: host", "kind: image", ["needs a base", "expect: missing"]),
    "size without a vendor": ("    vendor_gb: 42\n", "", ["vendor_gb: belongs together with `vendor`"]),
    "unknown kind": ("kind: overlay", "kind: overley", ["'overley' is not known; did you mean 'overlay'?"]),
    "mapping for text": ("title: NCCL", "title: {a: b}", ["must be a single value, not a mapping"]),
    "text for a mapping": (f"    source:\n      {HERE}", "    source: here", ["must be a mapping of keys"]),
    "text for a list": (CPU_NAMES, "components: _C", ["must be a list, not the text '_C'"]),
    "list for a mapping": (
        'requires:\n      torch: ">=2.9"\n      gcc: ">=11"\n      python: ">=3.11"',
        "requires: []",
        ["must be a mapping of names"],
    ),
    "other schema": ("schema: 1", "schema: 2", ["schema: '2' is not known"]),
    "quoted schema": ("schema: 1", 'schema: "1"', ["schema: '1' is not known"]),
    "no schema": ("schema: 1\n", "", ["schema: missing"]),
}


@pytest.mark.parametrize(("old", "new", "said"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_named(edited: Edit, old: str, new: str, said: list[str]) -> None:
    error = edited(old, new)
    text = str(error)
    assert error.exit_code == 2
    for part in said:
        assert part in text
    assert "next step" in text


def test_lines_and_all_problems_at_once(tmp_path: Path) -> None:
    text = REAL.replace("memory_gib: 2.0", "memory_gb: 2.0").replace('gcc: "12.2"', "gcc: 12.2")
    text = text.replace('cuda: ">=12.9"', 'cuda: ">>12.9"', 1).replace("module: deep_ep", "module: deep-ep")
    file = clone(tmp_path, text)
    with pytest.raises(MatrixError) as caught:
        load_matrix(file)
    said = str(caught.value)
    assert "has 4 problems" in said
    for wrong in ("memory_gb: 2.0", "gcc: 12.2", 'cuda: ">>12.9"', "module: deep-ep"):
        assert f"matrix.yaml:{line_of(wrong, text)}: " in said
    order = [said.index(key) for key in ("memory_gb", "requires.cuda", "deep_ep.module", "expect.gcc")]
    assert order == sorted(order)


def test_one_mistake_is_told_once(edited: Edit) -> None:
    assert "has 1 problem:" in str(edited("module: deep_gemm", "module: 1"))
    assert "has 1 problem:" in str(edited(GEMM_SHA, "sha256: 12"))


def test_a_hundred_problems_are_counted_and_cut(tmp_path: Path) -> None:
    with pytest.raises(MatrixError) as caught:
        load_matrix(clone(tmp_path, REAL + "".join(f"wrong{number}: x\n" for number in range(100))))
    assert "has 100 problems" in str(caught.value)
    assert "… and 60 more" in str(caught.value)


def test_a_link_out_of_the_repository_is_refused(tmp_path: Path) -> None:
    outside = tmp_path / "outside.lock"
    outside.touch()
    file = clone(tmp_path / "repository", REAL)
    lock = file.parent / "images" / "cpu" / "runtime.lock"
    lock.unlink()
    lock.symlink_to(outside)
    with pytest.raises(MatrixError, match=r"images\.cpu\.runtime_lock: .* through a symbolic link"):
        load_matrix(file)


def test_a_link_in_a_loop_is_refused(tmp_path: Path) -> None:
    file = clone(tmp_path, REAL)
    lock = tmp_path / "images" / "cpu" / "runtime.lock"
    lock.unlink()
    lock.symlink_to(lock)
    with pytest.raises(MatrixError, match=r"cannot be read: images/cpu/runtime\.lock"):
        load_matrix(file)
