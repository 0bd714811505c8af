"""Warm caches as an image's part: what is laid, what is kept for the next one, what the gate makes of it, the keys."""

from __future__ import annotations

import contextlib
import io
import json
import tarfile
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from build import verbs
from build.cache import REPOSITORY
from build.errors import EnvironmentCannot, GateFailed, UsageError
from build.gates.judge.rows import Ending, Verdicts
from build.gates.judge.software import judge_warm
from build.gates.result import GateResult
from build.image.warm import WARM, _files, _Kept, lay_entries, read_report, warm_part
from build.matrix.load import load_matrix
from build.outcome import BuildOptions, plan_target
from build.plan import with_warm, without_warm
from build.triton_versions import triton_dir
from tests.image_stand_ins import base_facts, plan_of

KEY, MODULE = "KERNELKEY", "MODULEKEY"
GROUP = {"child_paths": {f"add.{kind}": f"/cache/triton/{KEY}/add.{kind}" for kind in ("source", "cubin", "json")}}
ENTRIES = {
    KEY: {
        "add.source": b"text", "add.ttir": b"text", "add.ttgir": b"text", "add.llir": b"text", "add.ptx": b".ptx",
        "add.cubin": b"\x7fELF", "add.json": b"{}", "__grp__add.json": json.dumps(GROUP).encode(), "lock": b"",
    },
    MODULE: {"cuda_utils.cpython-313-x86_64-linux-gnu.so": b"\x7fELF"},
    "STALE": {"old.cubin": b"\x7fELF"},
}  # fmt: skip


