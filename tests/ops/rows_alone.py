"""The model's kernels on rows alone, in parts and all together: `python -m tests.ops.rows_alone` (TRITON_INTERPRET=1).

What DEEPINFER_BATCH_INVARIANT rests on: a row's result has the same bits whichever rows stand beside it. Each subject
is what one or more kernels make of rows of a batch; the bits of some rows alone, and of parts of the batch, are
compared with those that they have in the whole of it. In Triton's interpreter a product is NumPy's, whose sums depend
on a row's place: there only the subjects without products mean something.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from deepinfer.ops import activation, candidate_blocks, compress, engram, experts, fused_transform, indexer, linear
from deepinfer.ops.cases import quantized
from deepinfer.ops.cases.indexer import codes
from deepinfer.ops.cases.sparse_mla import entries
from deepinfer.ops.dispatch import Settings, using
from deepinfer.ops.formats import FP4_INDEX_KV_FORMAT, V41_FORMAT, V41_FP4_FORMAT, alloc_kv_cache
from deepinfer.ops.fused_sample import LogitsTransformInputs, SamplingKernelInputs, fused_sample
from deepinfer.ops.gate import gate_topk
from deepinfer.ops.gather import gather
from deepinfer.ops.hyper import hyper_leave, hyper_post, hyper_step
from deepinfer.ops.names import FAMILY_OF
from deepinfer.ops.norm import norm
from deepinfer.ops.rotary import rotate, rotate_heads_quantize
from deepinfer.ops.selection import block_maxima, select_topk
from deepinfer.ops.sparse_mla import sparse_attention_decode, sparse_attention_prefill
from deepinfer.ops.tolerance import as_bits

Made = Sequence[torch.Tensor]
Of = Callable[..., Made]
"""From the rows' own tensors to what is made of them, one row for each of theirs."""


