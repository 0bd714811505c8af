"""Grammars compiled in threads: each once, in order, within bounds, and whatever goes wrong comes back."""

from __future__ import annotations

import gc
import itertools
import weakref
from pathlib import Path
from typing import Any

import pytest

from deepinfer.loading.tiny import VOCABULARY
from deepinfer.loading.tiny_tokenizer import write_tokenizer
from deepinfer.sampling import Structure
from deepinfer.structured_output import Compilation, CompilePool, GrammarCompiler
from deepinfer.structured_output import pool as pool_module
from deepinfer.structured_output.compiler import THREADS
from deepinfer.structured_output.pool import LOST
from deepinfer.tokenizer import Tokenizer
from tests.engine.held_grammars import PATIENCE, Held, settle, threads
from tests.engine.held_grammars import held as held_grammars

held = pytest.fixture(held_grammars)


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> GrammarCompiler:
    pytest.importorskip("tokenizers", reason="tokenizers is absent: no text can be tokenised")
    pytest.importorskip("xgrammar", reason="xgrammar is absent: no grammar can be compiled")
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder, VOCABULARY)
    tokenizer = Tokenizer(folder)
    return GrammarCompiler(tokenizer, VOCABULARY, [tokenizer.eos_id])


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def regex(text: str) -> Structure:
    return Structure("regex", text)


def finished(pool: CompilePool, *asked: Compilation) -> None:
    while not all(one.done for one in asked):
        pool.wait()


def test_the_same_grammar_is_compiled_once(compiler: GrammarCompiler, held: Held) -> None:
    pool = CompilePool(compiler)
    first, second = pool.compile(regex("ab")), pool.compile(regex("ab"))
    assert first is second and not first.done
    held.let()
    finished(pool, first)
    again = pool.compile(regex("ab"))
    assert again.done and again.grammar is first.grammar and held.begun == ["ab"]
    other_kind = pool.compile(Structure("ebnf", 'root ::= "ab"'))
    finished(pool, other_kind)
    assert other_kind.grammar is not first.grammar and len(held.begun) == 2


