"""The licence texts of everything that we add to an image, one folder a component under /opt/deepinfer/licenses."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

from build import cache
from build.errors import MatrixError
from build.image.parts import LICENCES, inside

_TEXT = re.compile(r"(?i)(.*/)?(licen[cs]e|copying|notice|authors)[^/]*$")


def lay_licences(tree: Path, name: str, wheel: Path) -> list[str]:
    """Copy a wheel's licence texts; returns their names.

    Files of dist-info count. A wheel without any has its text in images/licences/<name>/ of the repository.

    Raises MatrixError when there is neither: nothing is added to an image without its licence.
    """
    folder = inside(tree, LICENCES) / name
    written: list[str] = []
    with zipfile.ZipFile(wheel) as archive:
        for member in sorted(archive.namelist()):
            head, _, rest = member.partition("/")
            known = rest.startswith("licenses/") or _TEXT.match(rest)
            if head.endswith(".dist-info") and known and not member.endswith("/"):
                relative = rest.removeprefix("licenses/").replace("/", "_")
                _write(folder / relative, archive.read(member))
                written.append(relative)
    return written or _from_repository(folder, name, wheel)


def _from_repository(folder: Path, name: str, wheel: Path) -> list[str]:
    ours = cache.REPOSITORY / "images" / "licences" / name
    texts = sorted(path for path in ours.glob("*") if path.is_file())
    if not texts:
        raise MatrixError(
            f"{wheel.name} holds no licence text",
            next_step=f"put the text into images/licences/{name}/",
        )
    for path in texts:
        _write(folder / path.name, path.read_bytes())
    return [path.name for path in texts]


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
