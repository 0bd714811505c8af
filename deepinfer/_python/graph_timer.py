"""Timing inside CUDA graphs needs the compiled part: here `supported()` says no, and whoever goes on is told why."""

from __future__ import annotations


def supported() -> bool:
    """Whether events inside CUDA graphs can be timed here."""
    return False


class _Unsupported:
    def __init__(self, *_: object, **__: object) -> None:
        raise RuntimeError("graph timing needs deepinfer._C compiled against a torch with CUDA")


class EventHandle(_Unsupported):
    """A CUDA event."""


class EventRecordNodeHandle(_Unsupported):
    """A node of a graph that records an event."""


class GraphHandle(_Unsupported):
    """A captured and instantiated CUDA graph."""
