"""`TRITON_INTERPRET=1 python -m tests.ops.paged_far_interpreted`: a pool of more than 2 GB, of which a page is touched.

The pool's memory is reserved and never filled, so it costs no more than the rows that are written.
"""

from __future__ import annotations

import sys

import torch

from deepinfer.ops import using
from deepinfer.ops.formats import V41_FORMAT
from deepinfer.ops.fused_transform import CastArgs, KVCacheOutArgs, fused_norm_rope_hadamard_cast_store_kvcache
from deepinfer.ops.load_paged_kv_cache import load_paged_kv_cache
from deepinfer.ops.store_kv_cache import store_kv_cache

SLOT = 4_100_000


def faults(device: str) -> list[str]:
    """Store to a far slot with two kernels and both backends, load it, and say what went wrong."""
    block, place = divmod(SLOT, 64)
    cache = torch.empty((block + 1) * 64 * 528, dtype=torch.uint8, device=device).view(block + 1, 64, 1, 528)
    small = torch.empty(1, 1, 1, 528, dtype=torch.uint8, device=device)
    kv = torch.randn(1, 512, generator=torch.Generator().manual_seed(1)).bfloat16().to(device)
    slots = torch.tensor([SLOT], dtype=torch.int32, device=device)
    cast = CastArgs.from_cache_format(V41_FORMAT)
    record = cache[block, place, 0]
    found: list[str] = []
    for backend in ("reference", "triton"):
        with using(backend):
            store_kv_cache(kv, small, torch.zeros_like(slots))
            store_kv_cache(kv, cache, slots)
            if not record.equal(small.flatten()):
                found.append(f"{backend}: stored elsewhere")
            segment = torch.tensor([[block, place, place + 1, 0]], dtype=torch.int32, device=device)
            near = torch.tensor([[0, 0, 1, 0]], dtype=torch.int32, device=device)
            loaded = load_paged_kv_cache(cache, segment, 1).bf16_data
            if loaded is None or not loaded.equal(load_paged_kv_cache(small, near, 1).bf16_data):
                found.append(f"{backend}: loaded from elsewhere")
            record.zero_()
            out = KVCacheOutArgs(cache, slots)
            fused_norm_rope_hadamard_cast_store_kvcache(kv, cast_args=cast, out_args=out)
            if not record.equal(small.flatten()):
                found.append(f"{backend}: stored elsewhere by the fused transform")
            record.zero_()
    return found


if __name__ == "__main__":
    sys.exit("\n".join(faults("cpu")) or 0)
