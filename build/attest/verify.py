"""`verify`: recomputes what can be recomputed of a finished image and names every fact that is not as recorded.

The image's id is a sum over all of its layers and settings, so that an image with the recorded id is the recorded one.
The rest says *what* differs where something does, and whether the manifest is still what the build wrote: each fact
in it is held against the provenance's sums, the image's labels, what the image holds and what the wheelhouse holds.
The files are summed by the image's own Python, which a hostile image may have replaced; its id tells that too.
Whoever can change manifest, provenance and image alike is stopped by a signature alone (build/attest/signing.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from docker.errors import APIError

from build.attest.artefacts import artefact_rows
from build.attest.evidence import Document, Evidence, find_evidence
from build.attest.facts import fact_sums, manifest_facts
from build.attest.provenance import PREDICATE, Layers, recorded_facts, recorded_layers
from build.attest.record import image_settings, subject_of
from build.attest.rows import Report, Row, compared, settled
from build.attest.sbom import FORMAT, files_of, package_refs, packages_of
from build.attest.signing import signature_row
from build.containers import LABEL, Engine
from build.errors import EnvironmentCannot
from build.gates.collect import of_result
from build.gates.launcher import ARCHIVE, ContainerLauncher, bundle
from build.manifest import document_sha256
from build.plan_keys import digest

OURS = "/opt/deepinfer"
IMAGE_JSON = f"{OURS}/image.json"
_ARGUMENTS = "deepinfer-inventory.json"


def verify_image(engine: Engine, reference: str, *, manifest: Path | None = None, key: str = "") -> Report:
    """Check one image.

    Args:
        reference: name or id of an image that is here.
        manifest: its manifest, or the folder that holds it; None for the build cache.
        key: the public key of the signature, as cosign takes it; "" for none.

    Raises:
        EnvironmentCannot: there is no such image or no manifest of it.
        GateFailed: the manifest is no manifest.
    """
    image_id = engine.image_id(reference)
    if image_id is None:
        raise EnvironmentCannot(
            f"there is no image {reference} here",
            next_step=f"docker pull {reference}" if "/" in reference else "./run build --image NAME, or docker images",
        )
    labels = engine.labels(image_id)
    evidence = find_evidence(reference, labels, manifest)
    held, problem = look_inside(engine, image_id, evidence)
    rows = [
        *manifest_rows(evidence),
        *image_rows(evidence.manifest, image_id, labels, moved=_same_but_id(engine, evidence, image_id)),
        *layer_rows(engine, evidence, image_id),
        *content_rows(evidence, held, labels, problem),
        *artefact_rows(evidence.manifest, _listed(evidence)),
        signature_row(evidence.path, key),
    ]
    return Report(reference, image_id, str(evidence.path), tuple(rows))


def manifest_rows(evidence: Evidence) -> list[Row]:
    """The manifest against itself: the files beside it, the sums in its provenance, the keys that follow from it."""
    manifest = evidence.manifest
    differing = [*_beside("sbom", evidence.sbom), *_beside("provenance", evidence.provenance)]
    facts = manifest_facts(manifest)
    try:
        statement = evidence.provenance.content if evidence.provenance is not None else None
        recorded = recorded_facts(statement) if statement is not None else {}
    except (KeyError, TypeError, ValueError, AttributeError):
        recorded = {}
    if recorded:
        sums = fact_sums(manifest)
        for name in sorted(sums.keys() | recorded.keys()):
            if sums.get(name) != recorded.get(name):
                was = f"a value of sha256 {recorded[name][:16]}…" if name in recorded else ""
                differing.append(Row("manifest", f"manifest {name}", "differs", was, facts.get(name, "")))
    else:
        differing.append(Row("manifest", "manifest", "differs", "sums of its facts in the provenance", ""))
    differing += _keys(manifest)
    return settled("manifest", "manifest", f"{len(facts)} facts as when it was written", differing)


def _beside(what: str, document: Document | None) -> list[Row]:
    """A file beside the manifest against what the manifest says of it."""
    if document is None:
        return [Row("manifest", f"manifest attestations.{what}", "differs", "the name and sum of a file", "")]
    form = {"sbom": FORMAT, "provenance": PREDICATE}[what]
    wrong = compared("manifest", f"manifest attestations.{what}.format", form, document.form)
    found = f"sha256 {document.found}" if document.found else ""
    return wrong + compared("manifest", f"{what} {document.path.name}", f"sha256 {document.recorded}", found)


def _keys(manifest: Mapping[str, Any]) -> Iterator[Row]:
    """Keys are sums over the inputs that stand beside them, and image.json repeats them."""
    try:
        keys = {cell["cell"]: (cell["key"], cell["inputs"]) for cell in manifest["cells"]}
        for name, (key, inputs) in keys.items():
            if key:
                yield from compared("manifest", f"manifest cells[{name}].key, of its inputs", key, digest(inputs))
                named = manifest["document"]["components"][name.partition("/")[2]]["key"]
                yield from compared("manifest", f"manifest cells[{name}].key, by image.json", key, named)
        image = manifest["image_key"]
        yield from compared("manifest", "manifest image_key, of image_inputs", image, digest(manifest["image_inputs"]))
        whole = document_sha256(manifest["document"])
        yield from compared("manifest", "manifest document_sha256", manifest["document_sha256"], whole)
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        yield Row("manifest", "manifest", "differs", "", "", f"it lacks a part: {problem!r}")


def image_rows(
    manifest: Mapping[str, Any], image_id: str, labels: Mapping[str, str], *, moved: bool = False
) -> list[Row]:
    """The image's id and labels. moved: layers and settings are the recorded ones, so that another id is no fault."""
    recorded = manifest["labels"]
    other = image_id != manifest["image_id"]
    differing = [] if moved else compared("image", "image id", str(manifest["image_id"]), image_id)
    for name in sorted(recorded.keys() | labels.keys()):
        differing += compared("image", f"label {name}", str(recorded.get(name, "")), labels.get(name, ""))
    for fact, name in (("document_sha256", "manifest"), ("image_key", "key")):
        label = f"{LABEL}.{name}"
        differing += compared("image", f"label {label}, by {fact}", str(manifest[fact]), labels.get(label, ""))
    note = "another, as after an OCI archive; layers and settings as recorded" if other else "as recorded"
    return settled("image", "image id", f"{note}, and {len(labels)} labels", differing)