def test_the_same_grammar_asked_for_by_two_at_one_time_is_one(
    compiler: GrammarCompiler, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one is there as a whole while the first one is being read."""
    pool = CompilePool(compiler)
    real, second = pool_module.check_text, []

    def check_text(kind: str, text: str) -> None:
        if not second:
            second.append(None)
            second[0] = pool.compile(regex("cd"))
        real(kind, text)

    monkeypatch.setattr(pool_module, "check_text", check_text)
    first = pool.compile(regex("cd"))
    assert first is second[0] and first.users == 2
    held.let()
    finished(pool, first)
    assert held.begun == ["cd"]


def test_so_many_threads_work_in_the_order_of_asking(compiler: GrammarCompiler, held: Held) -> None:
    pool = CompilePool(compiler)
    asked = [pool.compile(regex(f"x{letter}")) for letter in "fbdaec"]
    held.wait_begun(THREADS)
    assert len(threads()) == THREADS and sorted(held.begun) == ["xb", "xf"]
    held.let("xb")
    finished(pool, asked[1])
    held.wait_begun(THREADS + 1)
    assert held.begun[-1] == "xd" and len(threads()) <= THREADS + 1
    held.let()
    finished(pool, *asked)
    assert all(one.grammar is not None for one in asked) and sorted(held.begun) == [f"x{one}" for one in "abcdef"]
    settle()


def test_what_nobody_waits_for_is_left_out_unless_a_thread_has_it(compiler: GrammarCompiler, held: Held) -> None:
    pool = CompilePool(compiler)
    running = [pool.compile(regex(text)) for text in ("k1", "k2")]
    queued, wanted = pool.compile(regex("k3")), pool.compile(regex("k4"))
    assert pool.compile(regex("k4")) is wanted
    for one in (running[0], queued, wanted):  # of the last one somebody else is left
        pool.release(one)
    held.let()
    finished(pool, *running, wanted)
    settle()
    assert sorted(held.begun) == ["k1", "k2", "k4"] and not queued.done
    assert pool.compile(regex("k1")).done, "it was compiled, and is kept"


@pytest.mark.parametrize(("bounds", "kept"), [({"most_grammars": 2}, ["l1", "l3"]), ({"most_bytes": 1}, [])])
def test_grammars_are_kept_within_bounds_the_last_used(
    compiler: GrammarCompiler, held: Held, bounds: dict[str, int], kept: list[str]
) -> None:
    pool = CompilePool(compiler, **bounds)
    held.let()
    for text in ("l1", "l2", "l1", "l3"):
        finished(pool, pool.compile(regex(text)))
    assert [text for text in ("l1", "l2", "l3") if pool.compile(regex(text)).done] == kept


def test_a_grammar_too_large_to_be_kept_drives_out_no_other(compiler: GrammarCompiler, held: Held) -> None:
    held.let()
    small, large = regex("l4"), regex("[a-z]{1,99}")
    sizes = [compiler.compile(one).size for one in (small, large)]
    pool = CompilePool(compiler, most_bytes=sizes[1] - 1)
    assert sizes[0] < sizes[1]
    for one in (small, large):
        finished(pool, pool.compile(one))
    assert [pool.compile(one).done for one in (small, large)] == [True, False]


@pytest.mark.parametrize("problem", [ValueError("why"), MemoryError("none left"), RuntimeError("x"), SystemExit(3)])
def test_whatever_a_thread_raises_comes_back(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch, problem: BaseException
) -> None:
    def fail(*_: object) -> None:
        raise problem

    monkeypatch.setattr(GrammarCompiler, "compile_text", fail)
    pool = CompilePool(compiler)
    asked = pool.compile(regex("a"))
    finished(pool, asked)
    assert asked.grammar is None
    assert asked.problem is problem or "SystemExit(3)" in str(asked.problem)
    settle()
    monkeypatch.undo()
    again = pool.compile(regex("a"))
    finished(pool, again)
    assert again.grammar is not None, "a failure is not kept"


def test_a_thread_that_cannot_be_had_fails_what_it_was_for(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr("threading.Thread.start", fail)
        pool = CompilePool(compiler)
        asked = pool.compile(regex("a"))
    assert asked.done and "new thread" in str(asked.problem)
    again = pool.compile(regex("a"))
    finished(pool, again)
    assert again.grammar is not None


def test_one_that_takes_too_long_fails_and_its_place_is_free(compiler: GrammarCompiler, held: Held) -> None:
    clock = Clock()
    pool = CompilePool(compiler, longest=5.0, clock=clock)
    slow = [pool.compile(regex(f"s{index}")) for index in range(THREADS)]
    held.wait_begun(THREADS)
    clock.now = 4.0
    others = pool.compile(regex("others"))
    pool.expire()
    assert not any(one.done for one in (*slow, others))
    clock.now = 5.0
    pool.wait()  # returns at once: somebody's time is over
    pool.expire()
    told = "structure: the regular expression cannot be taken: compiling it takes more than 5 s; ask for less in one "
    assert [str(one.problem) for one in slow] == [told + "request"] * THREADS
    assert pool.compile(regex("s0")) is slow[0], "no second thread is given to it"
    held.let("others")
    finished(pool, others)
    assert others.grammar is not None
    held.let()
    settle()
    assert slow[0].grammar is None and pool.compile(regex("s0")).grammar is not None, "it was ready in the end"


def test_where_every_thread_is_lost_the_others_are_told(compiler: GrammarCompiler, held: Held) -> None:
    clock = Clock()
    pool = CompilePool(compiler, longest=5.0, clock=clock)
    for index, time in itertools.product(range(THREADS + LOST), (5.0,)):
        pool.compile(regex(f"s{index}"))
        held.wait_begun(index + 1)
        clock.now += time
        pool.expire()
    late = pool.compile(regex("late"))
    pool.expire()
    assert late.done and str(late.problem).endswith("is busy with another one, past its time; ask again later")
    assert len(threads()) == THREADS + LOST
    held.let()
    settle()
    again = pool.compile(regex("late"))
    finished(pool, again)
    assert again.grammar is not None


def test_a_structure_is_read_when_it_is_asked_for(compiler: GrammarCompiler, held: Held) -> None:
    schema: dict[str, Any] = {"enum": ["early"]}
    pool = CompilePool(compiler)
    asked = pool.compile(Structure("json", schema))
    schema["enum"][0] = "later"
    held.let()
    finished(pool, asked)
    assert "early" in asked.text and "later" not in asked.text and held.begun == [asked.text]


def test_what_is_seen_without_compiling_is_refused_at_once(compiler: GrammarCompiler, held: Held) -> None:
    pool = CompilePool(compiler)
    for structure in (regex("("), regex("a^b"), Structure("ebnf", "root ::= nothere"), Structure("json", "{")):
        with pytest.raises(ValueError, match=r"^structure: the .* cannot be taken: "):
            pool.compile(structure)
    assert not held.begun and not threads()


def test_no_thread_is_left_when_the_pool_is_closed_or_has_nothing_to_do(compiler: GrammarCompiler, held: Held) -> None:
    pool = CompilePool(compiler)
    asked = [pool.compile(regex(f"c{index}")) for index in range(THREADS + 1)]
    held.wait_begun(THREADS)
    with held.let_soon():  # when it is being closed
        pool.close()
    assert not threads() and [one.done for one in asked] == [True] * THREADS + [False]
    known = weakref.ref(pool)
    del pool
    gc.collect()
    assert known() is None


def test_wake_ends_a_wait_also_a_later_one(compiler: GrammarCompiler, held: Held) -> None:
    pool = CompilePool(compiler, longest=PATIENCE)
    asked = pool.compile(regex("w"))
    pool.wake()
    pool.wait()
    assert not asked.done


def test_closing_that_was_interrupted_waits_when_it_is_called_again(
    compiler: GrammarCompiler, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    pool = CompilePool(compiler)
    for text in ("i1", "i2"):
        pool.compile(regex(text))
    held.wait_begun(THREADS)
    with monkeypatch.context() as patch:
        patch.setattr("threading.Thread.join", interrupt)
        with pytest.raises(KeyboardInterrupt):
            pool.close()
    with held.let_soon():
        pool.close()
    assert not threads()


LEAVE = """
import os, pathlib, sys, threading, time
from deepinfer.sampling import Structure
from deepinfer.structured_output import CompilePool, GrammarCompiler
os.cpu_count = lambda: 1
class Letters:
    special_ids = frozenset({0})
    def bytes_of(self, token):
        return bytes([token]) if token < 128 else b""
class Watched(GrammarCompiler):
    busy, thread = threading.Event(), 0
    def compile_text(self, kind, text):
        if text == "a":
            threading.Event().wait()
        self._started(kind)
        Watched.thread = threading.get_native_id()
        Watched.busy.set()
        return super().compile_text(kind, text)
class Late:
    def __init__(self, thread, sleep=time.sleep):
        self.state, self.sleep = pathlib.Path(f"/proc/self/task/{thread}/stat").open(), sleep
    def __del__(self):  # when modules are taken down: the thread comes back to Python meanwhile
        state = "R"
        while state != "S":
            self.sleep(0.05)
            self.state.seek(0)
            state = self.state.read().rpartition(") ")[2][0]
pool = CompilePool(Watched(Letters(), 128, [0]), longest=LONGEST)
pool.compile(Structure("regex", "a"))
pool.compile(Structure("regex", "[a-z]?" * 250))
assert Watched.busy.wait(60)
late = Late(Watched.thread)
print("done")
"""


@pytest.mark.parametrize("longest", [0.0, 1e6])
def test_a_process_ends_at_once_whatever_is_compiled(run_python: Any, longest: float) -> None:
    pytest.importorskip("xgrammar", reason="xgrammar is absent: no grammar can be compiled")
    done = run_python("-c", LEAVE.replace("LONGEST", str(longest)))
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
