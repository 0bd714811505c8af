"""Errors carry the options that they name as data: a program reads Python's names, a command line prints its own."""

import pickle

import pytest

from deepinfer.command_line import exit_code
from deepinfer.engine.core import _out_of_memory
from deepinfer.engine.memory import EngineOptions
from deepinfer.engine.prompts import named
from deepinfer.engine.step import Limits, Step
from deepinfer.errors import DeepInferError, InputError, Option, OptionError, UsageError

ROOM = InputError(
    ("no room for ", Option("max_num_seqs"), " in max_num_seqs/x"),
    cause=(Option("chunk_tokens"), " is 9"),
    next_step=("lower ", Option("blocks")),
)


def printed(problem: Exception, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    def fail() -> int:
        raise problem

    return exit_code(fail), capsys.readouterr().err


def test_a_program_reads_names_of_python() -> None:
    assert ROOM.what == "no room for max_num_seqs in max_num_seqs/x"
    assert (ROOM.cause, ROOM.next_step) == ("chunk_tokens is 9", "lower blocks")
    assert str(ROOM) == f"{ROOM.what}\n  likely cause: {ROOM.cause}\n  next step: {ROOM.next_step}"
    assert ROOM.args == (ROOM.what,)


@pytest.mark.parametrize("problem", [ROOM, pickle.loads(pickle.dumps(ROOM))], ids=["raised", "brought by a process"])
def test_a_command_line_prints_its_own_and_leaves_the_rest(
    problem: InputError, capsys: pytest.CaptureFixture[str]
) -> None:
    assert printed(problem, capsys) == (
        2,
        "error: no room for --max-num-seqs in max_num_seqs/x\n"
        "  likely cause: --chunk-tokens is 9\n"
        "  next step: lower --blocks\n",
    )


def test_what_names_a_prompt_keeps_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    problem = named(ROOM, "prompts[3]")
    assert isinstance(problem, InputError) and problem.what == f"prompts[3]: {ROOM.what}"
    _, told = printed(problem, capsys)
    assert told.startswith("error: prompts[3]: no room for --max-num-seqs in") and "lower --blocks" in told
    assert str(named(DeepInferError("full"), "prompts[0]")) == "prompts[0]: full"


def test_a_value_that_is_not_allowed_names_its_option() -> None:
    with pytest.raises(ValueError, match=r"^chunk_tokens must be a whole number of at least 1, not 0$") as told:
        EngineOptions(chunk_tokens=0)
    assert isinstance(told.value, OptionError) and told.value.option == "chunk_tokens"
    assert str(UsageError(told.value.pieces)) == str(told.value)
    assert str(pickle.loads(pickle.dumps(told.value))) == str(told.value)


def test_a_step_without_memory_names_what_would_free_some(capsys: pytest.CaptureFixture[str]) -> None:
    problem = _out_of_memory(Step((), (), ()))
    assert problem.next_step == "open the model with a smaller memory_fraction or fewer chunk_tokens"
    assert "a smaller --memory-fraction or fewer --chunk-tokens\n" in printed(problem, capsys)[1]


@pytest.mark.parametrize(
    ("why", "cause", "more"),
    [
        ("max_model_len", "max_model_len is 256", "open the model with a larger max_model_len"),
        ("blocks", "the cache has 3 blocks of 128 tokens, one of them kept for padding", "more cache blocks (blocks)"),
        ("model", "the model was made for 256 tokens", ""),
    ],
)
def test_what_allows_no_longer_sequence(why: str, cause: str, more: str) -> None:
    of, longer = Limits(1, 1, 256, why=why).of_length()  # type: ignore[arg-type]
    assert "".join(of) == cause and more in "".join(longer) and bool(longer) is bool(more)
    assert [piece for piece in of + longer if isinstance(piece, Option) and piece != why] == []
