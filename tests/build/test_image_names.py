"""Tags, labels and image.json."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from build.bases.resolve import Base
from build.containers import LABEL
from build.errors import EnvironmentCannot, MatrixError
from build.image.describe import describe
from build.image.library_path import Candidate, LibraryPath, choose
from build.image.names import (
    checked_name,
    engine_version,
    image_labels,
    immutable_tag,
    moving_tag,
    revision,
    source_url,
    tag_part,
)
from build.image.toolchain import ToolchainChoice
from build.wheels.results import CellResult
from tests.image_stand_ins import NCCL, TRITON_CUDART, base_facts, component, plan_of

BASE = Base("replica", "deepinfer-base:stand-in", "sha256:" + "b" * 64, "sha256:" + "d" * 64)


@pytest.mark.parametrize(
    ("facts", "kind", "tag"),
    [
        ({}, "replica", "deepinfer:0.1.0-flagtree-replica-torch2.11.0-cu130-py313-0123456789ab"),
        ({}, "vendor", "deepinfer:0.1.0-flagtree-torch2.11.0-cu130-py313-0123456789ab"),
        (
            {"torch": "2.13.0+cpu", "cuda": None, "python": "3.11.2"},
            "replica",
            "deepinfer:0.1.0-flagtree-replica-torch2.13.0-cpu-py311-0123456789ab",
        ),
        ({"torch": None, "cuda": None}, "vendor", "deepinfer:0.1.0-flagtree-torchnone-cpu-py313-0123456789ab"),
    ],
)
def test_the_immutable_tag_says_what_is_inside(facts: dict[str, object], kind: str, tag: str) -> None:
    assert immutable_tag("0.1.0", plan_of(name="flagtree", base_kind=kind), base_facts(**facts)) == tag


@given(st.text(max_size=40))
def test_any_text_becomes_a_legal_part_of_a_tag(text: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.]*", tag_part(text))


def test_a_local_version_keeps_its_meaning() -> None:
    assert tag_part("2.11.0a0+git1234") == "2.11.0a0.git1234"


@pytest.mark.parametrize("name", ["", "a b", "a;rm -rf /", "$(id)", "`id`", "-x", "UPPER", "a/b", "a:b", "ä", "a\n"])
def test_a_name_that_cannot_stand_in_a_tag_is_refused(name: str) -> None:
    with pytest.raises(MatrixError, match="cannot be the name of an image"):
        checked_name(name)
    with pytest.raises(MatrixError):
        immutable_tag("0.1.0", plan_of(name=name), base_facts())


def test_a_tag_that_is_too_long_is_refused() -> None:
    with pytest.raises(MatrixError, match="128 are allowed"):
        immutable_tag("0.1.0", plan_of(name="x" * 110), base_facts())


def test_the_moving_tag_is_the_images_name() -> None:
    assert moving_tag("flagtree") == "deepinfer:flagtree"


def test_labels_name_the_base_the_manifest_and_what_was_replaced(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "0.1.0"\n[project.urls]\nSource = "https://a.b/c"\n')
    labels = image_labels(
        plan_of(name="flagtree"), BASE, version="0.1.0", document_digest="e" * 64, repository=tmp_path,
        facts={"nccl": "2.32.3"},
    )  # fmt: skip
    standard = {key.removeprefix("org.opencontainers.image."): value for key, value in labels.items() if "org." in key}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", standard.pop("created"))
    assert standard == {
        "title": "Stand-in",
        "version": "0.1.0",
        "revision": "unknown",
        "source": "https://a.b/c",
        "licenses": "Apache-2.0",
        "base.name": "deepinfer-base:stand-in",
        "base.digest": "sha256:" + "d" * 64,
    }
    assert labels[f"{LABEL}.base"] == "replica"
    assert labels[f"{LABEL}.key"] == "0123456789abcdef" * 4
    assert labels[f"{LABEL}.manifest"] == "sha256:" + "e" * 64
    assert labels[f"{LABEL}.nccl"] == "2.32.3"


def test_without_a_published_address_the_commit_is_told_as_the_source(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "0.1.0"\n')
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "pyproject.toml")
    git(tmp_path, "commit", "-q", "-m", "first")
    labels = image_labels(plan_of(), BASE, version="0.1.0", document_digest="", repository=tmp_path, facts={})
    assert labels["org.opencontainers.image.source"] == f"urn:git:{revision(tmp_path)}"


def git(folder: Path, *argv: str) -> None:
    identity = ["-c", "user.name=T", "-c", "user.email=t@example.org"]
    subprocess.run(["git", "-C", str(folder), *identity, *argv], check=True, capture_output=True)


def test_the_revision_says_when_files_differ_from_the_commit(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("1")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-q", "-m", "first")
    commit = revision(tmp_path)
    assert re.fullmatch(r"[0-9a-f]{40}", commit)
    (tmp_path / "file").write_text("2")
    assert revision(tmp_path) == f"{commit}-modified"


@pytest.mark.parametrize(
    ("remote", "told"),
    [
        ("https://example.org/a/b.git", "https://example.org/a/b.git"),
        ("https://user:secret@example.org/a/b.git", ""),
        ("https://localhost/a", ""),
        ("/srv/git/b.git", ""),
        ("git@example.org:a/b.git", ""),
    ],
)
def test_only_a_public_address_is_told_as_the_source(tmp_path: Path, remote: str, told: str) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "0.1.0"\n')
    git(tmp_path, "init", "-q")
    git(tmp_path, "remote", "add", "origin", remote)
    assert source_url(tmp_path) == told


@pytest.mark.parametrize("text", ["", "[project]\n", "[project\n"])
def test_a_project_file_without_a_version_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(EnvironmentCannot, match="tells no version"):
        engine_version(tmp_path)


def described(**changes: object) -> dict[str, object]:
    plan = plan_of({"deep_gemm": (component("deep_gemm"), "build"), "deep_ep": (component("deep_ep"), "unsupported")})
    head = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00\x3e\x00"
    hidden = Candidate(TRITON_CUDART, "libcudart.so.12", None, TRITON_CUDART, head)
    facts: dict[str, object] = {
        "base": BASE,
        "inspection": base_facts(),
        "results": [CellResult(plan.cells[1], "unsupported", 0.0, None, None, "needs torch 2.10")],
        "version": "0.1.0",
        "tag": "deepinfer:x",
        "package": "p" * 64,
        "toolchain": ToolchainChoice("added", "the base has no nvcc", "/opt/deepinfer/cuda", "13.0.88", "14.2.0"),
        "runtime": {"numpy": {"status": "added", "version": "2.4.6", "reason": "the base has none"}},
        "library_path": choose([hidden], (), libc="glibc", has_ldconfig=True),
        "nccl": {"version": "2.32.3", "replaced": "2.28.9", "path": NCCL},
        "opened": {},
        "warm": {},
    }
    written = describe(plan, **{**facts, **changes})  # type: ignore[arg-type]
    assert written == describe(plan, **{**facts, **changes})  # type: ignore[arg-type]
    return json.loads(written)  # type: ignore[no-any-return]


def test_image_json_declares_what_differs_from_the_base_on_purpose() -> None:
    assert described()["declared"] == {
        "nccl": {"version": "2.32.3", "replaced": "2.28.9", "path": NCCL},
        "cudart12": {
            "version": "12.8.57",
            "soname": "libcudart.so.12",
            "source": TRITON_CUDART,
            "target": "/opt/deepinfer/lib/libcudart.so.12.8.57",
        },
    }


def test_image_json_declares_nothing_where_nothing_differs() -> None:
    assert described(nccl={}, library_path=LibraryPath(problem="no ldconfig"))["declared"] == {}
    assert described(nccl={}, library_path=LibraryPath(problem="no ldconfig"))["notes"] == ["no ldconfig"]


def test_image_json_tells_what_was_opened_to_users() -> None:
    opened = {"pass": ["/root"], "read": ["/root/.venv/lib/private.py"]}
    declared = described(nccl={}, library_path=LibraryPath(), opened=opened, notes=["odd"])
    assert declared["declared"] == {"opened": opened}
    assert declared["notes"] == ["odd"]


def test_image_json_tells_each_component_with_the_reason_of_its_absence() -> None:
    components = described()["components"]
    assert components["deep_gemm"]["status"] == "installed"  # type: ignore[index]
    assert components["deep_ep"]["status"] == "unsupported"  # type: ignore[index]
    assert components["deep_ep"]["reason"] == "needs torch 2.10"  # type: ignore[index]


def test_image_json_tells_whether_the_image_is_warm() -> None:
    assert described()["warm"] is None
    assert described(warm={"kernels": 3})["warm"] == {"kernels": 3}


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user, which only root can")
def test_the_commit_is_told_of_a_checkout_that_belongs_to_another_user(tmp_path: Path) -> None:
    """As where a container builds what was checked out outside of it."""
    git(tmp_path, "init", "--quiet")
    (tmp_path / "file").write_text("x")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    commit = revision(tmp_path)
    for path in (tmp_path, *tmp_path.rglob("*")):
        os.chown(path, 65534, 65534)
    assert revision(tmp_path) == commit != "unknown"
