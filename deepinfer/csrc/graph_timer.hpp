// Timing a region inside a CUDA graph. Only CUDA's runtime library is called: a link to the driver's would keep the
// extension from loading where there is no driver.
#pragma once

#include <cuda_runtime_api.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace deepinfer {

// An event, destroyed with the last handle that made or was given it; one found in a graph is only referred to.
class EventHandle {
public:
    EventHandle();
    static EventHandle refer_to(cudaEvent_t event);

    // `stream` is the cudaStream_t as an integer (torch.cuda.Stream.cuda_stream). With `capture_external`, a record
    // during capture becomes a node that records the event on every replay.
    void record(std::uint64_t stream, bool capture_external) const;
    void synchronize() const;
    bool query() const;
    // Milliseconds from this event to `end`.
    float elapsed_time(const EventHandle& end) const;

    cudaEvent_t get() const { return event_.get(); }
    bool operator==(const EventHandle& other) const { return get() == other.get(); }

private:
    explicit EventHandle(std::shared_ptr<CUevent_st> event) : event_(std::move(event)) {}
    std::shared_ptr<CUevent_st> event_;
};

// What the handles of one graph share. It keeps torch's graph alive, whose addresses they hold, and the events that
// nodes were re-targeted to, which the instantiated graph refers to without owning them.
struct GraphState {
    pybind11::object torch_graph;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    std::unordered_map<cudaGraphNode_t, EventHandle> retargeted;
};

class EventRecordNodeHandle {
public:
    EventRecordNodeHandle(std::shared_ptr<GraphState> state, cudaGraphNode_t node)
        : state_(std::move(state)), node_(node) {}
    // The event that a replay records: the one set last through this graph's handles, else the captured one.
    EventHandle get_event() const;
    void set_event(const EventHandle& event) const;

private:
    std::shared_ptr<GraphState> state_;
    cudaGraphNode_t node_;
};

class GraphHandle {
public:
    // `torch_graph` is a torch.cuda.CUDAGraph made with keep_graph=True and instantiated.
    explicit GraphHandle(pybind11::object torch_graph);
    std::vector<EventRecordNodeHandle> get_event_record_nodes() const;
    cudaGraphExec_t exec() const { return state_->exec; }
    bool operator==(const GraphHandle& other) const { return exec() == other.exec(); }

private:
    std::shared_ptr<GraphState> state_;
};

}  // namespace deepinfer
