"""`deepinfer ask` end to end: the tiny model on the CPU, by itself and as its users start it."""

from __future__ import annotations

import io
import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from deepinfer import LLM, SamplingParams, cli

Run = Callable[..., "subprocess.CompletedProcess[str]"]
PROMPT = "Der schöne Fuchs springt, 你好"
CPU = ("--device", "cpu", "--backend", "reference")
OPTIONS = (*CPU, "--max-tokens", "12", "--temperature", "0", "--ignore-eos")


@pytest.fixture(scope="module")
def expected(tiny_llm: LLM) -> str:
    (output,) = tiny_llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=12, ignore_eos=True))
    return output.outputs[0].text


def test_as_users_start_it(run_python: Run, tiny_folder: Path, expected: str) -> None:
    done = run_python("-m", "deepinfer", "ask", "--model", tiny_folder, *OPTIONS, PROMPT, PYTHONUTF8="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout == expected + "\n"
    last = done.stderr.strip().splitlines()[-1]
    assert " + 12 tokens in " in last and last.endswith("ended by --max-tokens")


@pytest.mark.parametrize(
    ("limit", "told"),
    [
        (["--max-model-len", "12"], "12 tokens of prompt and output: --max-model-len is 12\n"),
        (["--blocks", "2"], "128 tokens of prompt and output: the cache has 2 blocks of 128 tokens, one of them kept "
         "for padding\n"),
    ],
)  # fmt: skip
def test_an_end_by_a_limit_names_the_limit(
    tiny_folder: Path, limit: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [*CPU, "--temperature", "0", "--ignore-eos", *limit, "--max-tokens", "1000000"]
    assert cli.main(["ask", "--model", str(tiny_folder), *options, "The quick brown fox"]) == 0
    assert capsys.readouterr().err.endswith(f"ended by the limit of {told}")


class Pieces(io.TextIOWrapper):
    """Standard output that remembers what each flush brought."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)
        self.flushed: list[bytes] = []

    def flush(self) -> None:
        super().flush()
        self.flushed.append(self.buffer.getvalue())  # type: ignore[attr-defined]


def test_text_comes_as_it_is_made(tiny_folder: Path, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = Pieces()
    monkeypatch.setattr(sys, "stdout", stdout)
    assert cli.main(["ask", "--model", str(tiny_folder), *OPTIONS, PROMPT]) == 0
    states = [state.decode() for state in dict.fromkeys(stdout.flushed) if state]
    assert states[-1] == expected + "\n"
    assert len(states) > 4, "most tokens have text of their own"
    assert all(after.startswith(before) for before, after in itertools.pairwise(states))


@pytest.mark.parametrize("source", ["file", "stdin"])
def test_a_prompt_from_elsewhere_and_the_result_as_json(
    tiny_folder: Path, tmp_path: Path, expected: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], source: str,
) -> None:  # fmt: skip
    data = (PROMPT + "\n").encode()
    (tmp_path / "prompt.txt").write_bytes(data)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="ascii"))
    given = ["--file", str(tmp_path / "prompt.txt")] if source == "file" else []
    assert cli.main(["ask", "--model", str(tiny_folder), "--json", "--quiet", *OPTIONS, *given]) == 0
    seen = capsys.readouterr()
    assert seen.err == ""
    result = json.loads(seen.out)
    (done,) = result["outputs"]
    assert (done["text"], done["finish_reason"], len(done["token_ids"])) == (expected, "length", 12)
    assert result["prompt_tokens"] > len(PROMPT) // 4


def test_a_stop_text_ends_it_and_is_named(tiny_folder: Path, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    stop = expected[6:8]
    assert cli.main(["ask", "--model", str(tiny_folder), *OPTIONS, "--stop", stop, PROMPT]) == 0
    seen = capsys.readouterr()
    assert seen.out == expected[: expected.index(stop)] + "\n"
    assert f"ended by the stop text {stop!r}" in seen.err


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--max-model-len", "16", "--max-tokens", "1", "word " * 40], 2, "and prompt and output together may have 16"),
        (["--max-model-len", "16", "word " * 40], 2, "open the model with a larger --max-model-len"),
        (["--blocks", "2", "word " * 200], 2, "open the model with more cache blocks (--blocks)"),
        (["--blocks", "2", "word " * 200], 2, "the cache has 2 blocks of 128 tokens, one of them kept for padding"),
        (["--max-model-len", "5000", "x"], 1, "--max-model-len 5000 is more than the 4096 tokens"),
        (["--max-num-seqs", "0", "x"], 1, "--max-num-seqs must be a whole number"),
        (["--blocks", "1", "x"], 1, "--blocks must be a whole number of at least 2"),
        (["--memory-fraction", "2", "x"], 1, "--memory-fraction must be a number above 0 and at most 1"),
        (["--device", "gpu", "x"], 1, "--device must be cuda, cuda:N or cpu"),
        (["--device", "cpu", "--backend", "triton", "x"], 4, "the triton backend needs a GPU"),
    ],
)
def test_what_the_model_does_not_take(
    tiny_folder: Path, options: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["ask", "--model", str(tiny_folder), "--quiet", *CPU, *options]) == code
    seen = capsys.readouterr()
    assert seen.out == "" and seen.err.startswith("error: ") and said in seen.err and "next step: " in seen.err


def test_a_folder_without_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ask", "--model", "deepseek-ai/DeepSeek-V4.1-Flash", "x"]) == 2
    assert "is no folder" in capsys.readouterr().err
    assert cli.main(["ask", "--model", str(tmp_path), "x"]) == 2
    assert "config.json" in capsys.readouterr().err
