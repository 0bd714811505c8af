"""Who computes what in the next step. Pure host code: no tensors.

The rules:

1. First come, first served. The first that waits is admitted when a slot is free, and blocks for all its known tokens
   and one more for every running sequence; nobody overtakes it. A completion of a prompt that another one is computing
   right now waits for that one (its prefix will be in the cache) and holds up nobody. Nor does one whose grammar is not
   compiled yet: it is passed over, and has the place of its arrival as soon as it is.
2. Every running sequence past its prompt decodes one token a step.
3. `chunk_tokens` rows of prompts are prefilled a step, of at most `PROMPTS` sequences unless more are needed to fill
   them. The first come gets half while others are there, the next half of the rest, and so on: a long prompt neither
   starves nor keeps the short ones waiting.
4. A prompt's chunk ends at the last multiple of 128 tokens in its reach, where its state is kept for prompts that begin
   alike, and also where it parts from an earlier prompt.
5. A sequence that needs a block when none is free sends the last come back to the queue, where it is computed anew
   when its turn comes; what it generated stays. The first come is never sent back for another one, so that somebody
   always gets done.
"""

from __future__ import annotations

import bisect
from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from deepinfer.cache.layout import BLOCK_TOKENS, blocks_of
from deepinfer.cache.prefix import PrefixCache, block_hashes, reusable_tokens
from deepinfer.engine.sequence import Sequence, Status
from deepinfer.engine.step import Chunk, Limits, Step

if TYPE_CHECKING:
    from deepinfer._python.engine import BlockManager

PROMPTS = 4
"""Prompts that are prefilled side by side where one alone would fill a step."""
LOGPROB_ROWS = 512
"""Rows of a chunk whose logits are all wanted: bounds their memory."""
REMEMBERED = 2**16
"""Hashes of blocks by which is seen where prompts part: 8 M tokens of the latest prompts."""


