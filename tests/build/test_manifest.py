"""The manifest: complete, valid against its schema, found again by the image's label, written whole or not at all."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from build.cache import REPOSITORY
from build.gates.result import GateResult
from build.inspection import Inspection, Library
from build.manifest import as_markdown, document_sha256, find_manifest, make_manifest, write_manifest
from build.matrix.model import Component, Source, Target
from build.plan import Cell, TargetPlan
from build.wheels.results import CellResult

DIGEST = "sha256:" + "a" * 64
Change = Callable[[dict[str, Any]], object]


@dataclass(frozen=True)
class SomeBase:
    kind: str = "replica"
    reference: str = "deepinfer-base:flagtree-replica"
    image_id: str = DIGEST
    digest: str = DIGEST


@dataclass(frozen=True)
class SomeImage:
    document: dict[str, Any] = field(
        default_factory=lambda: {"schema": 1, "components": {"nccl": {"version": "2.32.3"}}}
    )
    image_id: str = "sha256:" + "b" * 64
    tags: tuple[str, ...] = ("deepinfer:0.1.0-flagtree-replica-x", "deepinfer:flagtree")
    sizes: dict[str, int] = field(default_factory=lambda: {"nccl": 361_000_000, "ours": 42_000_000})

    @property
    def labels(self) -> dict[str, str]:
        return {"io.deepinfer.hopper.manifest": document_sha256(self.document), "io.deepinfer.hopper.key": "c" * 64}


def _inputs(tmp_path: Path) -> tuple[TargetPlan, Inspection, list[CellResult], list[GateResult]]:
    inspection = Inspection(
        DIGEST, "deepinfer-base:flagtree-replica", "Debian", "x86_64", "3.13.5", "cp313", ".so", "/usr/bin/python3",
        "/usr/lib/python3/dist-packages", torch="2.11.0+cu130", cuda="13.0",
        nccl=(Library("/usr/lib/libnccl.so.2", "libnccl.so.2", "2.28.9", 5),), distributions={"torch": "2.11.0+cu130"},
    )  # fmt: skip
    source = Source(pypi="deepinfer-gemm", version="2.8.2", sha256="d" * 64)
    gemm = Component("deep_gemm", "DeepGEMM", "wheel", "2.8.2", source, module="deep_gemm", licence="MIT")
    deep_ep = Component("deep_ep", "DeepEP", "wheel", "2.5.0", Source(git="https://x/y", commit="e" * 40))
    note = "upstream states CUDA >= 13.1, the base has 13.0: it ran"
    built = Cell("flagtree", gemm, "build", key="f" * 64, inputs={"torch": "2.11.0+cu130"}, notes=(note,))
    refused = Cell("flagtree", deep_ep, "unsupported", reason="needs gcc >= 13 | the base has 12\nthat is all")
    target = Target("flagtree", "FlagTree", "image", ("deep_gemm", "deep_ep"))
    plan = TargetPlan(target, inspection, "replica", (built, refused), "c" * 64, {"base": DIGEST})
    wheel = tmp_path / "deep_gemm-2.8.2.whl"
    wheel.write_bytes(b"wheel")
    results = [CellResult(built, "built", 68.123, wheel), CellResult(refused, "unsupported", reason=refused.reason)]
    gates = [GateResult("needed", True, "5 NEEDED", 1.234), GateResult("one_nccl", False, "2 files:\n/a | /b")]
    return plan, inspection, results, gates


def _made(tmp_path: Path) -> dict[str, Any]:
    plan, inspection, results, gates = _inputs(tmp_path)
    return make_manifest(
        plan, inspection, base=SomeBase(), built=SomeImage(), results=results, gates=gates, times={"compile": 68.123}
    )


def _schema() -> Any:
    return json.loads((REPOSITORY / "docs" / "manifest.schema.json").read_text())


def test_a_manifest_fits_its_schema(tmp_path: Path) -> None:
    import jsonschema

    jsonschema.Draft202012Validator.check_schema(_schema())
    jsonschema.validate(json.loads(json.dumps(_made(tmp_path))), _schema())


@pytest.mark.parametrize(
    "spoil",
    [
        lambda made: made.pop("gates"),
        lambda made: made["gates"][0].update(state="perhaps"),
        lambda made: made["cells"][0].update(key="short"),
        lambda made: made["cells"][0]["artefact"].pop("sha256"),
        lambda made: made["base"].update(kind="host"),
        lambda made: made.update(surprise=1),
        lambda made: made.update(schema=2),
        lambda made: made["layers"][0].update(bytes=-1),
    ],
)
def test_the_schema_refuses_what_is_wrong(tmp_path: Path, spoil: Change) -> None:
    import jsonschema

    made = _made(tmp_path)
    spoil(made)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(made, _schema())


def test_it_tells_sources_hashes_keys_and_verdicts(tmp_path: Path) -> None:
    made = _made(tmp_path)
    gemm, deep_ep = made["cells"]
    assert gemm["source"] == {"pypi": "deepinfer-gemm", "version": "2.8.2", "sha256": "d" * 64}
    assert gemm["artefact"]["bytes"] == 5
    assert gemm["artefact"]["sha256"] == hashlib.sha256(b"wheel").hexdigest()
    assert gemm["seconds"] == 68.12
    assert deep_ep["artefact"] is None
    assert deep_ep["source"]["commit"] == "e" * 40
    assert made["passed"] is False
    assert made["layers"][0] == {"what": "nccl", "bytes": 361_000_000}
    assert str(tmp_path) not in json.dumps(made)


def test_the_page_keeps_rows_whole(tmp_path: Path) -> None:
    page = as_markdown(_made(tmp_path))
    rows = [line for line in page.splitlines() if line.startswith("| one_nccl")]
    assert rows == ["| one_nccl | failed | 2 files:<br>/a \\| /b | 0.0 |"]
    table = [line for line in page.splitlines() if line.startswith("| DeepEP")]
    assert len(table) == 1
    assert table[0].replace("\\|", "").count("|") == 8
    assert "| built<br>upstream states CUDA >= 13.1, the base has 13.0: it ran |" in page


def test_an_image_finds_its_manifest_by_its_label(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "cache"))
    plan, inspection, results, gates = _inputs(tmp_path)
    image = SomeImage()
    path = write_manifest(
        plan, inspection, base=SomeBase(), built=image, results=results, gates=gates, times={"gates": 1.0}
    )
    assert path == tmp_path / "cache" / "manifests" / "flagtree" / f"{'c' * 12}.json"
    assert path.with_name("last.json").read_text() == path.read_text()
    assert path.with_suffix(".md").read_text().startswith("# deepinfer:0.1.0-flagtree-replica-x\n")
    found = find_manifest("flagtree", image.labels)
    assert found is not None
    assert found["image_id"] == image.image_id
    other = dataclasses.replace(image, document={"schema": 1})
    assert find_manifest("flagtree", other.labels) is None
    assert find_manifest("flagtree", {}) is None


@pytest.mark.parametrize("spoil", [lambda text: text[: len(text) // 2], lambda text: text.replace("2.32.3", "2.99.9")])
def test_a_damaged_manifest_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[str], str]
) -> None:
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "cache"))
    plan, inspection, results, gates = _inputs(tmp_path)
    path = write_manifest(plan, inspection, base=SomeBase(), built=SomeImage(), results=results, gates=gates, times={})
    path.write_text(spoil(path.read_text()))
    assert find_manifest("flagtree", SomeImage().labels) is None


def test_a_failed_write_leaves_the_manifest_of_the_build_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "cache"))
    plan, inspection, results, gates = _inputs(tmp_path)
    path = write_manifest(plan, inspection, base=SomeBase(), built=SomeImage(), results=results, gates=gates, times={})
    before = path.read_text()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_manifest(plan, inspection, base=SomeBase(), built=SomeImage(), results=results, gates=[], times={})
    assert path.read_text() == before
    assert not list(path.parent.glob(".part-*"))
