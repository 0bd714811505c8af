"""The tiny model, loaded once, and engines over it."""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from deepinfer.engine.core import Engine
from deepinfer.engine.memory import EngineOptions
from deepinfer.engine.outputs import RequestOutput
from deepinfer.engine.sequence import Request
from deepinfer.loading.tiny import VOCABULARY, write_tiny
from deepinfer.model.load import LoadedModel, load_model
from deepinfer.ops import dispatch
from deepinfer.sampling.params import SamplingParams


def quiet_cpu() -> Iterator[None]:
    """For a fixture. Kernels of the reference; one thread, since the products are small, and threads that wait for each
    other cost more than they give.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with dispatch.using("reference"):
        yield
    torch.set_num_threads(threads)


@functools.cache
def loaded(**options: Any) -> LoadedModel:
    """The tiny checkpoint; options of `load_model`."""
    pytest.importorskip("tokenizers", reason="tokenizers is absent: no text can be tokenised")
    pytest.importorskip("safetensors", reason="safetensors is absent: no checkpoint can be written")
    with tempfile.TemporaryDirectory() as folder:
        write_tiny(Path(folder) / "tiny")
        return load_model(Path(folder) / "tiny", **{"device": "cpu", **options})


def engine(model: LoadedModel | None = None, **options: Any) -> Engine:
    """A small engine; options of `EngineOptions`."""
    chosen = {"max_num_seqs": 4, "chunk_tokens": 256, "blocks": 30, **options}
    return Engine(model or loaded(), EngineOptions(**chosen))


def prompt(length: int, seed: int = 11) -> list[int]:
    """Random tokens of text."""
    return torch.randint(13, VOCABULARY, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def greedy(tokens: int, **fields: Any) -> SamplingParams:
    """So many tokens, each the likeliest."""
    return SamplingParams(**{"temperature": 0.0, "max_tokens": tokens, "ignore_eos": True, **fields})


def run(running: Engine, requests: Iterable[Request], *, each: Callable[[], object] = bool) -> list[RequestOutput]:
    """Answer requests together; `each` is called after every step."""
    names = [running.add(request) for request in requests]
    found: dict[str, RequestOutput] = {}
    for _ in range(5000):
        if not running.has_work:
            break
        found.update((one.request_id, one) for one in running.step())
        each()
    assert not running.has_work and running.held == (0, 0)
    return [found[name] for name in names]


def ask(
    prompt: str | list[int], params: SamplingParams, running: Engine | None = None, **options: Any
) -> RequestOutput:
    """The answer to one request, by an engine of its own unless one is given."""
    (output,) = run(running or engine(**options), [Request(prompt, params)])
    return output


def answers(output: RequestOutput) -> list[tuple[object, ...]]:
    """What a user gets, to be compared bit by bit."""
    return [dataclasses.astuple(one) for one in output.outputs] + [(output.prompt_logprobs,)]
