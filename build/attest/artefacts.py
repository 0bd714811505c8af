"""The compiled components: those in the wheelhouse against the manifest, and their files against the image's."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from build import cache
from build.attest.rows import Row, compared, settled
from build.digests import file_sha256
from build.wheels.wheelhouse import KEY


def artefact_rows(manifest: Mapping[str, Any], listed: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """A row or more for each component that has an artefact.

    Args:
        listed: the files of the image, as its list of contents has them.
    """
    rows: list[Row] = []
    house = cache.root() / "wheelhouse"
    for cell in manifest["cells"]:
        made = cell.get("artefact")
        if not made:
            continue
        fact = f"cells[{cell['cell']}].artefact"
        key, name = str(cell["key"]), Path(str(made["name"])).name
        path = house / key / name if KEY.fullmatch(key) else house / "none"
        if not path.is_file():
            rows.append(Row("artefacts", fact, "not checked", note="the wheelhouse here does not have it"))
            continue
        differing = compared("artefacts", f"{fact}.sha256", str(made["sha256"]), file_sha256(path))
        differing += compared("artefacts", f"{fact}.bytes", str(made["bytes"]), str(path.stat().st_size))
        count = 0
        if not differing and listed:
            files = dict(_contents(path))
            count, wrong = _in_image(cell["cell"], files, listed)
            differing += wrong
        note = f"as in the wheelhouse, {count} of its files as in the image" if listed else "as in the wheelhouse"
        rows += settled("artefacts", fact, note, differing)
    return rows


def _in_image(cell: str, files: Mapping[str, str], listed: Mapping[str, Mapping[str, Any]]) -> tuple[int, list[Row]]:
    """How many of an artefact's files (name -> sha256) are in the image, and which are there with other contents.

    Where a file was laid follows from its own path: an artefact does not say into which folder it is installed.
    """
    last: dict[str, list[str]] = {}
    for path in listed:
        last.setdefault(path.rpartition("/")[2], []).append(path)
    count, wrong = 0, []
    for name, digest in sorted(files.items()):
        places = [path for path in last.get(name.rpartition("/")[2], []) if path.endswith(f"/{name}")]
        sums = {str(listed[path].get("sha256")) for path in places}
        if digest in sums:
            count += 1
        elif places:
            wrong.append(
                Row("artefacts", f"{cell}: {places[0]}", "differs", f"sha256 {digest}", f"sha256 {sums.pop()}")
            )
    if not count and not wrong:
        wrong.append(Row("artefacts", f"{cell}: files in the image", "differs", f"{len(files)}", "none"))
    return count, wrong


def _contents(artefact: Path) -> Iterator[tuple[str, str]]:
    """The files that an artefact installs, with their sums; its metadata, which an installer writes anew, apart."""
    if artefact.suffix != ".whl":
        yield artefact.name, file_sha256(artefact)
        return
    with zipfile.ZipFile(artefact) as wheel:
        for entry in wheel.infolist():
            top = entry.filename.partition("/")[0]
            if entry.is_dir() or top.endswith((".dist-info", ".data")):
                continue
            hasher = hashlib.sha256()
            with wheel.open(entry) as data:  # NCCL's library has 344 MB
                while chunk := data.read(1 << 20):
                    hasher.update(chunk)
            yield entry.filename, hasher.hexdigest()