def _layers(evidence: Evidence) -> Layers | None:
    try:
        statement = evidence.provenance.content if evidence.provenance is not None else None
        return recorded_layers(statement) if statement is not None else None
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _same_but_id(engine: Engine, evidence: Evidence, image_id: str) -> bool:
    """Whether all that an OCI archive keeps of an image is as recorded: it gives the image another id.

    The provenance has to be the very file that the manifest names, and the manifest's id the one that it speaks of.
    """
    layers, document = _layers(evidence), evidence.provenance
    if layers is None or document is None or document.content is None or document.found != document.recorded:
        return False
    try:
        subject = f"sha256:{document.content['subject'][0]['digest']['sha256']}"
    except (KeyError, IndexError, TypeError):
        return False
    found = tuple(engine.image_config(image_id)["RootFS"]["Layers"])
    same = found == layers.digests and image_settings(engine, image_id) == layers.settings
    return same and evidence.manifest["image_id"] == subject


def layer_rows(engine: Engine, evidence: Evidence, image_id: str) -> list[Row]:
    """The image's layers and settings: those recorded, its base's layers first."""
    layers = _layers(evidence)
    if layers is None:
        return [Row("image", "layers", "not checked", note="there is no provenance that names them")]
    found = engine.image_config(image_id)["RootFS"]["Layers"]
    differing = []
    for index in range(max(len(found), len(layers.digests))):
        recorded = layers.digests[index] if index < len(layers.digests) else ""
        there = found[index] if index < len(found) else ""
        differing += compared("image", f"layer {index + 1}", recorded, there)
    for name, value in image_settings(engine, image_id).items():
        was, now = (json.dumps(told) for told in (layers.settings.get(name), value))
        differing += compared("image", f"setting {name}", was, now)
    base = str(evidence.manifest["base"]["image_id"])
    if engine.image_id(base) is None:
        note = f"{len(found)} layers as recorded; the base is not here, its {layers.base} layers stand recorded only"
        return settled("image", "layers", note, differing)
    for index, layer in enumerate(engine.image_config(base)["RootFS"]["Layers"]):
        there = found[index] if index < len(found) else ""
        differing += compared("image", f"layer {index + 1}, by the base", layer, there)
    return settled("image", "layers", f"{len(found)} layers, the first {layers.base} of them the base's", differing)


