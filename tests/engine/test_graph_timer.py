"""graph_timer: refused with a reason where there is no CUDA, and timing inside a replayed graph where there is."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
import torch

NEEDS_NO_CUDA = pytest.mark.skipif(torch.version.cuda is not None, reason="this torch has CUDA: the gpu test covers it")
NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@NEEDS_NO_CUDA
def test_without_cuda_it_says_so(implementation: ModuleType) -> None:
    timer = implementation.graph_timer
    assert timer.supported() is False
    for name in ("EventHandle", "GraphHandle", "EventRecordNodeHandle"):
        with pytest.raises(RuntimeError, match="compiled against a torch with CUDA"):
            getattr(timer, name)()


def test_the_twin_never_claims_to_time() -> None:
    assert importlib.import_module("deepinfer._python.graph_timer").supported() is False


@pytest.mark.gpu
@NEEDS_GPU
def test_events_inside_a_replayed_graph(native_c: ModuleType) -> None:
    timer = native_c.graph_timer
    assert timer.supported()
    first, second = (timer.EventHandle(), timer.EventHandle()), (timer.EventHandle(), timer.EventHandle())
    assert first[0] == first[0] and first[0] != first[1] and len({*first, *second}) == 4
    matrix = torch.randn(2048, 2048, device="cuda")
    matrix @ matrix  # cuBLAS allocates on first use, which capture forbids
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        stream = torch.cuda.current_stream().cuda_stream
        first[0].record(stream, True)
        for _ in range(10):
            product = matrix @ matrix
        first[1].record(stream, True)
    graph.instantiate()
    handle = timer.GraphHandle(graph)
    assert handle == timer.GraphHandle(graph) and hash(handle) == hash(timer.GraphHandle(graph))
    nodes = {node.get_event(): node for node in handle.get_event_record_nodes()}
    assert set(nodes) == set(first)

    graph.replay()
    torch.cuda.synchronize()
    assert first[1].query()
    alone = first[0].elapsed_time(first[1])
    assert alone > 0

    for old, new in zip(first, second, strict=True):
        nodes[old].set_event(new)
        assert nodes[old].get_event() == new
    graph.replay()
    second[1].synchronize()
    assert second[0].elapsed_time(second[1]) > 0
    assert first[0].elapsed_time(first[1]) == alone, "the events that were swapped out must not be recorded again"
    assert product.isfinite().all()


@pytest.mark.gpu
@NEEDS_GPU
def test_errors_of_cuda_are_exceptions(native_c: ModuleType) -> None:
    timer = native_c.graph_timer
    with pytest.raises(RuntimeError, match="cudaEventElapsedTime failed"):
        timer.EventHandle().elapsed_time(timer.EventHandle())
    with pytest.raises(TypeError, match="keep_graph=True"):
        timer.GraphHandle(object())
    assert torch.ones(2, device="cuda").sum().item() == 2, "an error must not stick to the next call of CUDA"
