"""What `deepinfer:<image>` becomes in a registry: pulled back by digest it is the image that was built, to the byte.

A whole image is pushed, some GB: `./run test --all-images` runs this for each image that it has built; the usual run
leaves it out.
"""

from __future__ import annotations

import hashlib
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from build.containers import Engine
from build.matrix.load import load_matrix
from build.publish.location import IMAGES, Location
from build.publish.push import publish_image
from build.publish.registry import Registry
from build.publish.release import find_release
from build.testing import every_image
from tests.publish_stand_ins import RegistryProgram, running

pytestmark = [pytest.mark.docker, pytest.mark.slow]


@pytest.fixture
def registry() -> Iterator[RegistryProgram]:
    """A registry whose folder is gone after the test: pytest would keep the last three."""
    with tempfile.TemporaryDirectory(prefix="deepinfer-registry-") as folder, running(Path(folder)) as found:
        yield found


def unpacked_sha256(blob: Path) -> str:
    """The digest of what a layer holds, unpacked: by it the engine knows a layer."""
    unpacker, hasher = zlib.decompressobj(zlib.MAX_WBITS | 32), hashlib.sha256()
    with blob.open("rb") as data:
        while chunk := data.read(1 << 20):
            hasher.update(unpacker.decompress(chunk))
    hasher.update(unpacker.flush())
    return f"sha256:{hasher.hexdigest()}"


@pytest.mark.parametrize("image", every_image())
def test_what_comes_back_is_what_was_built(image: str, registry: RegistryProgram, tmp_path: Path) -> None:
    engine, matrix = Engine.connect(), load_matrix()
    release = find_release(engine, matrix, matrix.targets[image])
    attributes = engine.image_config(release.image_id)
    location = Location.parse(f"{registry.host}/team")
    published = publish_image(engine, release, location, patience=300.0)
    assert published.pushed and set(published.aliases.values()) == {"moved"}
    assert all(alias.endswith("-replica") for alias in published.aliases), "nobody may pull a replica as the vendor's"

    api = Registry.open(location, IMAGES)
    manifest = api.manifest(published.digest)
    assert manifest is not None and manifest.config == release.image_id
    blob = tmp_path / "blob"
    found = []
    for layer in manifest.document["layers"]:
        api.get_blob(layer["digest"], blob, size=int(layer["size"]))
        found.append(unpacked_sha256(blob))
        blob.unlink()
    assert found == attributes["RootFS"]["Layers"], "every file of every layer, by the layers' own digests"

    name = f"{published.reference.rpartition(':')[0]}@{published.digest}"
    try:
        assert engine.client.images.pull(name).id == release.image_id
    finally:
        engine.client.images.remove(name)
    assert engine.image_id(f"deepinfer:{image}") == release.image_id
