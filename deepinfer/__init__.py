"""DeepInfer for Hopper GPUs.

Importing this package puts the folder of the optional parts (deep_gemm, deep_ep) first on this process's path and
points their caches and tool chain somewhere usable; see `deepinfer.activation`. It imports neither torch nor any of
those parts.
"""

__version__ = "0.1.0"

from deepinfer import activation, native

activation.activate()
native.guard_imports()
