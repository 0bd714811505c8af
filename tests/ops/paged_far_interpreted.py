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


def main() -> int:
    """Store to a far slot in three ways, and load it."""
    block, place = divmod(SLOT, 64)
    cache = torch.empty((block + 1) * 64 * 528, dtype=torch.uint8).view(block + 1, 64, 1, 528)
    small = torch.empty(1, 1, 1, 528, dtype=torch.uint8)
    kv = torch.randn(1, 512, generator=torch.Generator().manual_seed(1)).bfloat16()
    slots = torch.tensor([SLOT], dtype=torch.int32)
    cast = CastArgs.from_cache_format(V41_FORMAT)
    record = cache[block, place, 0]
    faults = []
    for backend in ("reference", "triton"):
        with using(backend):
            store_kv_cache(kv, small, torch.zeros(1, dtype=torch.int32))
            store_kv_cache(kv, cache, slots)
            if not record.equal(small.flatten()):
                faults.append(f"{backend}: stored elsewhere")
            segment = torch.tensor([[block, place, place + 1, 0]], dtype=torch.int32)
            near = torch.tensor([[0, 0, 1, 0]], dtype=torch.int32)
            loaded = load_paged_kv_cache(cache, segment, 1).bf16_data
            if loaded is None or not loaded.equal(load_paged_kv_cache(small, near, 1).bf16_data):
                faults.append(f"{backend}: loaded from elsewhere")
            record.zero_()
            out = KVCacheOutArgs(cache, slots)
            fused_norm_rope_hadamard_cast_store_kvcache(kv, cast_args=cast, out_args=out)
            if not record.equal(small.flatten()):
                faults.append(f"{backend}: stored elsewhere by the fused transform")
            record.zero_()
    print("\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
