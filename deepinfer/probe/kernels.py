"""The probe's Triton kernels: one for each feature of Triton that the engine's kernels stand on.

Every kernel is one program over a small block (`add` excepted), so that a wrong answer points at the feature and not
at a tiling. Sizes are powers of two, as Triton's blocks are. Contracts: `checks.py`, which holds inputs and answers.
"""

# Triton's language is not Python to a type checker, and its compile-time arguments are written in capitals.
# mypy: ignore-errors
# ruff: noqa: N803

import triton
import triton.language as tl


@triton.jit
def add(a_ptr, b_ptr, out_ptr, count, BLOCK: tl.constexpr):
    """out[i] = a[i] + b[i] for i < count."""
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = lanes < count
    total = tl.load(a_ptr + lanes, mask=inside) + tl.load(b_ptr + lanes, mask=inside)
    tl.store(out_ptr + lanes, total, mask=inside)


@triton.jit
def dot(a_ptr, b_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """out[M, N] = a[M, K] @ b[K, N], accumulated in fp32."""
    rows, columns, inner = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a = tl.load(a_ptr + rows[:, None] * K + inner[None, :])
    b = tl.load(b_ptr + inner[:, None] * N + columns[None, :])
    tl.store(out_ptr + rows[:, None] * N + columns[None, :], tl.dot(a, b, out_dtype=tl.float32))


@triton.jit
def gather_rows(source_ptr, picked_ptr, out_ptr, ROWS: tl.constexpr, PICKED: tl.constexpr, COLUMNS: tl.constexpr):
    """out[i, :] = source[picked[i], :]; rows may repeat."""
    columns = tl.arange(0, COLUMNS)
    outputs = tl.arange(0, PICKED)
    source = tl.load(source_ptr + tl.arange(0, ROWS)[:, None] * COLUMNS + columns[None, :])
    picked = tl.load(picked_ptr + outputs)
    index = tl.broadcast_to(picked[:, None], (PICKED, COLUMNS))
    tl.store(out_ptr + outputs[:, None] * COLUMNS + columns[None, :], tl.gather(source, index, 0))


@triton.jit
def rope(x_ptr, cos_ptr, sin_ptr, out_ptr, TOKENS: tl.constexpr, DIM: tl.constexpr, DISTANCE: tl.constexpr):
    """Rotate the pairs (lane, lane ^ DISTANCE): neighbours for 1, halves for DIM // 2. cos and sin: [TOKENS, DIM // 2].

    The lane without the DISTANCE bit is the pair's first: x·cos - y·sin; the other is y·cos + x·sin.
    """
    tokens, lanes = tl.arange(0, TOKENS), tl.arange(0, DIM)
    here = tokens[:, None] * DIM + lanes[None, :]
    x = tl.load(x_ptr + here)
    partner = tl.gather(x, tl.broadcast_to((lanes ^ DISTANCE)[None, :], (TOKENS, DIM)), 1)
    pair = (lanes // (2 * DISTANCE)) * DISTANCE + lanes % DISTANCE
    angle = tokens[:, None] * (DIM // 2) + pair[None, :]
    sin = tl.load(sin_ptr + angle)
    sin = tl.where((lanes & DISTANCE)[None, :] == 0, -sin, sin)
    tl.store(out_ptr + here, x * tl.load(cos_ptr + angle) + partner * sin)


@triton.jit
def cast_fp8(x_ptr, codes_ptr, exponents_ptr, back_ptr, BLOCKS: tl.constexpr, GROUP: tl.constexpr):
    """Cast each row of GROUP values to e4m3 with one power-of-two scale, and back.

    x: [BLOCKS, GROUP] bf16. exponents: [BLOCKS] uint8, the scale's biased fp32 exponent: the smallest power of two
    that brings max(|x|, 1e-4) to 448 or less. codes: [BLOCKS, GROUP] uint8, the bits of e4m3. back: their value.
    """
    blocks = tl.arange(0, BLOCKS)
    here = blocks[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    x = tl.load(x_ptr + here).to(tl.float32)
    amax = tl.maximum(tl.max(tl.abs(x), 1), 1e-4)
    bits = (amax * (1.0 / 448.0)).to(tl.int32, bitcast=True)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(tl.int32)
    scale = (exponent << 23).to(tl.float32, bitcast=True)
    inverse = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
    scaled = tl.minimum(tl.maximum(x * inverse[:, None], -448.0), 448.0)
    codes = scaled.to(tl.float8e4nv)
    tl.store(codes_ptr + here, codes.to(tl.uint8, bitcast=True))
    tl.store(exponents_ptr + blocks, exponent.to(tl.uint8))
    tl.store(back_ptr + here, codes.to(tl.float32) * scale[:, None])


@triton.jit
def cast_fp8_plain(x_ptr, codes_ptr, COUNT: tl.constexpr):
    """codes[i] = the bits of e4m3(clamp(x[i], -448, 448)), fp32 in: every rounding case of the cast itself."""
    lanes = tl.arange(0, COUNT)
    clamped = tl.minimum(tl.maximum(tl.load(x_ptr + lanes), -448.0), 448.0)
    tl.store(codes_ptr + lanes, clamped.to(tl.float8e4nv).to(tl.uint8, bitcast=True))


@triton.jit
def pick_by_cdf(mass_ptr, draws_ptr, picked_ptr, total_ptr, LANES: tl.constexpr, DRAWS: tl.constexpr):
    """picked[d] = the first lane whose inclusive sum of masses exceeds draws[d]; total = the sum of all masses.

    mass: [LANES] int32 that hold unsigned 32-bit values; draws: [DRAWS] int64 in [0, total); sums are 64-bit.
    """
    lanes, chosen = tl.arange(0, LANES), tl.arange(0, DRAWS)
    mass = tl.load(mass_ptr + lanes).to(tl.uint32, bitcast=True).to(tl.int64)
    reached = tl.cumsum(mass, 0)
    draws = tl.load(draws_ptr + chosen)
    passed = (reached[None, :] <= draws[:, None]).to(tl.int32)
    tl.store(picked_ptr + chosen, tl.sum(passed, 1))
    tl.store(total_ptr, tl.sum(mass, 0))