@dataclass(frozen=True)
class Sizes:
    """rows: of the whole. wide: columns of a hidden state; the others follow. alone: rows that are also run alone."""

    device: str
    rows: int
    wide: int
    alone: tuple[int, ...]

    @property
    def parts(self) -> list[slice]:
        """These rows, and a part of the batch."""
        return [*(slice(row, row + 1) for row in self.alone), slice(3, 3 + self.rows // 2)]


SMALL = Sizes("cpu", 66, 64, (1, 64))
INTERPRETED = Sizes("cpu", 36, 64, (33,))
LARGE = Sizes("cuda", 600, 5120, (0, 1, 31, 32, 63, 64, 127, 128, 599))
"""More rows than four a multiprocessor, up to which some kernels give each a program of its own."""


class Subjects:
    """Every subject: a method for each, whose name is its own and whose text names the kernels' factories."""

    def __init__(self, sizes: Sizes) -> None:
        self.n, self.d, self.device = sizes.rows, sizes.wide, sizes.device
        self.generator = torch.Generator().manual_seed(11)

    def drawn(self, *shape: int) -> torch.Tensor:
        """Normal ones, on the device."""
        return torch.randn(shape, generator=self.generator).to(self.device)

    def numbers(self, low: int, high: int, *shape: int) -> torch.Tensor:
        """int32 from low to high - 1, on the device."""
        return torch.randint(low, high, shape, generator=self.generator, dtype=torch.int32).to(self.device)

    def moved(self, made: Any) -> Any:
        """Tensors of the cases, on the device."""
        return [one.to(self.device) for one in made] if isinstance(made, tuple) else made.to(self.device)

    def casts(self) -> tuple[Made, Of]:
        """quantize_fp8, quantize_fp4"""
        x = 4 * self.drawn(self.n, self.d).bfloat16()
        heads = self.drawn(self.n, 4, 128).bfloat16()
        return (x, heads), lambda x, heads: (*activation.quantize_fp8(x), *activation.quantize_fp4(heads))

    def swiglu(self) -> tuple[Made, Of]:
        """swiglu_quantize"""
        rows = 3 * self.drawn(self.n, 2 * self.d).bfloat16(), self.drawn(self.n).abs()
        return rows, lambda x, weights: activation.swiglu_quantize(x, weights, 10.0)

    def products(self) -> tuple[Made, Of]:
        """fp8_linear, fp8_grouped_linear, bf16_linear

        The first weight has so many outputs that on an H200 all rows take other tiles than a part of them.
        """
        values, scales = self.moved(quantized.rows(self.generator, self.n, self.d))
        weight = self.moved(quantized.fp8_weight(self.generator, 1792, self.d))
        grouped = self.moved(quantized.fp8_weight(self.generator, 128, self.d // 2))
        plain = self.drawn(96, self.d).bfloat16()

        def of(values: torch.Tensor, scales: torch.Tensor, x: torch.Tensor) -> Made:
            halves = (values.view(len(x), 2, -1), scales.view(len(x), 2, -1))
            return (
                linear.fp8_linear(values, scales, *weight),
                linear.fp8_linear(values, scales, *weight, out_dtype=torch.float32),
                linear.fp8_grouped_linear(*halves, *grouped),
                linear.bf16_linear(x, plain, out_dtype=torch.float32),
            )

        return (values, scales, self.drawn(self.n, self.d).bfloat16()), of

    def routing(self) -> tuple[Made, Of]:
        """gate_topk"""
        bias = self.drawn(48) / 8
        return (self.drawn(self.n, 48),), lambda logits: gate_topk(logits, bias, None, None, 6, 1.5)

    def routed(self) -> tuple[Made, Of]:
        """expert_order, expert_linear, combine"""
        count, topk, inner = 7, 3, 96
        ids = torch.stack([torch.randperm(count, generator=self.generator)[:topk] for _ in range(self.n)])
        up = self.moved(quantized.fp4_weight(self.generator, count, 2 * inner, self.d))
        down = self.moved(quantized.fp4_weight(self.generator, count, self.d, inner))

        def of(x: torch.Tensor, shared: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> Made:
            order, offsets = experts.expert_order(ids, count)
            entered = experts.expert_linear(*activation.quantize_fp8(x), order // topk, offsets, *up)
            y = activation.swiglu_quantize(entered, weights.flatten()[order.long()].contiguous(), 10.0)
            places = torch.arange(len(order), dtype=torch.int32, device=x.device)
            return (experts.combine(shared, experts.expert_linear(*y, places, offsets, *down), order, topk),)

        both = self.drawn(2, self.n, self.d).bfloat16()
        return (both[0], both[1], ids.int().to(self.device), self.drawn(self.n, topk).abs()), of

    def streams(self) -> tuple[Made, Of]:
        """hyper_step, hyper_post, hyper_leave"""
        d, small = self.d, self.drawn(24, 4 * self.d) * (4 * self.d) ** -0.5
        fixed = (small, self.drawn(24), self.drawn(3).abs(), (1 + self.drawn(d) / 10).bfloat16())
        rows = (
            self.drawn(self.n, 4, d).bfloat16(),
            self.drawn(self.n, d).bfloat16(),
            2 * torch.sigmoid(self.drawn(self.n, 4)),
            torch.softmax(self.drawn(self.n, 4, 4), -1),
            torch.sigmoid(self.drawn(self.n, 4)),
        )

        def of(*rows: torch.Tensor) -> Made:
            step = hyper_step(*rows, *fixed, 1e-20, 1e-6, 20)
            return (*step, hyper_post(*rows[:4]), hyper_leave(*rows))

        return rows, of

    def memory(self) -> tuple[Made, Of]:
        """engram_rows, engram_gather, engram_gate"""
        d, width = self.d, 64
        table = (self.drawn(997, width) * 8).to(torch.float8_e4m3fn)
        scales = self.numbers(120, 130, 997, width // 32).to(torch.uint8)
        hashed = [torch.tensor(one, device=self.device) for one in ([3, 5, 7, 11], [101, 103, 107] * 2, [0, 300] * 3)]
        gains = self.drawn(4, d)

        def of(grams: torch.Tensor, trunk: torch.Tensor, kv: torch.Tensor) -> Made:
            rows = engram.engram_rows(grams, *hashed)
            return (*engram.engram_gather(table, scales, rows), engram.engram_gate(trunk, kv, gains, 1e-20))

        trunk, kv = self.drawn(self.n, 4, d).bfloat16(), self.drawn(self.n, 5 * d).bfloat16()
        return (self.numbers(0, 1000, self.n, 4), trunk, kv), of

    def norms(self) -> tuple[Made, Of]:
        """norm_tl, gather_tl"""
        weight, table = (1 + self.drawn(self.d) / 10).bfloat16(), self.drawn(50, self.d).bfloat16()
        rows = self.drawn(self.n, self.d).bfloat16(), self.numbers(0, 50, self.n)
        return rows, lambda x, index: (norm(x, weight, eps=1e-20), gather(table, index))

    def keys(self) -> tuple[Made, Of]:
        """fused_norm_rope_hadamard_cast_store_kvcache_tl, rotate, rotate_heads_quantize"""
        table, weight = self.drawn(400, 64), (1 + self.drawn(512) / 10).bfloat16()
        layout = fused_transform.CastArgs.from_cache_format(V41_FORMAT)

        def of(x: torch.Tensor, o: torch.Tensor, positions: torch.Tensor) -> Made:
            rope = fused_transform.RopeArgs(positions, table, 64, is_neox=False)
            made = fused_transform.fused_norm_rope_hadamard_cast_store_kvcache(
                x, fused_transform.NormArgs(weight, 1e-20), rope, cast_args=layout
            )
            assert isinstance(made, tuple)
            return (*made, rotate(x, positions, table), *rotate_heads_quantize(o, positions, table, 2))

        return (self.drawn(self.n, 1, 512).bfloat16(), self.drawn(self.n, 4, 512), self.numbers(0, 400, self.n)), of

    def index(self) -> tuple[Made, Of]:
        """index_logits, paged_index_logits, candidate_index_logits, paged_candidate_index_logits"""
        size, pages, heads = 64, 3, 32
        keys = self.moved(codes(self.generator, pages * size))
        cache = alloc_kv_cache(FP4_INDEX_KV_FORMAT, pages, size, self.device)
        cache.view(torch.uint8).copy_(self.numbers(0, 256, *cache.shape).to(torch.uint8) % 127)
        q = self.moved(codes(self.generator, self.n, heads))
        lengths, starts = self.numbers(1, pages * size + 1, self.n), self.numbers(0, 9, self.n)
        tables, blocks = self.numbers(0, pages, self.n, pages), self.numbers(0, pages * size // 8, self.n, 16)

        def of(*rows: torch.Tensor) -> Made:
            query, (lengths, starts, tables, blocks) = rows[:3], rows[3:]
            return (
                indexer.index_logits(*query, *keys, starts, lengths, pages * size),
                indexer.paged_index_logits(*query, cache, tables, lengths, pages * size),
                indexer.candidate_index_logits(*query, *keys, starts, blocks, 8, lengths),
                indexer.paged_candidate_index_logits(*query, cache, tables, blocks, 8, lengths),
            )

        return (*q, self.drawn(self.n, heads).bfloat16(), lengths, starts, tables, blocks), of

    def selection(self) -> tuple[Made, Of]:
        """select_topk, block_maxima, get_candidate_compact_lens_tl, restore_candidate_indices_inplace_tl"""

        def of(scores: torch.Tensor, lengths: torch.Tensor) -> Made:
            maxima, counts = block_maxima(scores, lengths, 8)
            blocks = select_topk(maxima, counts, 16)
            chosen = select_topk(scores, lengths, 24)
            within = chosen.clamp(-1, 16 * 8 - 1)
            candidate_blocks.restore_candidate_indices_inplace(within, blocks, 8)
            compact = candidate_blocks.get_candidate_compact_lens(blocks, lengths, 8)
            return maxima.contiguous(), counts, blocks, chosen, within, compact

        return ((self.drawn(self.n, 1040) * 8).round() / 8, self.numbers(0, 1041, self.n)), of

    def attention(self) -> tuple[Made, Of]:
        """sparse_attention_prefill, sparse_attention_decode"""
        swa = self.moved(entries(self.generator, V41_FORMAT, 3, 134))
        cache = self.moved(entries(self.generator, V41_FP4_FORMAT, 12, 64))
        kv, sink = self.drawn(900, 512).bfloat16(), self.drawn(64)

        def of(q: torch.Tensor, window: torch.Tensor, chosen: torch.Tensor) -> Made:
            both = torch.cat((window, chosen), 1)
            return (
                sparse_attention_decode(q, swa, window, cache, chosen, sink, 512**-0.5),
                sparse_attention_prefill(q, kv, both, sink, 512**-0.5, window=128),
            )

        chosen = self.numbers(-2, 12 * 64, self.n, 192)
        chosen[1 % self.n, 3:] = -1
        return (2 * self.drawn(self.n, 64, 512).bfloat16(), self.numbers(-9, 3 * 134, self.n, 128), chosen), of

    def compressed(self) -> tuple[Made, Of]:
        """compress_and_update_state_prefill_tl, compress_and_update_state_decode_tl

        Sequences, of which each has three tokens of a prompt or one more: the states are compared as well.
        """
        before = self.drawn(self.n + 1, 4, 2, 256)

        def of(score: torch.Tensor, latent: torch.Tensor, slots: torch.Tensor, lengths: torch.Tensor) -> Made:
            made: list[torch.Tensor] = []
            count, three = len(slots), torch.arange(len(slots) + 1, dtype=torch.int32, device=slots.device) * 3
            for ratio in (1, 2):
                state = before.clone()
                first = (score[:, 0].contiguous(), latent[:, 0].contiguous())
                made.append(compress.compress_and_update_state_decode(*first, state, slots, lengths, 1, ratio))
                made.append(state[slots.long()])
                state, new = before.clone(), 3 // ratio
                mapping = torch.arange(count, dtype=torch.int32, device=slots.device).repeat_interleave(new)
                packed = (score.flatten(0, 1), latent.flatten(0, 1), state, slots, mapping)
                rows = compress.compress_and_update_state_prefill(*packed, three, three, three // 3 * new, ratio)
                made += [rows.view(count, -1), state[slots.long()]]
            return made

        slots = torch.arange(1, self.n + 1, dtype=torch.int32, device=self.device)
        return (self.drawn(self.n, 3, 256), self.drawn(self.n, 3, 256), slots, self.numbers(1, 90, self.n)), of

    def sampling(self) -> tuple[Made, Of]:
        """fused_sample_tl"""
        n = self.n
        limits = (
            self.drawn(n).abs() + 0.5,
            torch.rand(n, generator=self.generator).to(self.device),
            self.numbers(-1, 60, n),
        )

        def of(logits: torch.Tensor, heat: torch.Tensor, p: torch.Tensor, k: torch.Tensor, at: torch.Tensor) -> Made:
            given = SamplingKernelInputs(LogitsTransformInputs(heat, p, k), at.long() * 7919, at)
            logprobs, tokens = fused_sample(logits, given)[:2]
            assert tokens is not None
            return logprobs, tokens

        return (3 * self.drawn(n, 16 * self.d), *limits, self.numbers(0, 9999, n)), of


def factories(name: str) -> set[str]:
    """The kernels that a subject runs."""
    text = (getattr(Subjects, name).__doc__ or "").splitlines()
    return {one.strip() for one in text[0].split(",")} if text else set()


PRODUCTS = ("products", "routed", "streams", "index", "attention")
"""Subjects with products."""
NAMES = tuple(name for name in vars(Subjects) if name[0] != "_" and factories(name) <= set(FAMILY_OF))


def problems(name: str, sizes: Sizes, backend: str) -> list[str]:
    """Where rows of a subject depend on their neighbours."""
    rows, of = getattr(Subjects(sizes), name)()
    found: list[str] = []
    with using(Settings(backend, strict=True)):
        everything = [one.clone() for one in of(*(one.clone() for one in rows))]
        found += [f"result {i} says nothing: all of it is alike" for i, one in enumerate(everything) if _alike(one)]
        for part in sizes.parts:
            found += _differences(part, everything, of(*(one[part].clone() for one in rows)))
    return found


def _alike(made: torch.Tensor) -> bool:
    bits = as_bits(made).flatten()
    return bool((bits == bits[0]).all())


def _differences(part: slice, everything: Made, own: Made) -> Iterator[str]:
    for index, (whole, alone) in enumerate(zip(everything, own, strict=True)):
        expected = as_bits(whole[part])
        wrong = int((as_bits(alone) != expected).sum())
        if wrong:
            yield f"rows {part.start} to {part.stop - 1}: {wrong} of {expected.numel()} values of result {index} differ"


if __name__ == "__main__":
    print(json.dumps({name: problems(name, INTERPRETED, "triton") for name in NAMES if name not in PRODUCTS}))
