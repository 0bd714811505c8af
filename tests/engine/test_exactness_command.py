"""`python -m deepinfer.exactness`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from deepinfer import exactness
from deepinfer.exactness.__main__ import _options, main
from deepinfer.exactness.report import drops_nothing
from deepinfer.loading.tiny import write_tiny
from tests.engine.exactness_subject import faulty
from tests.engine.model_runs import config, single_thread, tensors

pytest.importorskip("safetensors", reason="safetensors is absent: no checkpoint can be read")
pytest.importorskip("tokenizers", reason="tokenizers is absent: a checkpoint's tokenizer cannot be read")

one_thread = pytest.fixture(autouse=True, scope="module")(single_thread)


@pytest.fixture(scope="module")
def folder(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("model") / "tiny"
    write_tiny(found)
    return found


def test_a_table_layer_by_layer(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", str(folder), "--device", "cpu", "--tokens", "40", "--decoded", "3"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("40 tokens, engine on cpu") and told.rstrip().endswith("noise explains every difference")
    assert [line.split()[0] for line in told.splitlines()[3:15]] == [str(layer) for layer in range(12)]


@pytest.mark.parametrize(
    "given", [["--tokens", "1"], ["--prompt", "????", "--as-it-is", "--tokens", "2", "--decoded", "1"]]
)
def test_the_shortest_prompts(folder: Path, capsys: pytest.CaptureFixture[str], given: list[str]) -> None:
    assert main(["--model", str(folder), "--device", "cpu", "--json", *given]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["tokens"] == int(given[given.index("--tokens") + 1]) and told["faults"] == []


def test_json_of_a_text(folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = tmp_path / "prompt.txt"
    text.write_text("Ein Satz, und noch einer.\n", encoding="utf-8")
    given = ["--model", str(folder), "--device", "cpu", "--file", str(text), "--tokens", "12", "--json"]
    assert main(given) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["tokens"] == 12 and told["faults"] == [] and len(told["layers"]) == 12
    assert told["forced"] <= told["allowed"] and told["layers"][0]["entries"] is None


def test_what_a_prompt_is_too_short_for_is_noted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--model", str(folder), "--device", "cpu", "--prompt", "hello there"]
    assert main(given) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("exact: ")
    assert lines[-2].startswith("note: the prompt is too short for some parts to drop anything, and measures little: ")
    assert "window (from 33 tokens on), choice of entries (from 34 tokens on), candidate blocks (" in lines[-2]
    assert main([*given, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["drops_nothing"]
    assert told == {"window": 33, "choice of entries": 34, "candidate blocks": 513}


@pytest.mark.parametrize(
    ("tokens", "left"),
    [
        (32, ["window", "choice of entries", "candidate blocks"]),
        (33, ["choice of entries", "candidate blocks"]),
        (34, ["candidate blocks"]),
        (512, ["candidate blocks"]),
        (513, []),
    ],
)
def test_what_drops_nothing_of_a_prompt(tokens: int, left: list[str]) -> None:
    assert list(drops_nothing(config(64), tokens)) == left


def test_what_never_drops_anything_is_not_missed() -> None:
    own = config(64)
    assert list(drops_nothing(dataclasses.replace(own, max_positions=500), 40)) == []
    alone = dataclasses.replace(own.indexer, candidate_source=None)
    assert list(drops_nothing(dataclasses.replace(own, indexer=alone), 40)) == []


def test_a_chunk_of_0_is_said_to_be_the_whole(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        _options(["--help"])
    assert "pieces of N tokens (default: 0, the whole at once)" in " ".join(capsys.readouterr().out.split())


def test_a_fault_is_told_and_exits_5(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine with other weights than the oracle, in one tensor."""
    name = "layers.3.attn.wo_b.scale"
    wrong = faulty({name: (tensors()[name].view(torch.uint8) + 1).view(torch.float8_e8m0fnu)})
    monkeypatch.setattr(exactness, "open_subject", lambda *_, **__: wrong)
    assert main(["--model", str(folder), "--tokens", "50"]) == 5
    assert "FAULT: with the oracle's choices the logits are off by" in capsys.readouterr().out


def test_logits_that_are_no_numbers_are_a_fault_and_null(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "layers.3.attn.wo_b.scale"
    wrong = faulty({name: torch.full_like(tensors()[name].view(torch.uint8), 255).view(torch.float8_e8m0fnu)})
    monkeypatch.setattr(exactness, "open_subject", lambda *_, **__: wrong)
    assert main(["--model", str(folder), "--tokens", "50", "--json"]) == 5
    told = json.loads(capsys.readouterr().out, parse_constant=lambda value: pytest.fail(f"{value} is no JSON"))
    assert told["forced"] is None and told["faults"]


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (["--tokens", "0"], 1, "--tokens must be at least 1"),
        (["--tokens", "5", "--decoded", "5"], 1, "leaves none of the 5 tokens"),
        (["--chunk", "-1"], 1, "must not be negative"),
        (["hello there"], 1, "'hello there'\n  next step: give it with --prompt TEXT or --file FILE; "),
        (["--chnuk", "9"], 1, "has no option '--chnuk'; did you mean '--chunk'?"),
        (["--tokens", "5000"], 1, "5000 tokens, and the model takes 4096"),
        (["--tokens", "1000000000000"], 1, "1000000000000 tokens, and the model takes 4096"),
        (["--prompt", "word " * 5000], 1, "tokens, and the model takes 4096"),
        (["--prompt", "????"], 2, "if it is meant so, --as-it-is"),
        (["--device", "bogus"], 1, "--device must be cuda, cuda:N or cpu, not 'bogus'"),
        (["--device", "meta"], 1, "--device must be cuda, cuda:N or cpu, not 'meta'"),
        (["--device", "cuda:99"], 4, "there is no device cuda:99"),
        (["--prompt", "a", "--file", "b"], 1, "not allowed with argument"),
        (["--file", "/nowhere/prompt"], 2, "/nowhere/prompt cannot be read"),
    ],
)
def test_refused_before_the_model_is_opened(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, options: list[str], code: int,
    text: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(exactness, "open_subject", lambda *_, **__: pytest.fail("the model was opened"))
    assert main(["--model", str(folder), "--device", "cpu", *options]) == code
    assert text in capsys.readouterr().err


def test_a_folder_without_a_model_and_one_without_a_tokenizer(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--model", str(tmp_path), "--device", "cpu"]) == 2
    assert "config.json" in capsys.readouterr().err
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    given = ["--model", str(tmp_path), "--device", "cpu", "--load-format", "dummy", "--tokens", "9"]
    assert main(given) == 0
    assert main([*given, "--prompt", "a"]) == 1
    assert "has no tokenizer, which a text needs" in capsys.readouterr().err
