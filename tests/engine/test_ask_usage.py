"""What `ask`, `generate` and `bench` refuse before a model is opened: exit codes, and messages that name it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from deepinfer import cli
from deepinfer.cli import ask
from deepinfer.cli.fingerprint import fingerprint
from deepinfer.cli.jsonl_requests import parse_requests
from deepinfer.cli.jsonl_results import open_results
from deepinfer.loading.tiny import tiny_config

Run = Callable[..., "subprocess.CompletedProcess[str]"]
ASK = ["ask", "--model", "nowhere"]
LATENCY = ["bench", "latency", "--model", "nowhere"]
THROUGHPUT = ["bench", "throughput", "--model", "nowhere"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["ask", "fox"], 1, "the following arguments are required: --model"),
        ([*ASK, "two", "words"], 1, "2 prompts were given"),
        ([*ASK, "--file", "f", "fox"], 1, "a prompt and --file were given"),
        ([*ASK, ""], 2, "the prompt is empty"),
        ([*ASK, "???? ?????"], 2, "seems to be damaged"),
        ([*ASK, "caf\udcc3\udca9"], 2, "lone surrogate U+DCC3"),
        ([*ASK, "--file", "absent.txt"], 2, "absent.txt cannot be read"),
        ([*ASK, "--temperature", "-1", "fox"], 1, "temperature must be at least 0"),
        ([*ASK, "--temperature", "nan", "fox"], 1, "temperature must be finite"),
        ([*ASK, "--top-p", "1.5", "fox"], 1, "top_p must be between 0 and 1"),
        ([*ASK, "--seed", str(2**63), "fox"], 1, "seed must be between"),
        ([*ASK, "--max-tokens", "0", "fox"], 1, "max_tokens must be between 1"),
        ([*ASK, "--max-tokens", "few", "fox"], 1, "--max-tokens: invalid int value: 'few'"),
        ([*ASK, "--stop", "", "fox"], 1, "stop must not hold an empty text"),
        ([*ASK, "--stop", "caf\udce9", "fox"], 1, "stop is no text: it has the lone surrogate U+DCE9"),
        ([*ASK, "--structure", "poem", "x", "fox"], 1, "structure.kind must be"),
        ([*ASK, "--structure", "regex", "[0-9", "fox"], 1, "structure: the regular expression cannot be taken"),
        ([*ASK, "--structure", "ebnf", "root ::= a", "fox"], 1, "structure: the grammar cannot be taken"),
        ([*ASK, "--structure", "json", "nope.json", "fox"], 1, '--structure json "$(cat nope.json)"'),
        ([*ASK, "--structure", "json", "the schema.json", "fox"], 1, "$(cat 'the schema.json')"),
        (
            [*ASK, "--structure", "json", "@s.json", "fox"],
            1,
            'step: correct this option: --structure json "$(cat s.json)"',
        ),
        ([*ASK, "--structure", "json", "@", "fox"], 1, "next step: correct this option\n"),
        ([*ASK, "--structure", "ebnf", "@g.ebnf", "fox"], 1, 'correct this option: --structure ebnf "$(cat g.ebnf)"'),
        ([*ASK, "--structure", "ebnf", "g.ebnf", "fox"], 1, "cause: ebnf is followed by the grammar itself, not by"),
        (["ask", "--model", "chunk_tokens/x", "--device", "cpu", "fox"], 2, "error: chunk_tokens/x is no folder"),
        ([*ASK, "--structure", "json", "", "fox"], 1, "next step: correct this option\n"),
        ([*ASK, "--structure", "json", '{"type": "strin"}', "fox"], 1, "structure: the JSON schema cannot be taken"),
        (["generate", "--model", "nowhere", "--structure", "regex", "[0-9"], 1, "structure: the regular expression"),
        ([*ASK, "--backend", "tritn", "fox"], 1, "invalid choice: 'tritn'"),
        (["bench", "--model", "x"], 1, "latency|throughput"),
        ([*LATENCY, "--batch-size", "0"], 1, "'0' is not a whole number of at least 1"),
        ([*LATENCY, "--temperature", "-1"], 1, "temperature must be at least 0"),
        ([*LATENCY, "--batch-size", "100000000"], 1, "--batch-size has 100000000 requests under way at once"),
        ([*LATENCY, "--batch-size", "10000", "--input-len", "6711"], 1, "10000 prompts of 6711 tokens under way"),
        ([*LATENCY, "--warmups", str(2**31)], 1, "is more than 2147483647"),
        ([*THROUGHPUT, "--num-prompts", "1000000000"], 1, "--num-prompts has 1000000000 requests under way at once"),
        ([*THROUGHPUT, "--num-prompts", "1000000000", "--max-concurrency", "10001"], 1, "--max-concurrency has 10001"),
        (["generate", "--model", "nowhere", "--json"], 1, "--json needs --output FILE"),
        (["generate", "--model", "nowhere", "--retry-failed"], 1, "--retry-failed needs --output FILE"),
        (["generate", "--model", "nowhere", "--n", "0"], 1, "n must be between 1"),
        (["generate", "--model", "nowhere", "--input", "absent.jsonl"], 2, "absent.jsonl cannot be read"),
    ],
)
def test_refused(
    arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if "--structure" in arguments and "poem" not in arguments:
        pytest.importorskip("xgrammar", reason="xgrammar is absent: a structure cannot be checked")
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == code
    seen = capsys.readouterr()
    assert seen.out == "" and seen.err.startswith("error: ") and said in seen.err and "next step: " in seen.err


def test_input_and_output_must_differ_and_bad_lines_leave_no_output(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"prompt": "x", "max_tokens": 0}\n"fine"\n')
    (tmp_path / "link").symlink_to(source)
    command = ["generate", "--model", "nowhere", "--input", str(source), "--output"]
    assert cli.main([*command, str(tmp_path / "link")]) == 1
    assert "is both input and output" in capsys.readouterr().err
    assert cli.main([*command, str(target)]) == 2
    assert "line 1: max_tokens must be between" in capsys.readouterr().err
    assert not target.exists()


@pytest.fixture
def bare(tmp_path: Path) -> str:
    """A folder with nothing of a model but its configuration: it cannot be opened."""
    folder = tmp_path / "bare"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(tiny_config()))
    return str(folder)


@pytest.mark.parametrize("given", [["--max-tokens", "3"], ["--stop", "x"], ["--json"]])
def test_a_text_for_a_model_without_a_tokenizer_is_refused_before_it_is_made(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, bare: str, given: list[str]
) -> None:
    monkeypatch.setattr(ask, "open_llm", lambda _: pytest.fail("the model was opened"))
    assert cli.main(["ask", "--model", bare, "--load-format", "dummy", *given, "fox"]) == 2
    told = capsys.readouterr().err
    assert "error: ask takes and gives text, and bare has no tokenizer.json\n".replace("bare", bare) in told
    assert "tokenizer_config.json" in told and "deepinfer bench" in told and "token ids" not in told


def test_where_all_is_answered_no_model_is_opened(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, bare: str
) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"prompt": "x", "id": "a"}\n')
    (request,) = parse_requests(source.read_bytes(), "in", {"max_tokens": 16})
    done = {"id": "a", "key": request.key, "model": fingerprint(Path(bare)), "outputs": []}
    target.write_text(json.dumps(done) + "\n")
    command = ["generate", "--model", bare, "--input", str(source), "--output", str(target)]
    assert cli.main([*command, "--json"]) == 0
    seen = capsys.readouterr()
    assert "1 of 1 requests are answered already" in seen.err and json.loads(seen.out)["requests"] == 0
    assert cli.main([*command, "--temperature", "0"]) == 2
    assert "out.jsonl, line 1: it answers 'a' with another prompt or other sampling" in capsys.readouterr().err
    assert cli.main([*command, "--truncation", "mask"]) == 2
    assert "line 1: it was made with another model" in capsys.readouterr().err
    assert json.loads(target.read_text()) == done


def test_a_model_that_is_not_there_leaves_no_output(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('"x"\n')
    files = ["--input", str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "out.jsonl")]
    assert cli.main(["generate", "--model", str(tmp_path / "absent"), *files]) == 2
    assert "config.json cannot be read" in capsys.readouterr().err and not (tmp_path / "out.jsonl").exists()


def test_a_second_run_with_the_same_output_is_refused_at_once(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, bare: str
) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"prompt": "x", "id": "a"}\n')
    with open_results(target, [], model=""):
        assert cli.main(["generate", "--model", bare, "--input", str(source), "--output", str(target)]) == 4
    assert "out.jsonl is being written by another process" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "named"),
    [
        (("café",), 2, "the prompt"),
        (("--stop", "é", "fox"), 1, "--stop"),
        (("--structure", "choice", "é|ü", "fox"), 1, "--structure"),
    ],
    ids=["prompt", "stop", "structure"],
)
def test_a_text_through_a_locale_that_is_not_utf8(
    run_python: Run, words: tuple[str, ...], code: int, named: str
) -> None:
    # As a machine without a UTF-8 locale has it; Python helps itself out of the C locale unless it is told not to.
    locale = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    done = run_python("-m", "deepinfer", *ASK, *words, **locale)
    assert done.returncode == code and "Traceback" not in done.stderr
    assert f"{named} cannot be taken from the command line: the locale's encoding is ascii" in done.stderr
    assert "export LC_ALL=C.UTF-8" in done.stderr


@pytest.mark.parametrize("verb", ["ask", "generate", "bench"])
def test_help_is_plain_ascii(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([verb, "--help"]) == 0
    seen = capsys.readouterr().out
    assert seen.isascii() and f"deepinfer {verb} " in seen.partition("examples:")[2]
    assert all(len(line) <= 120 for line in seen.splitlines())
