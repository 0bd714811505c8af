"""`verify` on the real cpu image, as it was built, and on images that somebody derived from it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from build.attest import command
from build.attest.evidence import find_evidence
from build.attest.sbom import files_of, packages_of, validate
from build.attest.verify import verify_image
from build.containers import Engine
from build.errors import EnvironmentCannot

pytestmark = pytest.mark.docker

IMAGE = "deepinfer:cpu"
DERIVED = "deepinfer-test:verify"
DOCKERFILE = f"""
FROM {IMAGE}
USER 0
RUN echo '# changed' >> "$(find / -path '*/deepinfer/__init__.py' -not -path '/proc/*' | head -n 1)" \\
 && touch /opt/deepinfer/extra && rm /opt/deepinfer/licenses/numpy/*
USER 10001:10001
LABEL org.opencontainers.image.version=9
"""


@pytest.fixture(scope="module")
def engine() -> Engine:
    found = Engine.connect()
    if found.image_id(IMAGE) is None:
        pytest.skip(f"{IMAGE} is not here: ./run build --image cpu --base replica makes it")
    try:
        find_evidence(IMAGE, found.labels(IMAGE), None)
    except EnvironmentCannot as missing:
        pytest.skip(f"{IMAGE} was built with another cache: {missing.what}")
    return found


@pytest.fixture(scope="module")
def derived(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("derived")
    (folder / "Dockerfile").write_text(DOCKERFILE)
    engine.build(folder, tag=DERIVED, log=folder / "log")
    yield DERIVED
    engine.client.images.remove(DERIVED, force=True)


def test_the_image_is_what_was_built(engine: Engine) -> None:
    report = verify_image(engine, IMAGE)
    assert report.ok, [row for row in report.rows if row.state == "differs"]
    agreed = {row.fact for row in report.rows if row.state == "ok"}
    assert {"manifest", "image id", "layers", "image.json", "files", "packages"} <= agreed


def test_the_contents_are_whole_and_fit_the_schema(engine: Engine) -> None:
    evidence = find_evidence(IMAGE, engine.labels(IMAGE), None)
    assert evidence.sbom is not None and evidence.sbom.content is not None
    validate(evidence.sbom.path.read_text())
    files = files_of(evidence.sbom.content)
    site = evidence.manifest["inspection"]["site"]
    assert {"/opt/deepinfer/image.json", "/usr/local/bin/deepinfer", f"{site}/deepinfer/__init__.py"} <= files.keys()
    assert not {"/.dockerenv", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf"} & files.keys()
    packages = {name.partition("@")[0] for name in packages_of(evidence.sbom.content)}
    assert {"pkg:pypi/torch", "pkg:pypi/deepinfer-hopper", "pkg:pypi/numpy", "pkg:deb/debian/libc6"} <= packages


def test_an_image_that_was_changed_after_its_build_is_told_by_every_change(engine: Engine, derived: str) -> None:
    evidence = find_evidence(IMAGE, engine.labels(IMAGE), None)
    site = evidence.manifest["inspection"]["site"]
    report = verify_image(engine, derived)
    found = {row.fact: row for row in report.rows if row.state == "differs"}
    assert not report.ok and "image id" in found
    assert "label org.opencontainers.image.version" in found
    assert found[f"{site}/deepinfer/__init__.py"].recorded != found[f"{site}/deepinfer/__init__.py"].found
    assert (found["/opt/deepinfer/extra"].recorded, found["/opt/deepinfer/extra"].found[:6]) == ("", "sha256")
    lost = [row for name, row in found.items() if name.startswith("/opt/deepinfer/licenses/numpy/")]
    assert lost and all(row.found == "" for row in lost)
    layers = [name for name in found if name.startswith("layer ")]
    assert len(layers) == 1, "the layers below are the image's own"


@pytest.mark.parametrize(
    ("changes", "differing"),
    [
        (["HEALTHCHECK NONE"], []),
        (["HEALTHCHECK NONE", 'ENTRYPOINT ["sh"]'], ["image id", "setting Cmd", "setting Entrypoint"]),
        (["USER 0:0"], ["image id", "setting User"]),
    ],
)
def test_an_image_without_its_health_check_is_the_same_and_with_other_settings_it_is_not(
    engine: Engine, tmp_path: Path, changes: list[str], differing: list[str]
) -> None:
    """An OCI archive keeps layers and settings but for the health check, so that the image gets another id."""
    (tmp_path / "Dockerfile").write_text("\n".join([f"FROM {IMAGE}", *changes, ""]))
    engine.build(tmp_path, tag="deepinfer-test:moved", log=tmp_path / "log")
    try:
        report = verify_image(engine, "deepinfer-test:moved")
    finally:
        engine.client.images.remove("deepinfer-test:moved", force=True)
    assert [row.fact for row in report.rows if row.state == "differs"] == differing


def test_a_manifest_edited_by_hand_ends_with_status_5_and_its_fact(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = find_evidence(IMAGE, engine.labels(IMAGE), None).path.parent
    moved = shutil.copytree(folder, tmp_path / "brought")
    path = find_evidence(IMAGE, engine.labels(IMAGE), moved).path
    made = json.loads(path.read_text())
    cell = next(cell for cell in made["cells"] if cell.get("artefact"))
    cell["artefact"]["sha256"] = "0" * 64
    path.write_text(json.dumps(made))
    assert command.run(IMAGE, manifest=moved, key="", sign=False, as_json=True) == 5
    out = capsys.readouterr()
    told = json.loads(out.out)[0]
    differing = [fact["fact"] for fact in told["facts"] if fact["state"] == "differs"]
    assert differing == [f"manifest cells[{cell['cell']}].artefact.sha256", f"cells[{cell['cell']}].artefact.sha256"]
    assert f"cells[{cell['cell']}].artefact.sha256" in out.err and told["ok"] is False


@pytest.mark.parametrize("base", ["not a reference!", "", "\ud800", "sha256:x"])
def test_a_base_that_can_be_no_image_is_a_fact_that_differs(engine: Engine, tmp_path: Path, base: str) -> None:
    moved = shutil.copytree(find_evidence(IMAGE, engine.labels(IMAGE), None).path.parent, tmp_path / "brought")
    path = find_evidence(IMAGE, engine.labels(IMAGE), moved).path
    made = json.loads(path.read_text())
    made["base"]["image_id"] = base
    path.write_text(json.dumps(made))
    rows = verify_image(engine, IMAGE, manifest=path).rows
    assert [row.fact for row in rows if row.state == "differs"] == ["manifest base.image_id"]


def test_a_python_that_is_not_there_is_told(engine: Engine, tmp_path: Path) -> None:
    moved = shutil.copytree(find_evidence(IMAGE, engine.labels(IMAGE), None).path.parent, tmp_path / "brought")
    path = find_evidence(IMAGE, engine.labels(IMAGE), moved).path
    made = json.loads(path.read_text())
    made["inspection"]["executable"] = "/nonexistent/python"
    path.write_text(json.dumps(made))
    found = {row.fact: row.found for row in verify_image(engine, IMAGE, manifest=path).rows if row.state == "differs"}
    assert "/nonexistent/python" in found["what the image holds"]
    assert "manifest inspection.executable" in found


def test_images_without_evidence(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path))
    with pytest.raises(EnvironmentCannot, match="there is no manifest of"):
        verify_image(engine, IMAGE)
    with pytest.raises(EnvironmentCannot, match="there is no image"):
        verify_image(engine, "deepinfer:never-built")
