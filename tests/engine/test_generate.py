"""`deepinfer generate` end to end on the tiny model: results, failures alone, going on after a kill."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from deepinfer import LLM, SamplingParams, cli
from deepinfer.cli.fingerprint import fingerprint
from deepinfer.loading.tiny import write_tiny

ROOT = Path(__file__).resolve().parents[2]
LINES = [
    {"id": "text", "prompt": "The quick brown fox", "max_tokens": 5},
    {"id": "ids", "prompt": [0, 7, 9], "temperature": 1, "seed": 3, "logprobs": 2},
    {"id": "two", "prompt": "Ein schöner Tag", "temperature": 1, "seed": 4, "n": 2},
    {"id": "last", "prompt": "once upon a time", "prompt_logprobs": 0},
]
CPU = ("--device", "cpu", "--backend", "reference")
OPTIONS = (*CPU, "--temperature", "0", "--max-tokens", "3", "--ignore-eos", "--quiet")


def write(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def read(text: str) -> dict[str, dict[str, Any]]:
    lines = [json.loads(line) for line in text.split("\n")[:-1]]
    assert len({line["id"] for line in lines}) == len(lines)
    return {line["id"]: line for line in lines}


def generate(folder: Path, source: Path, target: Path, *more: str) -> int:
    files = ["--input", str(source), "--output", str(target)]
    return cli.main(["generate", "--model", str(folder), *files, *OPTIONS, *more])


@pytest.fixture(scope="module")
def results(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("generate")
    write(folder / "in.jsonl", LINES)
    assert generate(tiny_folder, folder / "in.jsonl", folder / "out.jsonl") == 0
    return read((folder / "out.jsonl").read_text(encoding="utf-8"))


def test_each_line_has_what_it_asked_for(results: dict[str, dict[str, Any]], tiny_llm: LLM) -> None:
    assert set(results) == {"text", "ids", "two", "last"}
    (text,) = results["text"]["outputs"]
    (alone,) = tiny_llm.generate("The quick brown fox", SamplingParams(temperature=0, max_tokens=5, ignore_eos=True))
    assert (text["token_ids"], text["text"]) == (alone.outputs[0].token_ids, alone.outputs[0].text)
    assert text["finish_reason"] == "length" and "logprobs" not in text
    (ids,) = results["ids"]["outputs"]
    assert results["ids"]["prompt_tokens"] == 3
    assert [one["token_id"] for one in ids["logprobs"]] == ids["token_ids"]
    assert all(len(one["top"]) == 2 and one["logprob"] <= one["top"][0][1] <= 0 for one in ids["logprobs"])
    assert len(results["two"]["outputs"]) == 2
    told = results["last"]["prompt_logprobs"]
    assert told[0] is None and all(one["logprob"] < 0 for one in told[1:])
    assert len(told) == results["last"]["prompt_tokens"]


def test_from_stdin_to_stdout_it_is_the_same(
    results: dict[str, dict[str, Any]], tiny_folder: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    data = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in LINES).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="ascii"))
    assert cli.main(["generate", "--model", str(tiny_folder), *OPTIONS]) == 0
    seen = capsys.readouterr()
    assert seen.err == "" and read(seen.out) == results
    assert {one["model"] for one in results.values()} == {fingerprint(tiny_folder)}


def test_a_request_that_fails_leaves_the_others_alone(
    results: dict[str, dict[str, Any]], tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = [{"id": "far", "prompt": [0, 512]}, {"id": "long", "prompt": "word " * 200}]
    write(tmp_path / "in.jsonl", [bad[0], *LINES[:2], bad[1]])
    target = tmp_path / "out.jsonl"
    assert generate(tiny_folder, tmp_path / "in.jsonl", target, "--json", "--max-model-len", "128") == 5
    seen = capsys.readouterr()
    summary = json.loads(seen.out)
    assert (summary["requests"], summary["failed"], summary["output_tokens"]) == (2, 2, 8)
    assert "2 of 4 requests failed" in seen.err
    found = read(target.read_text(encoding="utf-8"))
    assert {name: found[name] for name in ("text", "ids")} == {name: results[name] for name in ("text", "ids")}
    assert found["far"]["outputs"][0]["finish_reason"] == "error" and "512" in found["far"]["outputs"][0]["error"]
    assert "128" in found["long"]["outputs"][0]["error"]
    before = target.read_bytes()
    assert generate(tiny_folder, tmp_path / "in.jsonl", target) == 5, "nothing is run again, and two have failed"
    assert target.read_bytes() == before
    write(tmp_path / "in.jsonl", [*LINES[:2], bad[1]])
    target.write_bytes(b"".join(line for line in before.splitlines(keepends=True) if b'"far"' not in line))
    capsys.readouterr()
    assert generate(tiny_folder, tmp_path / "in.jsonl", target, "--retry-failed") == 0
    again = read(target.read_text(encoding="utf-8"))
    assert set(again) == {"text", "ids", "long"} and again["long"]["outputs"][0]["finish_reason"] == "length"


def test_a_failure_names_options_as_they_are_typed_and_in_the_results_as_a_program_does(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "in.jsonl", [{"id": "long", "prompt": "word " * 200}])
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    options = ["--model", str(tiny_folder), *CPU, "--max-model-len", "128", "--input", str(source)]
    assert cli.main(["generate", *options, "--output", str(target)]) == 5
    shown = capsys.readouterr().err
    assert "long (line 1) failed: the prompt has" in shown and "likely cause: --max-model-len is 128\n" in shown
    assert "max_model_len" not in shown and "again with --retry-failed" in shown
    written = read(target.read_text(encoding="utf-8"))["long"]["outputs"][0]["error"]
    assert "likely cause: max_model_len is 128\n" in written and "--max-model-len" not in written
    assert cli.main(["generate", *options]) == 5
    seen = capsys.readouterr()
    assert read(seen.out)["long"]["outputs"][0]["error"] == written
    assert "--retry-failed" not in seen.err, "it needs a file of results"


def test_after_a_kill_it_goes_on_where_it_was(
    results: dict[str, dict[str, Any]], tiny_folder: Path, tmp_path: Path
) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    long = {"id": "long", "prompt": "The quick brown fox", "max_tokens": 3000}
    write(source, [*LINES, long])
    command = [sys.executable, "-m", "deepinfer", "generate", "--model", str(tiny_folder), "--input", str(source)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    child = subprocess.Popen([*command, "--output", str(target), *OPTIONS], env=environment)
    try:
        end = time.monotonic() + 600
        while not target.exists() or target.read_bytes().count(b"\n") < 2:
            assert child.poll() is None and time.monotonic() < end
            time.sleep(0.02)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    there = target.read_bytes()
    with target.open("ab") as file:  # as if the kill had come in the middle of a write
        file.write(b'{"id": "long", "key": "')
    write(source, [*LINES, long | {"max_tokens": 2}])
    assert generate(tiny_folder, source, target) == 0
    assert target.read_bytes().startswith(there)
    found = read(target.read_text(encoding="utf-8"))
    assert len(found.pop("long")["outputs"][0]["token_ids"]) == 2
    assert found == results


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stop_says_that_it_can_go_on(sent: signal.Signals, code: int, tiny_folder: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write(source, [LINES[0], {"id": "long", "prompt": "The quick brown fox", "max_tokens": 3000}])
    command = [sys.executable, "-m", "deepinfer", "generate", "--model", str(tiny_folder), "--input", str(source)]
    child = subprocess.Popen(
        [*command, "--output", str(target), *OPTIONS],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        end = time.monotonic() + 600
        while not target.exists() or target.read_bytes().count(b"\n") < 1:
            assert child.poll() is None and time.monotonic() < end
            time.sleep(0.02)
        child.send_signal(sent)
        _, told = child.communicate(timeout=300)
    finally:
        child.kill()
    assert child.returncode == code and "Traceback" not in told
    assert told.endswith("stopped: the same command goes on where it was\n"), told
    assert target.read_bytes().endswith(b"\n")


def test_another_model_of_the_same_shape_does_not_go_on(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other, source, target = tmp_path / "other", tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write_tiny(other, seed=1)
    write(source, LINES[:1])
    assert generate(tiny_folder, source, target) == 0
    before = target.read_bytes()
    write(source, LINES[:2])
    assert generate(other, source, target) == 2
    told = capsys.readouterr().err
    assert "out.jsonl, line 1: it was made with another model" in told and "name another --output" in told
    assert target.read_bytes() == before
