"""The engine: requests in, steps, outputs out."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from deepinfer.engine.admission import Admission
from deepinfer.engine.memory import EngineOptions, allocate
from deepinfer.engine.outputs import FinishReason, RequestOutput
from deepinfer.engine.runner import Drawn, Runner
from deepinfer.engine.scheduler import Scheduler
from deepinfer.engine.sequence import Request, Sequence, Status
from deepinfer.engine.step import Step
from deepinfer.errors import DeepInferError, InputError, Option, shown
from deepinfer.model.load import LoadedModel, is_out_of_memory


@dataclass(frozen=True)
class _Live:
    """A request that is not done: what is told of it, and its sequences."""

    output: RequestOutput
    sequences: list[Sequence]


class Engine:
    """Answers requests with one model on one device, many at a time. Use it from one thread.

    `add` takes a request, `step` computes the next token of those that run, `cancel` ends one early. What else is in
    a batch changes no bit of a request's answer, nor do prefixes that were found or a preemption.
    """

    def __init__(self, loaded: LoadedModel, options: EngineOptions | None = None) -> None:
        """
        Raises:
            DeepInferError: the caches do not fit, or a limit is asked for that cannot be kept.
        """
        self.loaded = loaded
        memory = allocate(loaded.model, options or EngineOptions())
        self.limits = memory.limits
        self._admission = Admission.of(loaded, memory.limits, memory.context)
        self._scheduler = Scheduler(memory.blocks, memory.slots, memory.limits)
        self._runner = Runner(loaded.model, memory.caches)
        self._live: dict[str, _Live] = {}
        self._changed: dict[str, RequestOutput] = {}
        self._arrivals = itertools.count()

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to compute or to tell."""
        return bool(self._live or self._changed)

    @property
    def held(self) -> tuple[int, int]:
        """Cache blocks and state slots that requests hold now."""
        return self._scheduler.held

    def add(self, request: Request) -> str:
        """Queue a request; returns its id.

        Raises:
            TypeError, ValueError: the prompt or a parameter cannot be taken; the message names it.
            DeepInferError: what the request asks for is not installed.
        """
        name = request.request_id
        if name in self._live or name in self._changed:
            raise InputError(f"request_id {shown(name)} is of a request that is not done", next_step="give another")
        live = _Live(*self._admission.admit(request, self._arrivals))
        self._live[name] = live
        for sequence in live.sequences:
            self._scheduler.add(sequence)
        return name

    def cancel(self, request_id: str) -> bool:
        """End a request now; the next step tells of it, "cancelled", with what it has. False: none such is going on."""
        live = self._live.get(request_id)
        if live is None:
            return False
        for sequence in live.sequences:
            self._finish(sequence, "cancelled")
        return True

    def drop(self, request_id: str) -> None:
        """End a request now, if it is going on, and tell nothing more of it: its id is free again."""
        self.cancel(request_id)
        self._changed.pop(request_id, None)

    def step(self) -> list[RequestOutput]:
        """Compute one step. Returns the outputs of the requests that got tokens or ended.

        An output is the request's own object, which goes on growing until it is `finished`: copy what is to be kept.
        An exception leaves the engine usable: what the step was to compute is computed anew by the next one.
        """
        step = self._scheduler.schedule()
        if step is not None:
            try:
                self._compute(step)
            except BaseException as problem:
                self._scheduler.abandon(step)
                if isinstance(problem, RuntimeError) and is_out_of_memory(problem):
                    raise _out_of_memory(step) from problem
                raise
        changed, self._changed = list(self._changed.values()), {}
        return changed

    def _compute(self, step: Step) -> None:
        """Run a step, keep the states that prefixes need, and hand out what was drawn."""
        found = self._runner.run(step)
        for one in found:
            if one.failed:
                self._fail(one.sequence)
        self._runner.copy(self._scheduler.advance(step))
        for one in found:
            self._take(one)

    def _fail(self, sequence: Sequence) -> None:
        """A sequence fails alone. Where its logits are no numbers, its blocks are of no use to others either."""
        problem = sequence.matcher.problem if sequence.matcher is not None else ""
        if not problem:
            self._scheduler.forget_prefixes()
            problem = f"no token can be drawn at position {len(sequence.tokens)}: the model's logits are no numbers"
        sequence.completion.error = problem
        self._finish(sequence, "error")

    def _take(self, drawn: Drawn) -> None:
        """What a step gave a sequence: log-probabilities of its prompt, its next token, perhaps its end."""
        sequence, token = drawn.sequence, drawn.token
        if sequence.status is Status.FINISHED:
            return
        if sequence.prompt_logprobs is not None and drawn.prompt:
            sequence.prompt_logprobs[drawn.first : drawn.first + len(drawn.prompt)] = drawn.prompt
        if token is None:
            return
        live = self._live[sequence.request.request_id]
        completion = sequence.completion
        self._changed[sequence.request.request_id] = live.output
        live.output.cached_tokens = live.sequences[0].reused or 0
        sequence.tokens.append(token.token_id)
        completion.token_ids.append(token.token_id)
        if completion.logprobs is not None and token.logprob is not None:
            completion.logprobs.append(token.logprob)
        self._end(sequence, token.token_id)

    def _end(self, sequence: Sequence, token: int) -> None:
        """Take a token's text, and end the sequence if it is the last."""
        completion, text = sequence.completion, sequence.text
        ends = token in sequence.stops
        if sequence.matcher is not None:
            if not sequence.matcher.accept(token):
                completion.error = sequence.matcher.problem or f"the structure does not allow the token {token} drawn"
                return self._finish(sequence, "error")
            ends = ends or sequence.matcher.finished
        if text is not None and token not in sequence.stops:
            text.push(token)
            completion.text = text.text
            if text.stopped_by is not None:
                return self._finish(sequence, "stop", text.stopped_by)
        if ends:
            return self._finish(sequence, "stop", token)
        if sequence.generated >= sequence.params.max_tokens or len(sequence.tokens) >= self.limits.length:
            return self._finish(sequence, "length")
        return None

    def _finish(self, sequence: Sequence, reason: FinishReason, stop: str | int | None = None) -> None:
        """The sequence is done, unless it was already; what it held is free."""
        if sequence.status is Status.FINISHED:
            return
        self._scheduler.remove(sequence)
        completion, text = sequence.completion, sequence.text
        if text is not None:
            text.finish()
            completion.text = text.text
        completion.finish_reason, completion.stop = reason, stop
        live = self._live[sequence.request.request_id]
        self._changed[sequence.request.request_id] = live.output
        if live.output.finished:
            del self._live[sequence.request.request_id]


def _out_of_memory(step: Step) -> DeepInferError:
    rows = sum(chunk.count for chunk in step.chunks)
    return DeepInferError(
        f"the device has no memory for a step of {rows} rows; nothing was lost, and the next step tries again",
        cause="the caches leave too little for the work, or another program took memory",
        next_step=(
            *("open the model with a smaller ", Option("memory_fraction")),
            *(" or fewer ", Option("chunk_tokens")),
        ),
    )
