"""What the gates make of facts: the first cause is named once, what cannot apply says why, nothing is dropped."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from build.cache import REPOSITORY
from build.gates.artefacts import expected_files
from build.gates.catalogue import NAMES, as_markdown
from build.gates.judge.binaries import judge_linked, judge_readable
from build.gates.judge.layers import judge_layers, needles
from build.gates.judge.processes import judge_imports, judge_library_path, judge_maps, judge_ours
from build.gates.judge.rows import Ending, Row, Verdicts
from build.gates.judge.software import judge_flaggems, judge_pins, judge_probe, judge_toolchain, judge_vendor
from build.gates.judge.surface import REQUIRED, Surface, judge_command, judge_entrypoint
from build.gates.place import Place, absent, modules, other_cudart, replaced
from build.gates.result import GateResult, as_text
from build.inspection import Inspection, Library
from build.matrix.model import Component, Source, Target
from build.plan import Cell, TargetPlan
from build.wheels.wheelhouse import Wheelhouse

PLACE = Place("/usr/bin/python3", "/opt/deepinfer", "/opt/deepinfer/site", "/usr/lib/p/deepinfer", ("deepinfer",))
OURS = "/opt/deepinfer/site"
SEGFAULT = 'Fatal Python error: Segmentation fault\n  File "<frozen importlib>", line 1\n  File "/x/y.py", line 7 in f'


def _one(verdicts: Verdicts, name: str) -> GateResult:
    (found,) = [result for result in verdicts.results if result.name == name]
    return found


def _inspection(**changes: Any) -> Inspection:
    facts: dict[str, Any] = {
        "torch": "2.11.0+cu130", "cuda": "13.0", "triton": "3.6.0", "tokenspeed_triton": "3.8.10.post1",
        "distributions": {"torch": "2.11.0+cu130", "nvidia-nccl-cu13": "2.28.9", "vllm": "0.24.0"},
    }  # fmt: skip
    return Inspection("sha256:1", "base", "os", "x86_64", "3.13", "cp313", ".so", "/p", "/s", **{**facts, **changes})


def _plan(kind: Any = "image") -> TargetPlan:
    source = Source(pypi="nvidia-nccl-cu13", version="2.32.3")
    nccl = Component("nccl", "NCCL", "overlay", "2.32.3", source, provides="nccl")
    gemm = Component("deep_gemm", "DeepGEMM", "wheel", "2.8.2", Source(path="."), module="deep_gemm", toolchain=True)
    deep_ep = Component("deep_ep", "DeepEP", "wheel", "2.5.0", Source(path="."), module="deep_ep", toolchain=True)
    cells = (
        Cell("x", nccl, "build", key="1" * 64),
        Cell("x", gemm, "cached", key="2" * 64),
        Cell("x", deep_ep, "unsupported", reason="no NCCL"),
    )
    return TargetPlan(Target("x", "x", kind, ("nccl",)), _inspection(), "replica", cells, "3" * 64)


def test_the_page_is_what_the_catalogue_says() -> None:
    page = REPOSITORY / "docs" / "gates.md"
    assert page.read_text() == as_markdown(), "python -m build.gates.catalogue > docs/gates.md"
    assert len(set(NAMES)) == len(NAMES)


def test_what_the_plan_puts_in_is_what_is_asked_of_it() -> None:
    plan = _plan()
    assert modules(plan) == ("deepinfer", "deep_gemm")
    assert absent(plan) == {"deep_ep": "no NCCL"}
    assert replaced(plan) == {"nvidia-nccl-cu13": "2.32.3"}
    assert replaced(_plan("host")) == {}
    prefix = Place("/p", "/pre", "/pre/site", "/pre/site/deepinfer", ("/pre/bin/deepinfer",))
    assert prefix.environment() == {"PYTHONPATH": "/pre/site"}
    assert PLACE.environment() == {}


def test_a_fault_is_counted_by_the_first_gate_that_names_it() -> None:
    verdicts = Verdicts()
    verdicts.add("symbols", [Row(False, "a.so: undefined f", "a"), Row(True, "b", "b")])
    verdicts.add("imports", [Row(False, "import a fails", "a"), Row(True, "b")])
    verdicts.add("ours", [Row(False, "a is missing", "a")])
    symbols, imports, ours = verdicts.results
    assert (symbols.state, imports.state, ours.state) == ("failed", "passed", "n/a")
    assert "a already fails symbols" in imports.detail
    assert ours.skipped_reason == "a already fails symbols"
    text = as_text(verdicts.results)
    assert "failed: symbols" in text
    assert "a.so: undefined f" in text


def test_nothing_is_told_twice() -> None:
    verdicts = Verdicts()
    verdicts.add("symbols", [Row(True, "deepinfer._C (246)"), Row(True, "deepinfer._C (246)")])
    judge_imports(verdicts, {"a": Ending(0)}, Ending(0), {"b": "needs gcc >= 13", "c": "needs gcc >= 13"})
    assert verdicts.results[0].detail == "deepinfer._C (246)"
    assert "b, c: unsupported" in verdicts.results[1].detail and "gcc" not in verdicts.results[1].detail


def test_a_long_list_of_faults_is_cut_and_counted() -> None:
    verdicts = Verdicts()
    verdicts.add("readable", [Row(False, f"file {number}") for number in range(40)])
    assert "file 11\nand 28 more\ncure: " in verdicts.results[0].detail


def test_a_file_name_that_is_no_text_can_be_shown() -> None:
    verdicts = Verdicts()
    verdicts.add("layers", [Row(False, "/x/odd\udcff.pem: a key")])
    assert "odd\\udcff.pem" in verdicts.results[0].detail


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        (Ending(-11, "SIGSEGV", stderr=SEGFAULT), "killed by SIGSEGV at /x/y.py:7"),
        (Ending(-9, "SIGKILL"), "killed by SIGKILL"),
        (Ending(-9, "SIGKILL", timed_out=True, seconds=120), "hung: no end after 120 s"),
        (Ending(1, stderr="Traceback\nImportError: no\n\n"), "status 1: ImportError: no"),
        (Ending(3), "status 3: it said nothing"),
    ],
)
def test_an_ending_says_why(ending: Ending, words: str) -> None:
    assert ending.problem() == words


def test_readable_blames_the_module_of_the_file() -> None:
    verdicts = Verdicts()
    found = {"path": f"{OURS}/deep_gemm/_C.so", "mode": "-rw-------", "owner": "0"}
    access = {"uid": 12345, "unreadable": [found], "cache": "Permission denied: /cache"}
    judge_readable(verdicts, PLACE, ["deepinfer", "deep_gemm"], access)
    assert verdicts.blamed["deep_gemm"] == "readable"
    assert "/cache" not in verdicts.blamed
    assert f"{OURS}/deep_gemm/_C.so: -rw-------, owner 0, closed to uid 12345" in verdicts.results[0].detail


def _library(module: str, **changes: Any) -> dict[str, Any]:
    needed = [{"soname": "libc.so.6", "how": "loaded"}, {"soname": "libstdc++.so.6", "how": "loaded"}]
    facts = {"needed": needed, "undefined": 9, "lost": [], "cxx": True, "static_cxx": []}
    return {"path": f"{OURS}/{module}/_C.so", "module": module, **facts, **changes}


def test_the_driver_is_not_asked_of_an_image() -> None:
    needed = [*_library("a")["needed"], {"soname": "libcuda.so.1", "how": "driver", "error": "no file"}]
    lost = [{"name": "cuGetProcAddress", "plain": "cuGetProcAddress", "version": ""}]
    verdicts = Verdicts()
    judge_linked(verdicts, {"libraries": [_library("a", needed=needed, lost=lost)]}, 1.0, "")
    assert [result.state for result in verdicts.results] == ["passed"] * 3
    assert "libcuda.so.1 comes with the driver" in _one(verdicts, "needed").detail


def test_a_cuda_symbol_is_missed_where_the_module_does_not_need_the_driver() -> None:
    lost = [{"name": "cuGetProcAddress", "plain": "cuGetProcAddress", "version": ""}]
    verdicts = Verdicts()
    judge_linked(verdicts, {"libraries": [_library("a", lost=lost)]}, 1.0, "")
    assert [result.name for result in verdicts.results if not result.ok] == ["symbols"]


def test_each_fault_of_a_file_fails_one_gate() -> None:
    missing = [{"soname": "libnccl.so.2", "how": "missing", "error": "no such file"}]
    static = [need for need in _library("c")["needed"] if "stdc" not in need["soname"]]
    lost = [{"name": "_ZN2at1fEv", "plain": "at::f()", "version": "V1"}]
    libraries = [
        _library("a", needed=missing, lost=lost), _library("b", lost=lost), _library("c", needed=static),
        {"path": f"{OURS}/d/_C.so", "module": "d", "error": f"{OURS}/d/_C.so is empty"},
    ]  # fmt: skip
    verdicts = Verdicts()
    judge_linked(verdicts, {"libraries": libraries}, 1.0, "")
    assert verdicts.blamed == {"a": "needed", "d": "needed", "b": "symbols", "c": "libstdcxx_shared"}
    assert f"{OURS}/b/_C.so: undefined at::f() (version V1)" in _one(verdicts, "symbols").detail
    assert f"{OURS}/a/_C.so -> libnccl.so.2: no such file" in _one(verdicts, "needed").detail


def test_a_torch_that_does_not_import_fails_what_needs_it() -> None:
    verdicts = Verdicts()
    judge_linked(verdicts, {"torch_error": "ImportError: libtorch", "libraries": []}, 1.0, "")
    assert [result.ok for result in verdicts.results] == [False] * 3


def _line(module: str, error: str = "", files: tuple[str, ...] = (), **more: str) -> dict[str, Any]:
    mapped = [{"path": path, "soname": Path(path).name, "file": f"0:{number}"} for number, path in enumerate(files)]
    return {"module": module, "error": error, "mapped": mapped, "flaggems": [], "file": "", **more}


def test_one_file_a_soname_is_one_runtime() -> None:
    verdicts = Verdicts()
    files = ("/a/libnccl.so.2", "/b/libcudart.so.13", "/c/libcudart.so.12")
    judge_maps(verdicts, [_line("torch", files=files)], seconds=1.0, cuda=True)
    assert [result.state for result in verdicts.results] == ["passed", "passed"]


def test_two_files_of_a_soname_are_named_and_explain_deep_ep() -> None:
    lines = [
        _line("torch", files=("/a/libnccl.so.2",)),
        _line("deep_ep", "AssertionError: Duplicate NCCL runtime", files=("/a/libnccl.so.2", "/b/libnccl.so.2")),
    ]
    verdicts = Verdicts()
    judge_maps(verdicts, lines, seconds=1.0, cuda=False)
    assert "/a/libnccl.so.2 and /b/libnccl.so.2" in _one(verdicts, "one_nccl").detail
    judge_imports(verdicts, {"deep_ep": Ending(1, stderr="AssertionError: Duplicate NCCL runtime")}, Ending(0), {})
    assert _one(verdicts, "imports").skipped_reason == "deep_ep already fails one_nccl"


def test_a_cuda_torch_without_a_runtime_and_a_cpu_torch_differ() -> None:
    verdicts = Verdicts()
    judge_maps(verdicts, [_line("torch")], seconds=1.0, cuda=True)
    assert [result.ok for result in verdicts.results] == [False, False]
    verdicts = Verdicts()
    judge_maps(verdicts, [_line("torch")], seconds=1.0, cuda=False)
    assert [result.skipped_reason for result in verdicts.results] == [
        "a CPU build: no libnccl.so is mapped", "a CPU build: no libcudart.so is mapped",
    ]  # fmt: skip


def test_a_process_that_ended_before_torch_fails_imports_only() -> None:
    verdicts = Verdicts()
    together = Ending(-11, "SIGSEGV", stdout='{"starts": "torch"}\n')
    judge_maps(verdicts, together.lines(), seconds=1.0, cuda=True)
    judge_imports(verdicts, {"deepinfer": Ending(0)}, together, {"deep_ep": "no NCCL"})
    assert [result.name for result in verdicts.results if not result.ok] == ["imports"]
    assert "import torch after the others in one process: killed by SIGSEGV" in _one(verdicts, "imports").detail


def test_what_fails_only_beside_the_others_is_told() -> None:
    steps = [{"starts": "a"}, {"module": "a", "error": ""}, {"starts": "b"}, {"module": "b", "error": "clash"}]
    together = Ending(0, stdout="a greeting\n" + "\n".join(json.dumps(step) for step in steps))
    verdicts = Verdicts()
    judge_imports(verdicts, {"a": Ending(0), "b": Ending(0)}, together, {})
    assert "import b after the others in one process: clash" in verdicts.results[0].detail


def test_files_from_elsewhere_or_with_other_bytes_are_not_ours() -> None:
    lines = [
        _line("deep_gemm", file="/usr/lib/p/deep_gemm/__init__.py"),
        _line("deepinfer", file="/usr/lib/p/deepinfer/__init__.py"),
        _line("deep_ep", file=f"{OURS}/deep_ep/__init__.py"),
    ]
    hashes = {f"{OURS}/deep_ep/a.cuh": "a" * 64, f"{OURS}/deep_ep/b.cuh": "b" * 64}
    expected = {"deep_ep": {"deep_ep/a.cuh": "f" * 64, "deep_ep/b.cuh": "b" * 64, "deep_ep/c.cuh": "c" * 64}}
    verdicts = Verdicts()
    judge_ours(verdicts, PLACE, lines, hashes, expected)
    assert verdicts.results[0].detail.splitlines()[:-1] == [
        f"import deep_gemm loads /usr/lib/p/deep_gemm/__init__.py, not a file below {OURS}/deep_gemm",
        f"{OURS}/deep_ep/a.cuh has sha256 aaaaaaaaaaaa, its artefact ffffffffffff",
        f"{OURS}/deep_ep/c.cuh of the artefact is not there, or cannot be read",
    ]


def test_an_image_is_judged_by_the_artefacts_that_it_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "cache"))
    wheel = tmp_path / "deep_gemm-2.8.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("deep_gemm/__init__.py", "x = 1\n")
        archive.writestr("deep_gemm-2.8.2.dist-info/RECORD", "")
    Wheelhouse(tmp_path / "cache" / "wheelhouse").put("e" * 64, wheel, {})
    document = json.dumps({"components": {"deep_gemm": {"key": "e" * 64}}})
    wanted = {"deep_gemm": {"deep_gemm/__init__.py": hashlib.sha256(b"x = 1\n").hexdigest()}}
    assert expected_files(_plan(), document) == wanted
    assert expected_files(_plan(), "") == expected_files(_plan(), "[]") == expected_files(_plan(), "{") == {}


def test_another_compile_of_the_same_key_says_nothing_of_an_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "cache"))
    house = Wheelhouse(tmp_path / "cache" / "wheelhouse")
    extension = Component("_C", "_C", "extension", "1", Source(path="."), module="deepinfer._C")
    plan = TargetPlan(
        Target("x", "x", "image", ("_C",)), _inspection(), "replica", (Cell("x", extension, "build"),), ""
    )
    other = tmp_path / "_C.so"
    other.write_bytes(b"compiled elsewhere")
    house.put("e" * 64, other, {})
    recorded = hashlib.sha256(b"compiled here").hexdigest()
    document = json.dumps({"components": {"_C": {"key": "e" * 64, "artefact": recorded}}})
    assert expected_files(plan, document) == {"deepinfer._C": {"deepinfer/_C.so": recorded}}
    # Of a wheel the record knows the whole only: its files are then judged by their place.
    wheel = json.dumps({"components": {"deep_gemm": {"key": "e" * 64, "artefact": recorded}}})
    assert expected_files(_plan(), wheel) == {}


def _neighbours(*modules: dict[str, str], **origins: str) -> Ending:
    lines = [
        {"paths": ["/usr/lib/p"]},
        *({"module": one["name"], "version": "", **one} for one in modules),
        {"origins": origins, "engine_loaded": False},
    ]
    return Ending(0, stdout="\n".join(json.dumps(line) for line in lines))


def test_a_vendor_module_that_needs_a_gpu_is_not_our_fault() -> None:
    failing = _neighbours({"name": "flag_gems", "error": "no GPU"}, deep_gemm="/v/deep_gemm/__init__.py")
    verdicts = Verdicts()
    judge_vendor(verdicts, PLACE, _inspection(), failing, failing, ["flag_gems"])
    assert verdicts.results[0].ok
    assert "flag_gems does not import in the base either, without a GPU: no GPU" in verdicts.results[0].detail


def test_a_vendor_module_that_we_broke_is() -> None:
    before = _neighbours({"name": "vllm", "error": ""})
    verdicts = Verdicts()
    now = _neighbours({"name": "vllm", "error": "ImportError: x"}, {"name": "torch", "error": "", "version": "2.12.0"})
    judge_vendor(verdicts, PLACE, _inspection(), now, before, ["vllm", "torch"])
    assert "import vllm without deepinfer: ImportError: x" in verdicts.results[0].detail
    assert "torch is 2.12.0 now; the base has 2.11.0+cu130" in verdicts.results[0].detail


@pytest.mark.parametrize(
    ("version", "kept"), [("3.8.10", True), ("3.8.10.post1", True), ("3.8.1", False), ("3.8.11", False)]
)
def test_a_module_may_say_less_than_its_metadata(version: str, kept: bool) -> None:
    verdicts = Verdicts()
    now = _neighbours({"name": "tokenspeed_triton", "error": "", "version": version})
    judge_vendor(verdicts, PLACE, _inspection(), now, None, ["tokenspeed_triton"])
    assert verdicts.results[0].ok is kept


def _pins(*rows: tuple[str, str, str]) -> list[dict[str, Any]]:
    listed = [{"name": name, "version": version, "folder": folder} for name, version, folder in rows]
    return [{"distributions": listed, "ours": []}]


SAME = (("torch", "2.11.0+cu130", "/s"), ("nvidia-nccl-cu13", "2.32.3", "/s"), ("vllm", "0.24.0", "/s"))


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (SAME, ""),
        ((*SAME, ("numpy", "2.4.6", "/s"), ("vllm", "0.1", "/later")), ""),
        ((*SAME, ("vllm", "0.25.0", "/s")), "/s holds vllm 2 times: 0.24.0, 0.25.0"),
        (SAME[:2], "vllm 0.24.0 of the base is gone"),
        ((("torch", "2.12.0", "/s"), *SAME[1:]), "torch's family: torch is 2.12.0 in /s; the base has 2.11.0+cu130"),
        ((SAME[0], ("nvidia-nccl-cu13", "2.28.9", "/s"), SAME[2]), "and 2.32.3 was declared"),
    ],
)
def test_pins(rows: tuple[tuple[str, str, str], ...], words: str) -> None:
    verdicts = Verdicts()
    judge_pins(verdicts, _inspection(), _pins(*rows), {"nvidia-nccl-cu13": "2.32.3"})
    assert verdicts.results[0].ok is (words == "")
    assert words in verdicts.results[0].detail


@pytest.mark.parametrize(
    ("now", "startup", "loaded", "words"),
    [
        ({"USE_FLAGGEMS": "1"}, {}, [], "the image sets USE_FLAGGEMS=1, the base has it unset"),
        ({"VLLM_PLUGINS": "fl"}, {}, [], "VLLM_PLUGINS=fl"),
        ({}, {"/s/x.pth": "import flag_gems"}, [], "/s/x.pth"),
        ({}, {}, ["flag_gems"], "`import deepinfer` loads flag_gems"),
        ({"KEPT_FLAGGEMS": "1", "VLLM_PLUGINS": ""}, {"/s/y.pth": "/opt/x"}, [], ""),
    ],
)
def test_flaggems(now: dict[str, str], startup: dict[str, str], loaded: list[str], words: str) -> None:
    verdicts = Verdicts()
    lines = [{**_line("torch"), "flaggems": loaded}]
    judge_flaggems(verdicts, now, {"KEPT_FLAGGEMS": "1"}, startup, lines)
    assert verdicts.results[0].ok is (words == "")
    assert words in verdicts.results[0].detail


def test_a_tool_chain_is_only_asked_for_where_something_compiles() -> None:
    verdicts = Verdicts()
    judge_toolchain(verdicts, [], [], {}, None)
    judge_toolchain(verdicts, ["deep_gemm"], [], {}, None)
    judge_toolchain(verdicts, ["deep_gemm"], ["/c"], {"error": "nvcc fatal", "nvcc": "/c/bin/nvcc"}, Ending(0))
    judge_toolchain(verdicts, ["deep_gemm"], ["/c"], {}, Ending(-9, "SIGKILL", timed_out=True, seconds=120))
    made = {"error": "", "nvcc": "/c/bin/nvcc", "version": "13.0.88", "bytes": 5368}
    judge_toolchain(verdicts, ["deep_gemm"], ["/c"], made, Ending(0))
    assert [result.state for result in verdicts.results] == ["n/a", "failed", "failed", "failed", "passed"]
    assert "nvcc fatal" in verdicts.results[2].detail
    assert "hung" in verdicts.results[3].detail


def _probe(bad: int, count: int = 7) -> Ending:
    checks = [{"name": f"c{n}", "compiled": {"ok": n >= bad, "reason": "no"}} for n in range(count)]
    report = {"triton": "3.6.0", "compiled": f"{count - bad}/{count}", "checks": checks, "error": None}
    return Ending(5 if bad else 0, stdout=json.dumps(report))


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        (_probe(0), ""),
        (_probe(2), "not compiled: c0: no"),
        (_probe(0, 6), "7 are expected"),
        (Ending(1, stderr="ImportError: x"), "status 1: ImportError: x"),
        (Ending(0, stdout="hello"), "it printed something else than the report"),
    ],
)
def test_probe(ending: Ending, words: str) -> None:
    verdicts = Verdicts()
    judge_probe(verdicts, ending, "3.6.0")
    assert verdicts.results[0].ok is (words == "")
    assert words in verdicts.results[0].detail


def _report(**versions: str) -> Ending:
    details = {"torch": {"nccl": {"version": versions.pop("nccl", "2.32.3")}, "cuda": "13.0"}}
    parts = [
        {"name": name, "status": "present" if version else "absent", "version": version, "reason": "why",
         "details": details.get(name, {})}
        for name, version in {"torch": "2.11.0+cu130", "deep_gemm": "2.8.2", **versions}.items()
    ]  # fmt: skip
    return Ending(0, stdout=json.dumps({"deepinfer": {"version": "0.1.0"}, "parts": parts}))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (_report(), ""),
        (_report(deep_gemm="2.8.1"), "`env` says that deep_gemm is 2.8.1, the plan 2.8.2"),
        (_report(deep_gemm=""), "`env` says that deep_gemm is absent: why"),
        (_report(torch="2.12.0"), "`env` says that torch is 2.12.0, not 2.11.0+cu130"),
        (_report(nccl="2.28.9"), "torch loads NCCL 2.28.9, the plan put 2.32.3 in its place"),
        (Ending(139, "SIGSEGV"), "killed by SIGSEGV"),
        (Ending(0, stdout="{}"), "it printed something else than its report"),
    ],
)
def test_env_has_to_agree_with_the_plan(answer: Ending, words: str) -> None:
    verdicts = Verdicts()
    judge_command(verdicts, answer, _plan(), _inspection(), modules(_plan()))
    assert verdicts.results[0].ok is (words == "")
    assert words in verdicts.results[0].detail


def _labels(**changes: str) -> dict[str, str]:
    labels = dict.fromkeys(REQUIRED, "x") | {
        "org.opencontainers.image.version": "0.1.0",
        "org.opencontainers.image.created": "2026-11-30T00:00:00Z",
        "io.deepinfer.hopper": "1",
        "io.deepinfer.hopper.nccl": "2.32.3",
        "io.deepinfer.hopper.manifest": "sha256:" + "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",
    }
    return labels | {name.replace("__", "."): value for name, value in changes.items()}


@pytest.mark.parametrize(
    ("user", "health", "labels", "words"),
    [
        ("10001:10001", Ending(0), _labels(), ""),
        ("", Ending(0), _labels(), "run as root"),
        ("0:0", Ending(0), _labels(), "run as root"),
        ("10001", None, _labels(), "no HEALTHCHECK"),
        ("10001", Ending(1, stderr="boom"), _labels(), "the health check fails: status 1: boom"),
        ("10001", Ending(0), _labels(io__deepinfer__hopper__nccl="2.28.9"), "says 2.28.9, `env` says 2.32.3"),
        ("10001", Ending(0), _labels(io__deepinfer__hopper__manifest="sha256:0"), "not the digest of the image's own"),
        ("10001", Ending(0), _labels(org__opencontainers__image__created="today"), "is no time: today"),
        ("10001", Ending(0), _labels(org__opencontainers__image__source=""), "image.source is missing or empty"),
    ],
)
def test_the_surface_of_an_image(user: str, health: Ending | None, labels: dict[str, str], words: str) -> None:
    verdicts = Verdicts()
    surface = Surface(_report(), health, user, labels, "{}")
    judge_entrypoint(verdicts, surface, _plan(), _inspection(), modules(_plan()))
    assert verdicts.results[0].ok is (words == "")
    assert words in verdicts.results[0].detail


def test_the_library_path() -> None:
    base = _inspection(cudart=(Library("/root/.triton/l", "libcudart.so.12"), Library("/x", "libcudart.so.13")))
    library = other_cudart(base)
    assert (library, other_cudart(_inspection()), other_cudart(_inspection(cuda=None))) == ("libcudart.so.12", "", "")
    files = ("/t/libcudart.so.13", "/opt/deepinfer/lib/libcudart.so.12")
    step = {"library": "", "mapped": _line("x", files=files)["mapped"]}
    verdicts = Verdicts()
    judge_library_path(verdicts, library, {"unset": Ending(0, stdout="/opt/deepinfer/lib/libcudart.so.12")}, [step])
    lost = Ending(1, stderr="OSError: libcudart.so.12: cannot open shared object file")
    judge_library_path(verdicts, library, {"unset": lost}, [step])
    judge_library_path(verdicts, library, {}, [{"library": "OSError: no", "mapped": []}])
    judge_library_path(verdicts, "", {}, [])
    assert [result.state for result in verdicts.results] == ["passed", "failed", "failed", "n/a"]
    assert "libcudart.so.12 with unset: status 1: OSError" in verdicts.results[1].detail


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("/etc/pip.conf", "a configuration that may hold credentials"),
        ("/home/deepinfer/.docker/config.json", "a configuration that may hold credentials"),
        ("/usr/local/share/ca-certificates/host.crt", "a key or certificate"),
        ("/opt/deepinfer/site/deep_gemm-2.8.2.whl", "left by the builder"),
        ("/src/setup.py", "left by the builder"),
        ("/root/.cache/pip/x", "left by the builder"),
        ("/usr/lib/p/certifi/cacert.pem", ""),
        ("/opt/deepinfer/site/deep_gemm/include/build/x.cuh", ""),
        ("/usr/lib/p/build/env.py", ""),
    ],
)
def test_added_files_by_name(path: str, what: str) -> None:
    verdicts = Verdicts()
    judge_layers(verdicts, {"added": [path]}, history=["COPY x"], environment={}, labels={}, hidden={}, seconds=1.0)
    assert verdicts.results[0].ok is (what == "")
    assert (f"{path}: {what}" if what else "1 file in 1 step:") in verdicts.results[0].detail


def test_history_environment_and_labels_are_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror.internal.example/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://pypi.org/simple")
    hidden = {what: text for what, text in needles().items() if what.startswith("the host of PIP")}
    assert hidden == {"the host of PIP_INDEX_URL": "mirror.internal.example"}
    verdicts = Verdicts()
    judge_layers(
        verdicts,
        {"added": None},
        history=["RUN pip install -i https://mirror.internal.example/simple x"],
        environment={"HF_TOKEN": "hf_x", "INDEX": "https://me:pw@host/"},
        labels={"source": "https://mirror.internal.example/git"},
        hidden=hidden,
        seconds=1.0,
    )
    detail = verdicts.results[0].detail
    assert "(RUN pip install" in detail
    assert "the environment variable HF_TOKEN is set in the image" in detail
    assert "the environment variable INDEX holds a URL with a password" in detail
    assert "the label source names the host of PIP_INDEX_URL" in detail
    assert "hf_x" not in detail


def test_a_scan_that_failed_or_had_no_base_is_not_silent() -> None:
    verdicts = Verdicts()
    judge_layers(verdicts, {}, history=[], environment={}, labels={}, hidden={}, seconds=0, problem="killed by SIGKILL")
    judge_layers(verdicts, {"added": None}, history=[], environment={}, labels={}, hidden={}, seconds=0)
    assert [result.ok for result in verdicts.results] == [False, True]
    assert "files were not compared: the base is not here" in verdicts.results[1].detail