def look_inside(engine: Engine, image_id: str, evidence: Evidence) -> tuple[Mapping[str, Any] | None, str]:
    """What the image holds (build/gates/programs/inventory.py), or None and why it cannot be said."""
    inspection = evidence.manifest["inspection"]
    launcher = ContainerLauncher(engine, image_id, user="0:0", owner=f"{evidence.manifest['image']}/verify")
    package = f"{inspection.get('site')}/deepinfer"
    arguments = {
        "paths": [IMAGE_JSON, *_listed(evidence)], "roots": [OURS, package], "libraries": [f"{OURS}/site"],
    }  # fmt: skip
    files = {ARCHIVE: bundle(), _ARGUMENTS: json.dumps(arguments).encode()}
    argv = [str(inspection.get("executable")), launcher.path(ARCHIVE), "inventory", f"@{launcher.path(_ARGUMENTS)}"]
    try:
        done = launcher.launch(argv, files=files, timeout=300)
    except APIError as problem:
        return None, f"{argv[0]} does not start in the image: {problem.explanation or problem}"
    held = of_result(done).facts()
    if held:
        return held, ""
    said = (done.stderr.strip() or "nothing").splitlines()[-1]
    return None, f"{argv[0]} in the image ended with status {done.returncode} and said: {said}"


def _listed(evidence: Evidence) -> Mapping[str, Mapping[str, Any]]:
    content = evidence.sbom.content if evidence.sbom is not None else None
    return files_of(content) if content is not None else {}


def content_rows(
    evidence: Evidence, held: Mapping[str, Any] | None, labels: Mapping[str, str], problem: str
) -> list[Row]:
    """Files and packages in the image against the list of its contents."""
    try:
        if held is not None:
            return _held_rows(evidence, held, labels)
    except (KeyError, TypeError, ValueError, AttributeError) as damaged:  # its Python was replaced
        problem = f"its answer lacks a part: {damaged!r}"
    return [Row("files", "what the image holds", "differs", "a Python that can list it", problem)]


def _held_rows(evidence: Evidence, held: Mapping[str, Any], labels: Mapping[str, str]) -> list[Row]:
    files: Mapping[str, Mapping[str, Any]] = held["files"]
    told = f"sha256:{files.get(IMAGE_JSON, {}).get('sha256', '')}"
    rows = settled(
        "files", "image.json", "as the label says",
        compared("files", "image.json, by the label", labels.get(f"{LABEL}.manifest", ""), told),
    )  # fmt: skip
    content = evidence.sbom.content if evidence.sbom is not None else None
    if content is None:
        return [*rows, Row("files", "files", "not checked", note="there is no list of the image's contents")]
    listed = files_of(content)
    differing = []
    for path in sorted(listed.keys() | files.keys()):
        differing += compared("files", path, _told(listed.get(path)), _told(files.get(path)))
    rows += settled("files", "files", f"{len(listed)} as listed, and no other below {OURS}", differing)
    recorded, there = packages_of(content), package_refs(subject_of(evidence.manifest), held)
    return [*rows, *_package_rows(recorded, there)]


def _package_rows(recorded: Mapping[str, str], there: Mapping[str, str]) -> Sequence[Row]:
    differing = []
    for name in sorted(recorded.keys() | there.keys()):
        was, now = ("listed" if name in recorded else ""), ("in the image" if name in there else "")
        if not (was and now):
            differing.append(Row("files", f"package {name}", "differs", was, now))
    return settled(
        "files", "packages", f"{len(recorded)} Python distributions and Debian packages as listed", differing
    )


def _told(facts: Mapping[str, Any] | None) -> str:
    if facts is None:
        return ""
    if "link" in facts:
        return f"a link to {facts['link']}"
    return f"sha256 {facts['sha256']}, {facts['bytes']} bytes, mode {facts['mode']}"
