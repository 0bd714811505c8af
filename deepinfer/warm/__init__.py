"""Warm caches: the Triton kernels that a run uses, compiled ahead for sm_90a on a machine that needs no GPU.

`deepinfer warm` fills Triton's cache of this machine. An image built with `./run build --warm` carries the entries in
HOME/warm/triton (HOME: see `deepinfer.activation`), where they are only read: whatever lies over the writable cache, a
mounted volume or nothing, they are found (`cache.WarmCacheManager`).

What is compiled: `providers.PROVIDERS`. Of each kernel: the kernel itself, under the key that a launch on a Hopper GPU
looks up, and the C modules that Triton builds beside it (`cuda_utils`, a launcher for each signature).

`deepinfer warm --json` prints one object:

    {"ok": bool, "triton": "3.7.1", "target": "sm_90a", "folder": Triton's writable cache, "warm": the read-only one or
     null, "kernels": {"compiled": int, "found": int}, "modules": {"compiled": int, "found": int},
     "without_modules": why none could be built, or null,
     "providers": [{"name": "probe" or "ops.FAMILY", "kernels": int, "problems": [text], "seconds": number}],
     "entries": {key: folder that holds it}, "seconds": number}

"found" counts what was in a cache already: a second run compiles nothing. The module that imports Triton is `work`.
"""
