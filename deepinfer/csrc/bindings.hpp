// What each source file adds to the module.
#pragma once

#include <pybind11/pybind11.h>

namespace deepinfer {

void bind_engine(pybind11::module_& module);
void bind_prefix_index(pybind11::module_& module);
void bind_sampler_inputs(pybind11::module_& module);
void bind_graph_timer(pybind11::module_& module);
// The JSON text that says what this file was compiled for; the same bytes can be read from the file unloaded.
const char* abi_json();

}  // namespace deepinfer
