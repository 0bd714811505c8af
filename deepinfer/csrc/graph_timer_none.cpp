// The same names where torch has no CUDA: `supported()` says no, and whoever goes on is told why.
#include <pybind11/pybind11.h>

#include <stdexcept>

#include "bindings.hpp"

namespace py = pybind11;

namespace deepinfer {
namespace {

struct EventHandle {};
struct EventRecordNodeHandle {};
struct GraphHandle {};

template <typename Handle>
void bind_unsupported(py::module_& module, const char* name) {
    py::class_<Handle>(module, name, py::module_local()).def(py::init([](const py::args&, const py::kwargs&) -> Handle {
        throw std::runtime_error("graph timing needs deepinfer._C compiled against a torch with CUDA");
    }));
}

}  // namespace

void bind_graph_timer(py::module_& module) {
    module.def("supported", [] { return false; }, "Whether events inside CUDA graphs can be timed here.");
    bind_unsupported<EventHandle>(module, "EventHandle");
    bind_unsupported<EventRecordNodeHandle>(module, "EventRecordNodeHandle");
    bind_unsupported<GraphHandle>(module, "GraphHandle");
}

}  // namespace deepinfer
