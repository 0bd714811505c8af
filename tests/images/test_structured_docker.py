"""docs/structured-output.md on images, done as it is written there, with deepinfer:cpu in the place of its image."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from build.cache import REPOSITORY
from build.containers import Engine
from deepinfer.loading.tiny import write_tiny

pytestmark = [pytest.mark.docker, pytest.mark.slow]

IMAGE, DERIVED = "deepinfer:cpu", "deepinfer-test:structured"
OWNER = "structured-test"
SCHEMA = {
    "type": "object",
    "properties": {"color": {"enum": ["red", "green"]}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["color", "age"],
}


@pytest.fixture(scope="module")
def python(engine: Engine) -> str:
    program = "import sys; print('%d.%d' % sys.version_info[:2])"
    return engine.run(IMAGE, ["python3", "-c", program], owner=OWNER).stdout.strip()


@pytest.fixture(scope="module")
def recipe(engine: Engine, python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the page's Dockerfile, and what its commands for pip made beside it."""
    folder = tmp_path_factory.mktemp("recipe")
    page = (REPOSITORY / "docs/structured-output.md").read_text(encoding="utf-8")
    section = page.partition("## In an image\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    commands = [block for block in blocks if block.startswith("python3 -m pip install")]
    (dockerfile,) = (block for block in blocks if block.startswith("FROM deepinfer:vllm\n"))
    assert len(commands) == 2 and all(" --python-version 3.12 " in command for command in commands)
    (folder / "Dockerfile").write_text(dockerfile.replace("deepinfer:vllm", IMAGE))
    # The newest of today would make another test of it each day.
    pins = re.findall(r"^\S+==[^\s;]+", (REPOSITORY / "locks/test.lock").read_text(), re.MULTILINE)
    (folder / "pins.txt").write_text("\n".join(pins))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PIP_CONSTRAINT": str(folder / "pins.txt")}
    for command in commands:
        asked = command.replace(" 3.12 ", f" {python} ")
        done = subprocess.run(
            ["sh", "-euc", asked], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    subprocess.run(["chmod", "-R", "a+rX", "xgrammar"], cwd=folder, check=True)
    return folder


@pytest.fixture(scope="module")
def image(engine: Engine, recipe: Path) -> Iterator[str]:
    engine.build(recipe, tag=DERIVED, log=recipe.parent / "build.log")
    yield DERIVED
    engine.client.images.remove(DERIVED, force=True)


def test_a_json_schema_is_kept_in_the_image(engine: Engine, image: str, tmp_path: Path) -> None:
    write_tiny(tmp_path / "tiny")
    argv = ["deepinfer", "ask", "--model", "/model", "--quiet", "--max-tokens", "200", "--seed", "1"]
    argv += ["--structure", "json", json.dumps(SCHEMA), "The quick brown fox"]
    done = engine.run(image, argv, files={"/model": tmp_path / "tiny"}, owner=OWNER)
    assert (done.returncode, done.stderr) == (0, "")
    answer = json.loads(done.stdout)
    assert answer["color"] in ("red", "green") and 0 <= answer["age"] <= 99 and len(answer) == 2


def test_other_programs_of_the_image_keep_what_they_had(engine: Engine, image: str) -> None:
    program = "import numpy, importlib.util as u; print(numpy.__file__, u.find_spec('xgrammar'))"
    before, after = (engine.run(one, ["python3", "-c", program], owner=OWNER).stdout for one in (IMAGE, image))
    assert before == after and before.endswith(" None\n")


def test_the_folder_beside_an_image_that_stays_as_it_is(engine: Engine, recipe: Path) -> None:
    files, env = {"/opt/xgrammar": recipe / "xgrammar"}, {"PYTHONPATH": "/opt/xgrammar"}
    done = engine.run(IMAGE, ["deepinfer", "env", "--json"], files=files, env=env, owner=OWNER)
    assert done.returncode == 0, done.stderr
    (row,) = (row for row in json.loads(done.stdout)["parts"] if row["name"] == "xgrammar")
    assert (row["status"], row["path"], row["details"]["unfit"]) == ("present", "/opt/xgrammar/xgrammar", "")
