#include "bindings.hpp"

namespace py = pybind11;

namespace {

// `import deepinfer._C.engine` and `from deepinfer._C.engine import X` look in sys.modules: `_C` is a file, not a
// package, so nothing else would put its sub-modules there.
py::module_ add_submodule(py::module_& parent, const char* name, const char* doc) {
    auto module = parent.def_submodule(name, doc);
    py::module_::import("sys").attr("modules")[module.attr("__name__")] = module;
    return module;
}

}  // namespace

PYBIND11_MODULE(_C, module) {
    module.doc() = "The engine's compiled part. deepinfer._python is the same interface in Python.";
    module.attr("abi") = py::module_::import("json").attr("loads")(deepinfer::abi_json());
    auto engine =
        add_submodule(module, "engine", "Block accounting, known prefixes, token-id encoding and the sampler's inputs.");
    deepinfer::bind_engine(engine);
    auto graph_timer = add_submodule(module, "graph_timer", "Events inside CUDA graphs.");
    deepinfer::bind_graph_timer(graph_timer);
}