def _archive(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def test_what_a_launch_reads_is_laid_and_groups_name_the_images_paths(tmp_path: Path) -> None:
    size = lay_entries(tmp_path, {KEY: "/cache/triton", MODULE: str(WARM)}, ENTRIES)
    laid = {path.relative_to(tmp_path / "opt/deepinfer/warm/triton").as_posix(): path for path in tmp_path.rglob("*.*")}
    assert sorted(laid) == [
        f"{KEY}/__grp__add.json", f"{KEY}/add.cubin", f"{KEY}/add.json", f"{KEY}/add.ptx",
        f"{MODULE}/cuda_utils.cpython-313-x86_64-linux-gnu.so",
    ]  # fmt: skip
    group = json.loads(laid[f"{KEY}/__grp__add.json"].read_text())["child_paths"]
    assert group == {name: f"{WARM}/{KEY}/{name}" for name in ("add.cubin", "add.json")}
    assert size == sum(path.stat().st_size for path in laid.values())


def test_laying_again_what_an_image_carried_changes_no_byte(tmp_path: Path) -> None:
    lay_entries(tmp_path / "first", {KEY: ""}, ENTRIES)
    first = {path.name: path.read_bytes() for path in (tmp_path / "first").rglob("*.*") if path.is_file()}
    data = _archive({f"opt/deepinfer/warm/triton/{KEY}/{name}": content for name, content in first.items()})
    lay_entries(tmp_path / "second", {KEY: ""}, _files(data, WARM))
    assert {path.name: path.read_bytes() for path in (tmp_path / "second").rglob("*.*") if path.is_file()} == first


def test_entries_are_read_from_an_archive_of_a_container(tmp_path: Path) -> None:
    data = _archive(
        {"triton/K/a.cubin": b"1", "triton/K/tmp.pid_1/a.cubin": b"half", "triton/lock": b"", "tritonia/K/b": b"2"}
    )
    assert _files(data, PurePosixPath("triton")) == {"K": {"a.cubin": b"1"}}
    assert _files(b"", WARM) == {}


REPORT = {"providers": [{"name": "probe", "kernels": 1, "problems": []}]}


def test_a_report_is_read_after_what_a_base_says_at_its_start(tmp_path: Path) -> None:
    said = f"Welcome {{you}}\n{json.dumps(REPORT, indent=2)}\n"
    assert read_report("x", 0, said, "", tmp_path / "log") == REPORT
    assert read_report("x", 0, json.dumps(REPORT), "", tmp_path / "log") == REPORT


@pytest.mark.parametrize(
    ("status", "out", "err", "words"),
    [
        (
            5,
            json.dumps({"providers": [{"problems": ["dot[fp16]: wrong"]}]}),
            "",
            ("ended with status 5", "dot[fp16]: w"),
        ),
        (139, "", "Fatal Python error\n", ("ended with status 139", "Fatal Python error")),
        (124, "", "", ("took more than 3600 s", "it said nothing")),
        (0, "no JSON", "", ("ended with status 0", "it said nothing")),
        (0, "{}", "", ("ended with status 0", "it said nothing")),
    ],
)
def test_a_kernel_that_does_not_compile_ends_the_build_as_a_gate_does(
    tmp_path: Path, status: int, out: str, err: str, words: tuple[str, str]
) -> None:
    with pytest.raises(GateFailed) as told:
        read_report("flagtree", status, out, err, tmp_path / "log")
    assert words[0] in told.value.what
    assert words[1] in told.value.cause
    assert told.value.log == tmp_path / "log"
    assert told.value.exit_code == 5


def test_a_base_that_looks_kernels_up_in_its_own_way_is_refused(tmp_path: Path) -> None:
    seen = base_facts(environment={"TRITON_CACHE_MANAGER": "vendor.cache:Redis"})
    with pytest.raises(EnvironmentCannot, match=r"sets TRITON_CACHE_MANAGER=vendor\.cache:Redis") as told:
        warm_part(None, plan_of(), seen, contextlib.nullcontext)  # type: ignore[arg-type]  # neither is asked
    assert told.value.next_step == "build it without --warm"


def test_the_last_part_is_kept_for_the_same_base_and_only_whole(tmp_path: Path) -> None:
    part = tmp_path / "warm-1.tar"
    part.write_bytes(b"archive")
    kept = _Kept(tmp_path, "sha256:base")
    assert kept.read() == b""
    kept.write(part)
    part.unlink()  # the next part takes its place in the cache
    assert kept.read() == b"archive"
    assert _Kept(tmp_path, "sha256:other").read() == b""
    kept.archive.write_bytes(b"archivX")
    assert kept.read() == b""
    for damaged in ("{", "[]", '{"sha256": 1}'):
        kept.record.write_text(damaged)
        assert kept.read() == b""


def test_warm_is_part_of_the_images_key_and_of_no_components() -> None:
    matrix = load_matrix()
    target = matrix.targets["flagtree"]
    plan = plan_target(matrix, target, "*", "replica", base_facts(triton="3.6.0", glibc="2.41"))
    warm = with_warm(plan)
    assert warm.image_key != plan.image_key
    assert warm.cells == plan.cells
    assert {name: value for name, value in warm.image_inputs.items() if name not in plan.image_inputs} == {
        "warm": "yes"
    }
    assert without_warm(warm) == plan == without_warm(plan)
    assert with_warm(warm) == warm
    expected = plan_target(matrix, target, "*", "replica", None)
    assert with_warm(expected).image_key == expected.image_key == ""


def test_the_host_is_refused_before_anything_is_built() -> None:
    with pytest.raises(UsageError, match="--warm is for images") as told:
        verbs.build("host", BuildOptions(warm=True))
    assert told.value.exit_code == 1


def _judged(ending: Ending | None, warm: object) -> GateResult:
    verdicts = Verdicts()
    judge_warm(verdicts, ending, json.dumps({"warm": warm}))
    (result,) = verdicts.results
    return result


def _ending(kernels: tuple[int, int], modules: tuple[int, int] = (0, 6), **changes: Any) -> Ending:
    counts = {
        kind: {"compiled": made, "found": found} for kind, (made, found) in (("kernels", kernels), ("modules", modules))
    }
    return Ending(0, stdout=json.dumps({**REPORT, **counts, **changes}, indent=2))


CARRIED = {"kernels": 9, "modules": 6}


def test_gate_passes_where_all_is_found_and_does_not_apply_without_warm_caches() -> None:
    passed = _judged(_ending((0, 9)), CARRIED)
    assert passed.state == "passed"
    assert passed.detail == "kernels: 9 found of 9; modules: 6 found of 6"
    assert _judged(None, None).skipped_reason == "it was not built with --warm"


@pytest.mark.parametrize(
    ("ending", "warm", "words"),
    [
        (_ending((2, 7)), CARRIED, "kernels: 2 compiled, 7 found of 9 that it carries"),
        (_ending((0, 9), (1, 5)), CARRIED, "modules: 1 compiled, 5 found of 6"),
        (_ending((0, 8)), CARRIED, "kernels: 8 found of 9"),
        (_ending((0, 9), providers=[{"problems": ["ops: no"]}]), CARRIED, "ops: no"),
        (_ending((0, 9)), None, "image.json, says something else than expected"),
        (Ending(-11, signal="SIGSEGV"), CARRIED, "killed by SIGSEGV"),
        (Ending(4, stderr="error: no Triton"), CARRIED, "status 4: error: no Triton"),
    ],
)
def test_gate_fails_where_a_run_would_compile(ending: Ending, warm: object, words: str) -> None:
    judged = _judged(ending, warm)
    assert judged.state == "failed"
    assert words in judged.detail


def test_what_is_left_out_of_an_entry_is_what_triton_itself_writes(tmp_path: Path) -> None:
    """The names of Triton's stages are its own: a new one would be carried, an old one is not looked for in vain."""
    import subprocess
    import sys

    paths = [str(REPOSITORY), str(triton_dir("3.6.0"))]
    code = "from deepinfer.cli import main; raise SystemExit(main(['warm', '--only', 'ops.gather']))"
    variables = {"DEEPINFER_CACHE_DIR": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": "/"}
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {paths!r}\n{code}"], cwd="/", check=False,
        capture_output=True, text=True, env=variables,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    entries: dict[str, dict[str, bytes]] = {}
    for path in (tmp_path / "triton").glob("*/*"):
        if path.is_file():
            entries.setdefault(path.parent.name, {})[path.name] = path.read_bytes()
    lay_entries(tmp_path / "laid", dict.fromkeys(entries), entries)
    names = {path.suffix for path in (tmp_path / "laid").rglob("*") if path.is_file()}
    assert names == {".cubin", ".ptx", ".json", ".so"}
