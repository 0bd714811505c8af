"""Requests and results as lines of JSON: bad lines, going on after a kill, two writers."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from deepinfer.cli.jsonl_requests import LineRequest, parse_requests
from deepinfer.cli.jsonl_results import StdoutResults, open_results
from deepinfer.errors import DeepInferError, InputError, UsageError, unwritable


def parse(*lines: str | bytes, **options: object) -> list[LineRequest]:
    data = b"\n".join(line.encode() if isinstance(line, str) else line for line in lines)
    return parse_requests(data, "in.jsonl", options)


def test_lines_become_requests() -> None:
    found = parse(
        '{"prompt": "héllo", "id": 7}', "", '  "just a text" ', '{"prompt": [0, 5], "temperature": 0, "n": 2}', "",
        max_tokens=9, temperature=0.5,
    )  # fmt: skip
    assert [(one.line, one.id, one.prompt) for one in found] == [
        (1, "7", "héllo"), (3, "line-3", "just a text"), (4, "line-4", [0, 5]),
    ]  # fmt: skip
    assert [(one.params.temperature, one.params.n, one.params.max_tokens) for one in found] == [
        (0.5, 1, 9), (0.5, 1, 9), (0, 2, 9),
    ]  # fmt: skip
    assert parse(b"\xef\xbb\xbf" + b'{"prompt": "x"}')[0].prompt == "x"


def test_a_structure_of_a_line() -> None:
    pytest.importorskip("xgrammar", reason="xgrammar is absent: a structure cannot be checked")
    (one,) = parse('{"prompt": "x", "structure": {"kind": "choice", "grammar": ["a", "b"]}}')
    assert one.params.structure is not None and one.params.structure.grammar == ("a", "b")


def test_the_key_changes_with_what_is_asked_and_not_with_where_it_stands() -> None:
    key = parse('{"prompt": "x", "id": "a"}', max_tokens=4)[0].key
    assert parse("", '{"id": "b", "prompt": "x", "max_tokens": 4}')[0].key == key
    changed = [parse('{"prompt": "y"}', max_tokens=4), parse('{"prompt": "x"}', max_tokens=5), parse('"x"', n=1)]
    assert len({key, *(one[0].key for one in changed)}) == 4


BAD: dict[str | bytes, str] = {
    '{"prompt": "x"': "it is not JSON that can be used",
    '{"prompt": "x", "n": 1, "prompt": "y"}': 'it is not JSON that can be used: it has "prompt" twice in one object',
    '{"prompt": "x", "structure": {"kind": "regex", "kind": "ebnf", "grammar": "a"}}': "it is not JSON that",
    "[1, 2]": "it is neither an object nor a text",
    '{"text": "x"}': 'it has no "prompt"',
    '{"prompt": ""}': 'its "prompt" is empty',
    '{"prompt": []}': 'its "prompt" is empty',
    '{"prompt": [1, "a"]}': 'its "prompt" is neither a text nor a list of token ids',
    '{"prompt": [true]}': 'its "prompt" is neither a text nor a list of token ids',
    '{"prompt": "x", "id": 1.5}': 'its "id" is neither',
    '{"prompt": "x", "max_token": 3}': "there is no field 'max_token': did you mean 'max_tokens'?",
    '{"prompt": "x", "image": "fox.png"}': "it has 'image': images are not supported yet",
    '{"prompt": "x", "seed_in_effect": 3}': "there is no field 'seed_in_effect'",
    '{"prompt": "x", "temperature": -1}': "temperature must be at least 0",
    '{"prompt": "x", "temperature": NaN}': "temperature must be finite",
    '{"prompt": "x", "temperature": 1%s}' % ("0" * 310): "temperature must be finite, not 1000",
    '{"prompt": "x", "top_p": 1%s}' % ("0" * 310): "top_p must be finite, not 1000",
    '{"prompt": "x", "id": ""}': 'its "id" is empty',
    '{"prompt": "x", "structure": {"kind": "json", "grammar": {"a": [{"\\ud800": 1}]}}}': "structure is no text",
    '{"prompt": "x", "stop": ["\\udce9"]}': "stop is no text: it has the lone surrogate U+DCE9",
    '{"prompt": "x", "seed": "100"}': "seed must be a whole number",
    '{"prompt": "x", "seed": 9223372036854775808}': "seed must be between",
    '{"prompt": "x", "top_p": 1.5}': "top_p must be between 0 and 1",
    '{"prompt": "x", "max_tokens": 0}': "max_tokens must be between 1 and",
    '{"prompt": "x", "structure": {"kind": "json"}}': 'structure must have the fields "kind" and "grammar"',
    '{"prompt": "x", "structure": {"kind": "regex", "grammar": "(?=a)b"}}': "structure: the regular expression cannot",
    '{"prompt": "x", "structure": {"kind": "poem", "grammar": "x"}}': "structure.kind must be",
    '{"prompt": "\\ud83d"}': 'its "prompt" is no text: it has the lone surrogate U+D83D',
    '{"prompt": "x", "stop": ["\\ud83d"]}': "stop is no text: it has the lone surrogate",
    '{"prompt": "x", "stop": "\\ud83d"}': "stop is no text: it has the lone surrogate",
    '{"prompt": "???????? ????"}': 'its "prompt" seems to be damaged',
    b'{"prompt": "caf\xe9"}': "it is not UTF-8: its byte 16 is 0xe9",
    "[" * 100_000: "it is not JSON that can be used: it is nested too deeply",
}


@pytest.mark.parametrize("line", BAD, ids=lambda line: repr(line)[:40])
def test_a_bad_line_is_named_by_its_number(line: str | bytes) -> None:
    with pytest.raises(InputError) as told:
        parse('"good"', line)
    assert f"line 2: {BAD[line]}" in str(told.value) and "nothing was run" in str(told.value)
    assert told.value.exit_code == 2


def test_all_bad_lines_are_told_at_once_and_many_are_counted() -> None:
    with pytest.raises(InputError) as told:
        parse('{"prompt": "x", "id": "a"}', *["{"] * 20, '{"prompt": "y", "id": "a"}')
    text = str(told.value)
    assert text.startswith("in.jsonl: 21 bad lines") and "line 13:" in text and "line 14:" not in text
    assert "and 9 more" in text
    with pytest.raises(InputError, match="line 3: its id 'a' is that of line 1 already"):
        parse('{"prompt": "x", "id": "a"}', "", '{"prompt": "y", "id": "a"}')


def test_files_without_requests_or_in_another_encoding() -> None:
    with pytest.raises(InputError, match="holds no request"):
        parse("", "  ")
    with pytest.raises(InputError, match="is not UTF-8"):
        parse('"x"'.encode("utf-16"))


REQUESTS = parse('{"prompt": "x", "id": "a"}', '{"prompt": "y", "id": "b"}', '{"prompt": "z", "id": "c"}')


MODEL = "0123456789abcdef"


def result(request: LineRequest, **more: object) -> dict[str, object]:
    outputs = [{"finish_reason": "length"}]
    return {"id": request.id, "key": request.key, "model": MODEL, "outputs": outputs, **more}


def write(path: Path, requests: Sequence[LineRequest]) -> None:
    with open_results(path, REQUESTS, model=MODEL) as results:
        for request in requests:
            results.write(result(request, text="ünï\n"))


def test_results_are_found_again(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    write(path, REQUESTS[:2])
    assert path.read_text(encoding="utf-8").count("\n") == 2 and "ünï" in path.read_text(encoding="utf-8")
    with open_results(path, REQUESTS, model=MODEL) as results:
        assert results.done == {"a", "b"}
        results.write(result(REQUESTS[2]))
    assert [json.loads(line)["id"] for line in path.read_text(encoding="utf-8").splitlines()] == ["a", "b", "c"]


def test_results_that_do_not_say_their_model_are_kept_and_that_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out.jsonl"
    old = {name: value for name, value in result(REQUESTS[0]).items() if name != "model"}
    path.write_text(json.dumps(old) + "\n")
    with open_results(path, REQUESTS, model=MODEL) as results:
        assert results.done == {"a"}
        results.write(result(REQUESTS[1]))
    assert "out.jsonl: 1 results do not say which model made them, and are kept" in capsys.readouterr().err
    assert [json.loads(line).get("model") for line in path.read_text().splitlines()] == [None, MODEL]


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_a_half_written_line_is_cut_off_and_made_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], cut: int
) -> None:
    path = tmp_path / "out.jsonl"
    write(path, REQUESTS[:1])
    whole = path.read_bytes()
    write(path, REQUESTS[1:2])
    path.write_bytes(path.read_bytes()[:-cut])
    with open_results(path, REQUESTS, model=MODEL) as results:
        assert results.done == {"a"}
    assert path.read_bytes() == whole
    assert "half written" in capsys.readouterr().err


def test_a_file_of_something_else_is_told_and_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    for text, what in (
        ("notes\nmore", "line 1: it is no result"),
        ('{"id": "a"}\n', "line 1: it is no result"),
        ('{"id": "z", "key": "1"}\n', "line 1: it is no result"),
        ('["id", "key"]\n', "line 1: it is no result"),
        ('{"id": "z", "key": "1", "outputs": []}\n', "line 1: its id 'z' is not among the requests"),
        ('{"id": ["a"], "key": "1", "outputs": []}\n', r"line 1: its id \['a'\] is not among"),
        (f"{json.dumps(result(REQUESTS[0], model='f' * 16))}\n", "line 1: it was made with another model"),
        (f"{json.dumps(result(REQUESTS[0], model=7))}\n", "line 1: it was made with another model"),
        (f"{json.dumps(result(REQUESTS[0]))}\n" * 2, "line 2: it repeats the id 'a' of line 1"),
        (
            '{"id": "a", "key": "other", "outputs": []}\n',
            "line 1: it answers 'a' with another prompt or other sampling",
        ),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=what), open_results(path, REQUESTS, model=MODEL):
            pass
        assert path.read_text() == text


FAILED = [{"finish_reason": "length"}, {"finish_reason": "error", "error": "no number"}]


def test_failures_are_known_and_made_anew_when_that_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with open_results(path, REQUESTS, model=MODEL) as results:
        results.write(result(REQUESTS[0], outputs=FAILED))
        results.write(result(REQUESTS[1]))
    path.chmod(0o640)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"id"')
    with open_results(path, REQUESTS, model=MODEL) as results:
        assert (results.done, results.failed) == ({"a", "b"}, {"a"})
    assert path.read_bytes() == whole
    path.write_bytes(whole + b'{"id"')
    with open_results(path, REQUESTS, model=MODEL, retry_failed=True) as results:
        assert (results.done, results.failed) == ({"b"}, set())
        with pytest.raises(DeepInferError, match="written by another process"):
            write(path, [])
        results.write(result(REQUESTS[0]))
    assert [json.loads(line)["id"] for line in path.read_bytes().splitlines()] == ["b", "a"]
    assert path.stat().st_mode & 0o777 == 0o640
    assert [one.name for one in tmp_path.iterdir()] == ["out.jsonl"]


def test_what_failed_and_was_corrected_since_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    gone = result(REQUESTS[0], outputs=FAILED) | {"id": "gone"}
    other = result(REQUESTS[0], outputs=FAILED, model="f" * 16) | {"key": "of the prompt before"}
    path.write_text("".join(json.dumps(one) + "\n" for one in (other, result(REQUESTS[1]), gone)))
    with pytest.raises(InputError, match="line 1: it answers 'a' with another prompt") as refused:
        write(path, [])
    assert "--retry-failed takes it out" in refused.value.next_step
    with open_results(path, REQUESTS, model=MODEL, retry_failed=True) as results:
        assert (results.done, results.failed) == ({"b"}, set())
    # What was answered is still compared: nothing else may be lost.
    path.write_text(json.dumps(result(REQUESTS[0]) | {"key": "of the prompt before"}) + "\n")
    with (
        pytest.raises(InputError, match="line 1: it answers 'a' with another prompt") as refused,
        open_results(path, REQUESTS, model=MODEL, retry_failed=True),
    ):
        pass
    assert "--retry-failed" not in refused.value.next_step


def test_a_link_to_the_results_stays_and_what_a_kill_left_beside_them_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    target, link = tmp_path / "elsewhere" / "real.jsonl", tmp_path / "out.jsonl"
    link.symlink_to(target)
    with open_results(link, REQUESTS, model=MODEL) as results:
        results.write(result(REQUESTS[0], outputs=FAILED))
        results.write(result(REQUESTS[1]))
    (target.parent / ".real.jsonl.new").write_bytes(target.read_bytes())
    with open_results(link, REQUESTS, model=MODEL, retry_failed=True) as results:
        results.write(result(REQUESTS[0]))
    assert link.is_symlink() and [json.loads(line)["id"] for line in target.read_bytes().splitlines()] == ["b", "a"]
    assert [one.name for one in target.parent.iterdir()] == ["real.jsonl"]


def test_a_writer_whose_file_was_replaced_before_it_had_the_lock_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out.jsonl"
    write(path, REQUESTS[:1])

    def replaced(descriptor: int, how: int) -> None:
        (tmp_path / "new").write_bytes(b"")
        (tmp_path / "new").rename(path)

    monkeypatch.setattr(fcntl, "flock", replaced)
    with pytest.raises(DeepInferError, match="written by another process"):
        write(path, [])


def test_a_file_that_is_removed_while_it_is_opened_is_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, plain, lock = tmp_path / "out.jsonl", Path.exists, fcntl.flock

    def exists(self: Path) -> bool:
        found = plain(self)
        self.unlink(missing_ok=True)
        return found

    def removed(descriptor: int, how: int) -> None:
        lock(descriptor, how)
        path.unlink()

    with monkeypatch.context() as patch, contextlib.suppress(DeepInferError):
        patch.setattr(Path, "exists", exists)
        write(path, [])
    monkeypatch.setattr(fcntl, "flock", removed)
    with pytest.raises(DeepInferError, match="written by another process"):
        write(path, [])


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with open_results(path, REQUESTS, model=MODEL), pytest.raises(DeepInferError, match="written by another process"):
        write(path, [])
    write(path, REQUESTS)


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    for path, what in (
        (tmp_path / "absent" / "out.jsonl", "cannot be opened for writing: No such file"),
        (tmp_path, "cannot be opened for writing: Is a directory"),
        (Path("/dev/null"), "is no regular file"),
        (tmp_path / ("x" * 300), "cannot be opened for writing: File name too long"),
    ):
        with pytest.raises(UsageError, match=what) as mistake:
            write(path, [])
        assert mistake.value.exit_code == 1 and mistake.value.next_step
    denied = unwritable("x cannot be opened", PermissionError(errno.EACCES, "Permission denied", "y"))
    assert (denied.exit_code, denied.what) == (4, "x cannot be opened: Permission denied (y)")


def test_a_full_file_system_leaves_no_half_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    write(path, REQUESTS[:1])
    whole = path.read_bytes()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 10, before[1]))
    try:
        with pytest.raises(DeepInferError, match="cannot be written: File too large") as told:
            write(path, REQUESTS[1:2])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_bytes() == whole and "goes on where it stopped" in told.value.next_step


def test_an_error_that_cites_what_is_no_text_is_written_as_json(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with open_results(path, REQUESTS, model=MODEL) as results:
        results.write(result(REQUESTS[0], error="at \ud800, ünï"))
    assert json.loads(path.read_text(encoding="utf-8"))["error"] == "at \ud800, ünï"


def test_a_killed_writer_leaves_whole_lines_and_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    code = (
        "import os, signal; from pathlib import Path; from tests.engine.test_jsonl import *\n"
        f"with open_results(Path({str(path)!r}), REQUESTS, model=MODEL) as results:\n"
        "    results.write(result(REQUESTS[0])); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, check=False, timeout=120)
    assert done.returncode == -9
    with open_results(path, REQUESTS, model=MODEL) as results:
        assert results.done == {"a"}


def test_results_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    StdoutResults().write(result(REQUESTS[0]))
    assert json.loads(capsys.readouterr().out) == result(REQUESTS[0])
