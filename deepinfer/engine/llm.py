"""The engine for a program: open a checkpoint, give prompts, get texts."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self, cast

import torch

from deepinfer.config import read_config
from deepinfer.engine.core import Engine
from deepinfer.engine.memory import EngineOptions
from deepinfer.engine.outputs import Completion, RequestOutput
from deepinfer.engine.placement import Backend, device_of, kernels_of, tables_on
from deepinfer.engine.prompts import Prompt, checked, is_id, is_ids, is_single, named, paired
from deepinfer.engine.sequence import Request
from deepinfer.errors import CheckpointError, DeepInferError, OptionError, kind_of, shown
from deepinfer.folders import is_folder, is_there
from deepinfer.model.deep_gemm import Gemm
from deepinfer.model.load import LoadFormat, Progress, load_model
from deepinfer.model.model import KEEP_TOKENS, Truncation
from deepinfer.model.threads import fitting_threads
from deepinfer.ops import dispatch
from deepinfer.sampling import SamplingParams

if TYPE_CHECKING:
    from deepinfer.engine.timing import Stopwatch


class LLM:
    """A model that answers prompts. Use it from one thread; `close`, or the end of a `with`, leaves no other behind.

    Args:
        model: folder of the checkpoint: config.json, tokenizer files, weights.
        device: "cuda", "cuda:N" or "cpu"; None: a GPU where the driver sees one.
        backend: where kernels come from; None: DEEPINFER_OPS_BACKEND, else triton on a GPU and reference elsewhere.
        load_format: "auto" reads the weights; "dummy" makes seeded ones of the right formats, from config.json alone.
        engram_rows: keep so many rows of each n-gram table, for trials where they do not fit.
        engram_device: "cpu" leaves the n-gram tables on the host, mapped from their files, and what a step needs of
            them travels with its tokens; "cuda" or None: beside the other weights.
        seed: of dummy weights.
        truncation, keep_tokens: how prompts are shortened for the later layers, and what stays (model_spec 3.8).
            "off" is exact.
        max_model_len: tokens of prompt and output together; None: what model and memory allow.
        max_num_seqs: completions that run at once.
        chunk_tokens: tokens of prompts that one step computes; None: 2048, or 512 on a CPU.
        blocks: cache blocks of 128 tokens, one of them for padding; None: as many as fit.
        memory_fraction: of a GPU's memory, for weights and caches together, where blocks is None.
        prefix_caching: whether what prompts have in common is computed once.
        gemm: "exact", or "deep_gemm": FP8 products of DeepGEMM, on a Hopper GPU that has it: faster, and not exact.
            Both are told in `gemm`, and what stays exact all the same in `gemm_notice`.
        progress: told (bytes of weights brought so far, bytes in all) while they are loaded.

    Raises:
        ValueError: an argument is not as said.
        DeepInferError: the checkpoint or the machine is not fit; the message says what to do.

    Example:
        llm = LLM("tiny-model")
        (output,) = llm.generate("The quick brown fox", SamplingParams(max_tokens=12))
        print(output.outputs[0].text)
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        device: str | torch.device | None = None,
        backend: Backend | None = None,
        load_format: LoadFormat = "auto",
        engram_rows: int | None = None,
        engram_device: Literal["cpu", "cuda"] | None = None,
        seed: int = 0,
        truncation: Truncation = "off",
        keep_tokens: int = KEEP_TOKENS,
        max_model_len: int | None = None,
        max_num_seqs: int = 256,
        chunk_tokens: int | None = None,
        blocks: int | None = None,
        memory_fraction: float = 0.9,
        prefix_caching: bool = True,
        gemm: Gemm = "exact",
        progress: Progress | None = None,
    ) -> None:
        """Open a checkpoint; `help(LLM)` and docs/engine.md say what the arguments mean."""
        _whole_numbers(engram_rows=engram_rows, seed=seed, keep_tokens=keep_tokens)
        options = EngineOptions(
            max_num_seqs=max_num_seqs,
            chunk_tokens=chunk_tokens,
            max_model_len=max_model_len,
            blocks=blocks,
            memory_fraction=memory_fraction,
            prefix_caching=prefix_caching,
        )
        path = Path(model)
        if not is_folder(path):
            raise CheckpointError(
                f"{path} is no folder",
                cause="a model is named by the folder that it was downloaded to" if not is_there(path) else "",
                next_step="give the folder with config.json in it; `deepinfer tiny DIR` writes one to try",
            )
        self.folder, self.device = path, device_of(device)
        self._ops = kernels_of(backend, self.device)
        tables = tables_on(engram_device, self.device)
        self._hidden = read_config(path).hidden
        with self._settings():
            loaded = load_model(
                path,
                device=self.device,
                load_format=load_format,
                engram_rows=engram_rows,
                engram_device=tables,
                seed=seed,
                truncation=truncation,
                keep_tokens=keep_tokens,
                gemm=gemm,
                progress=progress,
            )
            self.engine = Engine(loaded, options)
        self.tokenizer = loaded.tokenizer
        self.config = loaded.config
        self.gemm, self.gemm_notice = loaded.gemm, loaded.gemm_notice
        self._streaming = False

    def __repr__(self) -> str:
        notice = f"; {self.gemm_notice}" if self.gemm_notice else ""
        return f"<LLM {str(self.folder)!r} on {self.device}, {self.backend} kernels, {self.gemm} products{notice}>"

    def close(self) -> None:
        """End what is being answered, and wait for threads that compile grammars. Nothing can be asked afterwards."""
        self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def max_model_len(self) -> int:
        """Tokens of a prompt and its output together."""
        return self.engine.limits.length

    @property
    def backend(self) -> str:
        """Where kernels come from."""
        return self._ops.backend

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[RequestOutput]:
        """Answer prompts, together; returns one output for each, in their order.

        Args:
            prompts: one prompt, or a list of them.
            params: for all of them, or a list with one for each; None: the defaults of SamplingParams.

        Raises:
            TypeError, ValueError: a prompt or a parameter cannot be taken; nothing was run then. The message names it,
                one of a list as prompts[i]. What only compiling its structure finds is told in its output, as an error.
            RuntimeError: it was closed, or a stream of it is being read.
        """
        requests = paired(prompts, params)
        taken = -1  # the place of the request that is being taken; none once all are, which is before the first step

        def in_order() -> Iterator[Request]:
            nonlocal taken
            for place, request in enumerate(requests):
                taken = place
                yield request
            taken = -1

        last: dict[str, RequestOutput] = {}
        try:
            for output in self.stream(in_order(), in_flight=len(requests) + 1):
                last[output.request_id] = output
        except (TypeError, ValueError, DeepInferError) as problem:
            if taken < 0 or is_single(prompts):
                raise
            raise named(problem, f"prompts[{taken}]") from problem
        return [last[request.request_id] for request in requests]

    def stream(
        self,
        requests: Iterable[Request],
        *,
        in_flight: int | None = None,
        refuse: bool = True,
        watch: Stopwatch | None = None,
    ) -> Iterator[RequestOutput]:
        """Answer requests, and yield after each step an output for every request that it brought on.

        An output holds all of its request so far; the last one of a request is `finished`. Requests are taken from
        the iterable as there is room for them; leaving the iteration cancels what is not done.

        Args:
            requests: their ids have to differ.
            in_flight: how many may be with the engine at once; None: four times as many as it runs.
            refuse: raise where a request cannot be taken; False: it comes back at once, with an error.
            watch: told of arrivals and outputs.

        Raises:
            TypeError, ValueError: what is among the requests is none, or with `refuse`, one cannot be taken; those
                before it are cancelled.
            RuntimeError: it was closed, or another stream of this object is being read.
        """
        self.engine.check_open()
        if self._streaming:
            raise RuntimeError("another stream of this LLM is being read: finish or close it first")
        if in_flight is not None and (not is_id(in_flight) or in_flight < 1):
            raise ValueError(f"in_flight must be a whole number of at least 1, or None, not {shown(in_flight)}")
        left = checked(requests)
        self._streaming = True
        under_way: set[str] = set()
        try:
            more, limit = True, in_flight or 4 * self.engine.limits.sequences
            while True:
                while more and len(under_way) < limit:
                    request = next(left, None)
                    if request is None:
                        more = False
                    elif (refused := self._add(request, refuse, watch)) is None:
                        under_way.add(request.request_id)
                    else:
                        yield refused
                if not under_way:
                    return
                outputs = [one for one in self._step() if one.request_id in under_way]
                if watch is not None:
                    watch.seen(outputs)
                for output in outputs:
                    if output.finished:
                        under_way.remove(output.request_id)
                    yield output
        finally:
            self._streaming = False
            for name in under_way:
                self.engine.drop(name)

    def _add(self, request: Request, refuse: bool, watch: Stopwatch | None) -> RequestOutput | None:
        """Hand a request to the engine. Returns what to tell of it where it is not taken, else None."""
        came = watch.now() if watch is not None else 0.0  # that it is read and checked is a part of its time
        try:
            with self._settings():
                self.engine.add(request)
        except Exception as problem:  # whatever it is, the others go on
            if refuse:
                raise
            text = request.prompt if isinstance(request.prompt, str) else None
            ids = list(cast("Sequence[int]", request.prompt)) if text is None and is_ids(request.prompt) else []
            failed = Completion(0, finish_reason="error")
            failed.blame(problem)
            output = RequestOutput(request.request_id, text, ids, [failed])
            if watch is not None:
                watch.seen([output])
            return output
        if watch is not None:
            watch.arrived(request.request_id, came)
        return None

    def _step(self) -> list[RequestOutput]:
        with self._settings():
            return self.engine.step()

    @contextlib.contextmanager
    def _settings(self) -> Iterator[None]:
        """Kernels come from where this object was told, whatever others in this process use."""
        with dispatch.using(self._ops), fitting_threads(self._hidden, self.device):
            yield


def _whole_numbers(**arguments: int | None) -> None:
    for name, value in arguments.items():
        if value is not None and not is_id(value):
            raise OptionError(name, f"must be a whole number, not {kind_of(value)}")
