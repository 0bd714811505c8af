"""The shapes of the real model, DeepSeek-V4.1-Flash, that kernels see (model_spec 1.2 to 1.4)."""

from __future__ import annotations

HIDDEN = 5120
VOCAB = 129280
HEADS, HEAD_DIM, ROPE_DIM = 64, 512, 64
INDEX_HEADS, INDEX_DIM = 32, 128
Q_LORA = 1280
EPS = 1e-20
HC_MULT = 4
WINDOW = 128
TOP_K = 512
CANDIDATE_BLOCKS, CANDIDATE_SIZE = 2048, 8
BLOCK_SIZE = 128
"""Tokens of a block of the main cache."""
RATIOS = (1, 2)
"""Compression of the main cache."""
DRAFTS = 5
"""Draft tokens a step, the engine's default."""
MARKOV_RANK = 256
NGRAM = 4
COMPRESSED_VOCAB = 99092
SWA_BLOCK = 136
"""Tokens of a state slot's ring: the window, the drafts that may be taken back, up to a multiple of 8."""
CONTEXT = 32768
"""Tokens of context that each request has in these benchmarks."""
VISION_DIM, DOWNSAMPLE, PATCH_SIZE = 1024, 3, 14

DECODE_ROWS = (1, 8, 64, 256)
PREFILL_ROWS = (4096, 16384)
EVERY_ROWS = DECODE_ROWS + PREFILL_ROWS
