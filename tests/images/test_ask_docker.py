"""Images answer prompts: a model in /model, `ask` as the image's own user, without a GPU or a network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from build.container import RunResult
from build.containers import Engine
from deepinfer.loading.tiny import VOCABULARY, write_tiny

pytestmark = pytest.mark.docker

BACKEND = {"cpu": [], "flagtree": ["--backend", "reference"]}
PROMPT = "Der schöne Fuchs springt, 你好"
TOKENS = 12


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    write_tiny(folder)
    return folder


def ask(engine: Engine, image: str, model: Path, *arguments: str) -> RunResult:
    # The files travel through the engine's interface: it may run on another machine, where no path of this one is.
    argv = ["deepinfer", "ask", "--model", "/model", *BACKEND[image], *arguments]
    return engine.run(f"deepinfer:{image}", argv, files={"/model": model}, owner="ask-test")


@pytest.mark.parametrize("image", BACKEND)
def test_the_image_answers_a_prompt(engine: Engine, model: Path, image: str) -> None:
    options = ("--max-tokens", str(TOKENS), "--temperature", "0", "--ignore-eos", PROMPT)
    streamed = ask(engine, image, model, *options)
    assert streamed.returncode == 0, streamed.stderr
    assert f"+ {TOKENS} tokens" in streamed.stderr
    told = ask(engine, image, model, "--json", "--quiet", *options)
    assert (told.returncode, told.stderr) == (0, "")
    (done,) = json.loads(told.stdout)["outputs"]
    assert len(done["token_ids"]) == TOKENS and all(0 <= token < VOCABULARY for token in done["token_ids"])
    assert done["finish_reason"] == "length"
    assert streamed.stdout == done["text"] + "\n", "the same greedy text, streamed or not"


@pytest.mark.parametrize("image", BACKEND)
def test_without_a_prompt_the_image_says_how_to_give_one(engine: Engine, model: Path, image: str) -> None:
    done = ask(engine, image, model)
    assert (done.returncode, done.stdout) == (2, "")
    assert "stdin is empty" in done.stderr and "docker run needs -i" in done.stderr
