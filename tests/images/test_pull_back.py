"""What `deepinfer:<image>` becomes in a registry: pulled back by digest it is the image that was built, to the byte.

A whole image is pushed, some GB: `./run test --all-images` runs this for each image that it has built; the usual run
leaves it out. Layers are hashed as they come and lie nowhere: beside the engine's copy the disk holds the registry's.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from build import cache
from build.attest import command
from build.call import call
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
    """A registry whose folder is gone after the test: pytest would keep the last three. On the disk of the cache, whose
    room is known; /tmp may be small."""
    work = cache.folder("work")
    with tempfile.TemporaryDirectory(prefix=".part-registry-", dir=work) as folder, running(Path(folder)) as found:
        yield found


class Layer:
    """The digest of what a layer holds, unpacked: by it the engine knows a layer."""

    def __init__(self) -> None:
        self._unpacker, self._hasher = zlib.decompressobj(zlib.MAX_WBITS | 32), hashlib.sha256()

    def take(self, data: bytes) -> None:
        self._hasher.update(self._unpacker.decompress(data))

    def digest(self) -> str:
        self._hasher.update(self._unpacker.flush())
        return f"sha256:{self._hasher.hexdigest()}"


@pytest.mark.parametrize("image", every_image())
def test_what_comes_back_is_what_was_built_and_can_be_verified(
    image: str, registry: RegistryProgram, capsys: pytest.CaptureFixture[str]
) -> None:
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
    found = []
    for described in manifest.document["layers"]:
        layers: list[Layer] = []

        def begin(layers: list[Layer] = layers) -> Callable[[bytes], object]:
            layers.append(Layer())  # a new one for every attempt
            return layers[-1].take

        api.read_blob(described["digest"], size=int(described["size"]), begin=begin)
        found.append(layers[-1].digest())
    assert found == attributes["RootFS"]["Layers"], "every file of every layer, by the layers' own digests"

    name = f"{published.reference.rpartition(':')[0]}@{published.digest}"
    try:
        call("docker", "pull", name)
        assert engine.image_id(name) == release.image_id
        assert dict(published.documents) == dict.fromkeys(("manifest", "sbom", "provenance"), "attached")
        assert command.run(name, manifest=None, key="", sign=False, as_json=True, registry=True) == 0
        (told,) = json.loads(capsys.readouterr().out)
        agreed = {fact["fact"] for fact in told["facts"] if fact["state"] == "ok"}
        assert {"image id, by the registry", "manifest", "image id", "layers", "files", "packages"} <= agreed
    finally:
        engine.client.images.remove(name)
    assert engine.image_id(f"deepinfer:{image}") == release.image_id
