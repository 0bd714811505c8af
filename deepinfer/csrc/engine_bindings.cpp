#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "arguments.hpp"
#include "bindings.hpp"
#include "block_manager.hpp"

namespace py = pybind11;

namespace deepinfer {
namespace {

std::vector<std::int64_t> as_block_ids(py::handle values) {
    std::vector<std::int64_t> ids;
    for (const auto value : py::iter(values)) {
        ids.push_back(as_integer(value, "a block id"));
    }
    return ids;
}

using Ids = py::array_t<std::int32_t>;

Ids encode_compressed(const Ids& ids, const Ids& table, py::handle sentinel_object) {
    const auto sentinel = as_integer(sentinel_object, "sentinel");
    if (sentinel < std::numeric_limits<std::int32_t>::min() || sentinel > std::numeric_limits<std::int32_t>::max()) {
        throw py::value_error("sentinel must fit 32 bits, not " + std::to_string(sentinel));
    }
    if (ids.ndim() != 1 || table.ndim() != 1) {
        throw py::value_error("ids and table must have one dimension, not " + std::to_string(ids.ndim()) + " and " +
                              std::to_string(table.ndim()));
    }
    Ids encoded(ids.shape(0));
    const auto id = ids.unchecked<1>();
    const auto entry = table.unchecked<1>();
    auto out = encoded.mutable_unchecked<1>();
    const py::gil_scoped_release release;
    for (py::ssize_t i = 0; i < id.shape(0); ++i) {
        const std::int32_t value = id(i);  // read once: another thread may write to the array meanwhile
        const bool known = value >= 0 && value < entry.shape(0);
        out(i) = known ? entry(value) : static_cast<std::int32_t>(sentinel);
    }
    return encoded;
}

void bind_block_manager(py::module_& module) {
    // module_local: another build of an engine in the same process may register a class of this name.
    py::class_<BlockManager>(module, "BlockManager", py::module_local(),
                             "Paged-cache blocks 1 .. num_blocks-1; block 0 is reserved for padding.")
        .def(py::init([](py::handle num_blocks, double lock_timeout_s) {
                 return std::make_unique<BlockManager>(as_integer(num_blocks, "num_blocks"), lock_timeout_s);
             }),
             py::arg("num_blocks"), py::kw_only(), py::arg("lock_timeout_s") = BlockManager::default_lock_timeout_s)
        .def(
            "allocate_nolock",
            [](BlockManager& self, py::handle num_blocks) {
                const auto count = as_integer(num_blocks, "num_blocks");
                const py::gil_scoped_release release;
                return self.allocate_nolock(count);
            },
            py::arg("num_blocks"), "Take blocks from the front of the free list; the caller holds the lock.")
        .def(
            "pin_blocks",
            [](BlockManager& self, py::handle block_ids) {
                const auto ids = as_block_ids(block_ids);
                const py::gil_scoped_release release;
                self.pin_blocks(ids);
            },
            py::arg("block_ids"), "Add a reference to each block in use. Takes the lock.")
        .def(
            "unpin_blocks",
            [](BlockManager& self, py::handle block_ids) {
                const auto ids = as_block_ids(block_ids);
                const py::gil_scoped_release release;
                self.unpin_blocks(ids);
            },
            py::arg("block_ids"), "Drop a reference of each block, back to front. Takes the lock.")
        .def("reset", &BlockManager::reset, py::call_guard<py::gil_scoped_release>(),
             "Restore the initial order; legal only while every block is free. Takes the lock.")
        .def("get_num_free_blocks", &BlockManager::get_num_free_blocks, py::call_guard<py::gil_scoped_release>(),
             "How many blocks can be allocated, kept ones included.")
        .def("get_num_kept_blocks", &BlockManager::get_num_kept_blocks, py::call_guard<py::gil_scoped_release>(),
             "How many of the free blocks hold what is kept.")
        .def("lock", &BlockManager::lock, py::call_guard<py::gil_scoped_release>(),
             "Take the lock, or raise RuntimeError after lock_timeout_s.")
        .def("unlock", &BlockManager::unlock, py::call_guard<py::gil_scoped_release>(),
             "Release the lock; only the thread that took it may.");
}

}  // namespace

void bind_engine(py::module_& module) {
    bind_block_manager(module);
    bind_prefix_index(module);
    bind_sampler_inputs(module);
    module.def("encode_compressed", &encode_compressed, py::arg("ids").noconvert(), py::arg("table").noconvert(),
               py::arg("sentinel"), "table[id] for each id, sentinel for an id outside the table. int32 arrays [n], [m].");
}

}  // namespace deepinfer
