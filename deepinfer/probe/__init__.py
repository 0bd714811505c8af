"""The Triton probe: does this Triton make right code for Hopper? `deepinfer probe`.

Seven checks, each *compiled* for sm_90a without a GPU (PTX and cubin, in a cache of its own) and, where a Hopper GPU
is, *run* against an exact answer. Each Triton is probed in a child process, so that one which crashes is a row.

`deepinfer probe --json` prints one object (with --triton: {"ok": bool, "probes": [object, ...]}):

    {"triton": "3.7.1" or null, "torch": version or null, "device": "NVIDIA H200 (sm_90)" or null,
     "path": the folder given with --triton or null, "error": how the child process failed or null, "ok": bool,
     "compiled": "7/7", "ran": "7/7" or "0/7",
     "cache": {"kernels": {"compiled": int, "found": int}, "modules": likewise}: what the run had to compile and what
              Triton's cache had, or null (nothing ran; --triton, which leaves that cache alone),
     "checks": [{"name": str,
                 "compiled": {"ok": bool, "reason": str or null, "ptx_target": "sm_90a" or null,
                              "ptx_version": "8.7" or null, "cubin_bytes": int},
                 "ran": {"ok": true, false or null (not run), "reason": str or null}}]}

"ok" is true when all that could be done passed; checks that were not run do not count against it.
"""

from deepinfer.probe.children import run_probe
from deepinfer.probe.report import CheckResult, Compiled, Ran, Report, as_text

__all__ = ["CheckResult", "Compiled", "Ran", "Report", "as_text", "run_probe"]
