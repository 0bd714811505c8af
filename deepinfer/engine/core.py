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
from deepinfer.structured_output import Compilation


@dataclass(frozen=True)
class _Live:
    """A request that is not done: what is told of it, its sequences, and the grammar that they wait or waited for."""

    output: RequestOutput
    sequences: list[Sequence]
    compilation: Compilation | None


class Engine:
    """Answers requests with one model on one device, many at a time. Use it from one thread.

    `add` takes a request, `step` computes the next token of those that run, `cancel` ends one early. What else is in
    a batch changes no bit of a request's answer, nor do prefixes that were found or a preemption.

    A request's grammar is compiled in a thread, while others go on; it waits for that in the queue. `close` waits for
    such threads.
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
        self._grammars = self._admission.grammars
        self._scheduler = Scheduler(memory.blocks, memory.slots, memory.limits)
        self._runner = Runner(loaded.model, memory.caches)
        self._live: dict[str, _Live] = {}
        self._compiling: dict[str, _Live] = {}
        self._changed: dict[str, RequestOutput] = {}
        self._closed = False
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

        What is only found while a grammar is compiled ends its request with an error later, and no other one.

        Raises:
            TypeError, ValueError: the prompt or a parameter cannot be taken; the message names it.
            DeepInferError: what the request asks for is not installed.
            RuntimeError: the engine was closed.
        """
        self.check_open()
        name = request.request_id
        if name in self._live or name in self._changed:
            raise InputError(f"request_id {shown(name)} is of a request that is not done", next_step="give another")
        live = _Live(*self._admission.admit(request, self._arrivals))
        self._live[name] = live
        if live.compilation is not None:
            self._compiling[name] = live
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
        Where nothing can be computed before a grammar is compiled, it waits for one, or for `wake`, and may then return
        nothing. An exception leaves the engine usable: what the step was to compute is computed anew by the next one.

        Raises:
            RuntimeError: the engine was closed.
        """
        self.check_open()
        step = self._schedule()
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

    def wake(self) -> None:
        """End the wait of a `step` for a grammar, so that a request can be added. Any thread may call this."""
        if self._grammars is not None:
            self._grammars.wake()

    def close(self) -> None:
        """End all requests, and wait for the threads that compile grammars. Nothing is taken or computed afterwards."""
        self._closed = True
        for name in list(self._live):
            self.drop(name)
        self._changed.clear()
        if self._grammars is not None:
            self._grammars.close()

    def check_open(self) -> None:
        """RuntimeError where the engine was closed."""
        if self._closed:
            raise RuntimeError("this engine was closed: open the model again")

    def _schedule(self) -> Step | None:
        """What to compute next, if need be after a wait for a grammar."""
        self._take_grammars()
        step = self._scheduler.schedule()
        if step is None and self._grammars is not None and self._compiling and not self._changed:
            self._grammars.wait()
            self._take_grammars()
            step = self._scheduler.schedule()
        return step

    def _take_grammars(self) -> None:
        """Let requests go on whose grammar is there, in the order of their arrival; end those whose cannot be had."""
        if self._grammars is None or not self._compiling:
            return
        self._grammars.expire()
        for live in list(self._compiling.values()):
            compilation = live.compilation
            if compilation is None or not compilation.done:
                continue
            problem = compilation.problem
            try:
                if compilation.grammar is not None:
                    for sequence in live.sequences:
                        sequence.matcher = compilation.grammar.matcher()
            except Exception as raised:  # it is of this request alone, whatever it is
                problem = raised
            self._compiling.pop(live.output.request_id)
            for sequence in live.sequences:
                if problem is None:
                    self._scheduler.release(sequence)
                else:
                    sequence.completion.blame(problem)
                    self._finish(sequence, "error")

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
            self._compiling.pop(sequence.request.request_id, None)
            if self._grammars is not None and live.compilation is not None:
                self._grammars.release(live.compilation)


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