class Scheduler:
    """Waiting and running sequences, and the blocks and slots that they hold.

    blocks, slots: the managers of the caches' blocks and state slots. Of the slots, limits.sequences at most are held
    by sequences; what is free besides keeps the states of prefixes.
    """

    def __init__(self, blocks: BlockManager, slots: BlockManager, limits: Limits) -> None:
        most = slots.get_num_free_blocks()
        if not 1 <= limits.sequences < most:
            raise ValueError(
                f"limits.sequences must be 1 to {most - 1}, one less than the state slots, not {limits.sequences}"
            )
        if not 1 < limits.length <= blocks.get_num_free_blocks() * BLOCK_TOKENS or limits.chunk_tokens < 1:
            raise ValueError(f"no sequence of {limits.length} tokens fits the blocks, or no token a step: {limits}")
        self.limits = limits
        self._totals = blocks.get_num_free_blocks(), most
        self._blocks, self._slots = blocks, slots
        self._prefixes = PrefixCache(blocks, slots)
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        self._seen: OrderedDict[bytes, None] = OrderedDict()

    @property
    def waiting(self) -> tuple[Sequence, ...]:
        """Those that hold nothing, by arrival."""
        return tuple(self._waiting)

    @property
    def running(self) -> tuple[Sequence, ...]:
        """Those that hold a slot and blocks, by arrival."""
        return tuple(self._running)

    @property
    def held(self) -> tuple[int, int]:
        """How many blocks and slots are in use. Those that only the prefix cache knows are free."""
        blocks, slots = self._totals
        return blocks - self._blocks.get_num_free_blocks(), slots - self._slots.get_num_free_blocks()

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. One that is COMPILING stays there until `release`."""
        bisect.insort(self._waiting, sequence, key=_arrival)

    def release(self, sequence: Sequence) -> None:
        """What a sequence of the queue was COMPILING is there: it may be admitted."""
        sequence.status = Status.WAITING

    def remove(self, sequence: Sequence) -> None:
        """The sequence is done, or cancelled: it gives back what it holds."""
        if sequence.status is Status.RUNNING:
            self._vacate(sequence)
        elif sequence.status in (Status.COMPILING, Status.WAITING):
            self._waiting.remove(sequence)
        sequence.status = Status.FINISHED

    def preempt(self, sequence: Sequence) -> None:
        """Send a running sequence back to the queue, where its arrival places it; not while a step is computed."""
        self._vacate(sequence)
        sequence.status = Status.WAITING
        sequence.preemptions += 1
        self.add(sequence)

    def forget_prefixes(self) -> None:
        """Reuse nothing of what was computed so far: something in it may be wrong."""
        self._prefixes.clear()

    def schedule(self) -> Step | None:
        """What to compute next; None where nothing is to be done.

        It has to be computed and told to `advance`, or given up by `abandon`, before the next call.
        """
        decode = tuple(self._decode())
        restore = tuple(self._admit())
        step = Step(restore, tuple(self._prefill()), decode)
        return step if step.chunks else None

    def advance(self, step: Step) -> tuple[tuple[int, int], ...]:
        """The step was computed; call before its tokens are appended. Sequences that were removed are left out.

        Returns the (from, to) slots to copy now, in order: states to keep for prefixes.
        """
        saves = []
        for chunk in step.chunks:
            sequence = chunk.sequence
            if sequence.status is Status.RUNNING:
                sequence.cached = chunk.end
                if self.limits.prefix_caching and chunk.end % BLOCK_TOKENS == 0:
                    saves += self._register(sequence)
        return tuple(saves)

    def abandon(self, step: Step) -> None:
        """The step was not computed, or not to its end: its sequences are to be computed anew, without prefixes that
        may not have been kept in the end.
        """
        self.forget_prefixes()
        for chunk in step.chunks:
            if chunk.sequence.status is Status.RUNNING:
                self.preempt(chunk.sequence)

    def _decode(self) -> Iterator[Chunk]:
        for sequence in self.running:
            if not sequence.in_prompt and self._grow(sequence):
                yield Chunk(sequence, sequence.cached, 1)

    def _grow(self, sequence: Sequence) -> bool:
        """Make room for the next row, at the cost of later sequences if need be; False: it was sent back itself."""
        while len(sequence.blocks) * BLOCK_TOKENS <= sequence.cached:
            if self._blocks.get_num_free_blocks():
                sequence.blocks += _take(self._blocks, 1)
                continue
            victim = self._running[-1]
            self.preempt(victim)
            if victim is sequence:
                return False
        return True

    def _admit(self) -> Iterator[tuple[int, int]]:
        """Admit who can be. Yields copies of the states that they begin with."""
        prompts = [sequence for sequence in self._running if sequence.in_prompt]
        left = self.limits.chunk_tokens - sum(one.prefilled - one.cached for one in prompts)
        for sequence in self.waiting:
            if len(self._running) >= self.limits.sequences or (len(prompts) >= PROMPTS and left <= 0):
                return
            if sequence.status is Status.COMPILING:
                continue
            leader = sequence.leader
            if leader and leader.status is not Status.FINISHED and not leader.generated:
                continue
            state = self._house(sequence)
            if state is None:
                return
            if state:
                yield state, sequence.slot
            prompts.append(sequence)
            left -= sequence.prefilled - sequence.cached

    def _house(self, sequence: Sequence) -> int | None:
        """Admit a sequence if there is room. Returns the slot of the state that it begins with, 0: anew; None: no room.

        The state's slot is free for others from now on: copies are made in order.
        """
        sequence.hashes = block_hashes(sequence.tokens, sequence.root, known=sequence.hashes)
        match = self._prefixes.match(sequence.hashes, limit=self._reusable(sequence))
        missing = blocks_of(len(sequence.tokens)) - len(match.blocks)
        free = self._blocks.get_num_free_blocks()
        if free < missing + len(self._running) or not self._slots.get_num_free_blocks():
            self._prefixes.release(match)
            return None
        (sequence.slot,) = _take(self._slots, 1)
        sequence.blocks = [*match.blocks, *_take(self._blocks, missing)]
        self._prefixes.release_snapshot(match)
        sequence.cached, sequence.prefilled = match.tokens, len(sequence.tokens)
        sequence.registered = len(match.blocks)
        if sequence.reused is None:
            sequence.reused = match.tokens
            sequence.parting = self._parting(sequence)
        sequence.status = Status.RUNNING
        self._waiting.remove(sequence)
        bisect.insort(self._running, sequence, key=_arrival)
        return match.snapshot_slot

    def _reusable(self, sequence: Sequence) -> int:
        """How many tokens may come from the cache. All logits of a prompt are had by computing it all."""
        if not self.limits.prefix_caching or sequence.wants_prompt_logprobs:
            return 0
        return self._last_border(sequence)

    def _last_border(self, sequence: Sequence) -> int:
        """Up to where a prompt like this one could be reused. Truncation counts from the prompt's end, whatever was
        generated since.
        """
        known = len(sequence.tokens) if self.limits.truncation == "off" else sequence.prompt_length
        return reusable_tokens(known, self.limits.truncation, self.limits.keep_tokens)

    def _parting(self, sequence: Sequence) -> int:
        """How many tokens an earlier prompt began with too, as far as remembered; remembers this one's."""
        known = bisect.bisect_left(sequence.hashes, True, key=lambda one: one not in self._seen)
        for one in reversed(sequence.hashes):  # so that of a prompt its end is forgotten first
            self._seen[one] = None
            self._seen.move_to_end(one)
        while len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        return known * BLOCK_TOKENS

    def _prefill(self) -> Iterator[Chunk]:
        prompts = [sequence for sequence in self._running if sequence.in_prompt]
        left = self.limits.chunk_tokens
        for sequence in prompts:
            share = left if sequence is prompts[-1] else max(left // 2, min(left, BLOCK_TOKENS))
            if not share:
                return
            chunk = self._chunk(sequence, share)
            left -= chunk.count
            yield chunk

    def _chunk(self, sequence: Sequence, rows: int) -> Chunk:
        start = sequence.cached
        if sequence.wants_prompt_logprobs:
            rows = min(rows, LOGPROB_ROWS)
        end = min(start + rows, sequence.prefilled)
        if self.limits.prefix_caching:
            whole = end // BLOCK_TOKENS * BLOCK_TOKENS
            if start < whole and end < sequence.prefilled:
                end = whole
            for stop in sorted((sequence.parting, self._last_border(sequence))):
                if start < stop < end:
                    end = stop
        return Chunk(sequence, start, end - start)

    def _register(self, sequence: Sequence) -> list[tuple[int, int]]:
        """Make the blocks of a sequence known, with its state behind the last, if a slot is free for it."""
        full = sequence.cached // BLOCK_TOKENS
        if len(sequence.hashes) < full:
            known = sequence.tokens[: sequence.cached]
            sequence.hashes = block_hashes(known, sequence.root, known=sequence.hashes)
        for index in range(sequence.registered, full - 1):
            self._prefixes.insert(sequence.hashes[index], sequence.blocks[index])
        sequence.registered = full
        last = sequence.hashes[full - 1], sequence.blocks[full - 1]
        if not self._slots.get_num_free_blocks():
            self._prefixes.insert(*last)
            return []
        (slot,) = _take(self._slots, 1)
        self._prefixes.insert(*last, slot)
        self._slots.unpin_blocks([slot])
        return [(sequence.slot, slot)]

    def _vacate(self, sequence: Sequence) -> None:
        """Take back what a running sequence holds."""
        self._running.remove(sequence)
        self._blocks.unpin_blocks(sequence.blocks)
        self._slots.unpin_blocks([sequence.slot])
        sequence.blocks, sequence.slot, sequence.cached = [], 0, 0


def _arrival(sequence: Sequence) -> int:
    return sequence.arrival


def _take(manager: BlockManager, count: int) -> list[int]:
    manager.lock()
    try:
        return manager.allocate_nolock(count)
    finally:
        manager.unlock()
