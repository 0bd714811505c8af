#include "graph_timer.hpp"

#include <pybind11/operators.h>
#include <pybind11/stl.h>

#include <functional>
#include <stdexcept>
#include <string>

#include "bindings.hpp"

namespace py = pybind11;

namespace deepinfer {
namespace {

void check(cudaError_t status, const char* what) {
    if (status != cudaSuccess) {
        cudaGetLastError();  // a sticky copy would be blamed on whoever calls CUDA next
        throw std::runtime_error(std::string(what) + " failed: " + cudaGetErrorName(status) + ": " +
                                 cudaGetErrorString(status));
    }
}

bool supported() {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess) {
        cudaGetLastError();
        return false;
    }
    return devices > 0;
}

template <typename Pointer>
Pointer raw_pointer(const py::object& graph, const char* method) {
    if (!py::hasattr(graph, method)) {
        throw py::type_error(std::string("GraphHandle takes a torch.cuda.CUDAGraph made with keep_graph=True: ") +
                             Py_TYPE(graph.ptr())->tp_name + " has no " + method + "()");
    }
    return reinterpret_cast<Pointer>(graph.attr(method)().cast<std::uintptr_t>());
}

}  // namespace

EventHandle::EventHandle() {
    cudaEvent_t event = nullptr;
    check(cudaEventCreate(&event), "cudaEventCreate");
    event_ = std::shared_ptr<CUevent_st>(event, [](cudaEvent_t owned) { cudaEventDestroy(owned); });
}

EventHandle EventHandle::refer_to(cudaEvent_t event) {
    return EventHandle(std::shared_ptr<CUevent_st>(event, [](cudaEvent_t) {}));
}

void EventHandle::record(std::uint64_t stream, bool capture_external) const {
    const auto flags = capture_external ? cudaEventRecordExternal : cudaEventRecordDefault;
    check(cudaEventRecordWithFlags(get(), reinterpret_cast<cudaStream_t>(stream), flags), "cudaEventRecordWithFlags");
}

void EventHandle::synchronize() const { check(cudaEventSynchronize(get()), "cudaEventSynchronize"); }

bool EventHandle::query() const {
    const auto status = cudaEventQuery(get());
    if (status == cudaErrorNotReady) {
        cudaGetLastError();
        return false;
    }
    check(status, "cudaEventQuery");
    return true;
}

float EventHandle::elapsed_time(const EventHandle& end) const {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, get(), end.get()), "cudaEventElapsedTime");
    return milliseconds;
}

EventHandle EventRecordNodeHandle::get_event() const {
    if (const auto found = state_->retargeted.find(node_); found != state_->retargeted.end()) {
        return found->second;
    }
    cudaEvent_t event = nullptr;
    check(cudaGraphEventRecordNodeGetEvent(node_, &event), "cudaGraphEventRecordNodeGetEvent");
    return EventHandle::refer_to(event);
}

void EventRecordNodeHandle::set_event(const EventHandle& event) const {
    check(cudaGraphExecEventRecordNodeSetEvent(state_->exec, node_, event.get()),
          "cudaGraphExecEventRecordNodeSetEvent");
    state_->retargeted.insert_or_assign(node_, event);
}

GraphHandle::GraphHandle(py::object torch_graph) {
    const auto graph = raw_pointer<cudaGraph_t>(torch_graph, "raw_cuda_graph");
    const auto exec = raw_pointer<cudaGraphExec_t>(torch_graph, "raw_cuda_graph_exec");
    state_ = std::make_shared<GraphState>(GraphState{std::move(torch_graph), graph, exec, {}});
}

std::vector<EventRecordNodeHandle> GraphHandle::get_event_record_nodes() const {
    std::size_t count = 0;
    check(cudaGraphGetNodes(state_->graph, nullptr, &count), "cudaGraphGetNodes");
    std::vector<cudaGraphNode_t> nodes(count);
    if (count != 0) {
        check(cudaGraphGetNodes(state_->graph, nodes.data(), &count), "cudaGraphGetNodes");
    }
    std::vector<EventRecordNodeHandle> found;
    for (const auto node : nodes) {
        cudaGraphNodeType type{};
        check(cudaGraphNodeGetType(node, &type), "cudaGraphNodeGetType");
        if (type == cudaGraphNodeTypeEventRecord) {
            found.emplace_back(state_, node);
        }
    }
    return found;
}

void bind_graph_timer(py::module_& module) {
    module.def("supported", &supported, "Whether events inside CUDA graphs can be timed here.");
    py::class_<EventHandle>(module, "EventHandle", py::module_local(), "A CUDA event.")
        .def(py::init<>())
        .def("record", &EventHandle::record, py::arg("stream"), py::arg("capture_external"),
             "Record on a stream, given as an integer; capture_external makes it a node of the captured graph.")
        .def("synchronize", &EventHandle::synchronize, py::call_guard<py::gil_scoped_release>(), "Wait for the event.")
        .def("query", &EventHandle::query, "Whether the event has completed.")
        .def("elapsed_time", &EventHandle::elapsed_time, py::arg("end"), "Milliseconds from this event to `end`.")
        .def(py::self == py::self)
        .def("__hash__", [](const EventHandle& self) { return std::hash<cudaEvent_t>()(self.get()); });
    py::class_<EventRecordNodeHandle>(module, "EventRecordNodeHandle", py::module_local(), "A node that records an event.")
        .def("get_event", &EventRecordNodeHandle::get_event, "The event that a replay records.")
        .def("set_event", &EventRecordNodeHandle::set_event, py::arg("event"),
             "Make the instantiated graph record `event` from its next launch on.");
    py::class_<GraphHandle>(module, "GraphHandle", py::module_local(), "A captured and instantiated CUDA graph.")
        .def(py::init<py::object>(), py::arg("graph"))
        .def("get_event_record_nodes", &GraphHandle::get_event_record_nodes, "The graph's event-record nodes.")
        .def(py::self == py::self)
        .def("__hash__", [](const GraphHandle& self) { return std::hash<cudaGraphExec_t>()(self.exec()); });
}

}  // namespace deepinfer
