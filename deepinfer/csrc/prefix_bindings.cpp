#include <pybind11/stl.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "arguments.hpp"
#include "bindings.hpp"
#include "prefix_index.hpp"

namespace py = pybind11;

namespace deepinfer {
namespace {

std::string type_name(py::handle value) { return Py_TYPE(value.ptr())->tp_name; }

Digest as_hash(py::handle value, const std::string& name) {
    if (!PyBytes_Check(value.ptr())) {
        throw py::type_error(name + " must be bytes, not " + type_name(value));
    }
    Digest digest;
    const auto size = static_cast<std::size_t>(PyBytes_GET_SIZE(value.ptr()));
    if (size != digest.size()) {
        throw py::value_error(name + " must have " + std::to_string(digest.size()) + " bytes, not " +
                              std::to_string(size));
    }
    std::memcpy(digest.data(), PyBytes_AS_STRING(value.ptr()), size);
    return digest;
}

py::bytes as_bytes(const Digest& digest) {
    return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

std::vector<Digest> as_hashes(py::handle values) {
    std::vector<Digest> hashes;
    for (const auto value : py::iter(values)) {
        hashes.push_back(as_hash(value, "a hash"));
    }
    return hashes;
}

// A contiguous buffer of int32, held until this goes.
class Ids {
public:
    explicit Ids(py::handle value) {
        if (PyObject_GetBuffer(value.ptr(), &view_, PyBUF_STRIDES | PyBUF_FORMAT) != 0) {
            if (!PyErr_ExceptionMatches(PyExc_TypeError)) {
                throw py::error_already_set();
            }
            PyErr_Clear();
            throw py::type_error("token_ids must be a buffer of int32, not " + type_name(value));
        }
        try {
            check();
        } catch (...) {
            PyBuffer_Release(&view_);
            throw;
        }
    }
    ~Ids() { PyBuffer_Release(&view_); }
    Ids(const Ids&) = delete;
    Ids& operator=(const Ids&) = delete;

    const std::int32_t* data() const { return static_cast<const std::int32_t*>(view_.buf); }
    std::int64_t size() const { return view_.shape[0]; }

private:
    void check() const {
        const std::string format = view_.format == nullptr ? "B" : view_.format;
        if ((format != "i" && format != "=i" && format != "<i" && format != "@i") || view_.itemsize != 4) {
            throw py::type_error("token_ids must be a buffer of int32, not of the format " + format);
        }
        if (view_.ndim != 1 || PyBuffer_IsContiguous(&view_, 'C') == 0) {
            throw py::value_error("token_ids must have one dimension and be contiguous");
        }
    }

    Py_buffer view_{};
};

std::vector<Mark> as_marks(py::handle values, std::int64_t count) {
    std::vector<Mark> marks;
    std::int64_t last = 0;
    for (const auto value : py::iter(values)) {
        if (!PyTuple_Check(value.ptr()) || PyTuple_GET_SIZE(value.ptr()) != 2) {
            throw py::type_error("a mark must be a pair of an index and bytes");
        }
        const py::handle content = PyTuple_GET_ITEM(value.ptr(), 1);
        const auto index = as_integer(PyTuple_GET_ITEM(value.ptr(), 0), "a mark's index");
        if (index < last || index >= count) {
            throw py::value_error("a mark's index must be " + std::to_string(last) + " to " +
                                  std::to_string(count - 1) + ", not " + std::to_string(index));
        }
        if (!PyBytes_Check(content.ptr())) {
            throw py::type_error("a mark's content must be bytes, not " + type_name(content));
        }
        last = index;
        marks.push_back({index, content.cast<std::string>()});
    }
    return marks;
}

py::list hash_blocks_of(py::handle token_ids, py::handle parent, py::handle mark_list) {
    const Ids ids(token_ids);
    const auto first = as_hash(parent, "parent");
    const auto marks = as_marks(mark_list, ids.size());
    std::vector<Digest> hashes;
    {
        const py::gil_scoped_release release;
        hashes = hash_blocks(ids.data(), ids.size(), first, marks);
    }
    py::list result;
    for (const auto& hash : hashes) {
        result.append(as_bytes(hash));
    }
    return result;
}

}  // namespace

void bind_prefix_index(py::module_& module) {
    module.attr("HASH_BYTES") = sizeof(Digest);
    module.def("hash_blocks", &hash_blocks_of, py::arg("token_ids"), py::arg("parent"), py::arg("marks") = py::tuple(),
               "The chained hash of every whole block of 128 tokens.");
    py::class_<PrefixIndex>(module, "PrefixIndex", py::module_local(),
                            "Which block holds the tokens of a hash, and which slot the state behind them.")
        .def(py::init<BlockManager&, BlockManager&>(), py::arg("blocks"), py::arg("slots"), py::keep_alive<1, 2>(),
             py::keep_alive<1, 3>())
        .def(
            "match",
            [](PrefixIndex& self, py::handle hashes, py::handle max_blocks) {
                const auto wanted = as_hashes(hashes);
                const auto most = as_integer(max_blocks, "max_blocks");
                const py::gil_scoped_release release;
                return self.match(wanted, most);
            },
            py::arg("hashes"), py::arg("max_blocks"),
            "Blocks of the longest beginning that is known and ends with a snapshot, and its slot, with references.")
        .def(
            "insert",
            [](PrefixIndex& self, py::handle hash, py::handle block, py::handle slot) {
                const auto key = as_hash(hash, "hash");
                const auto place = as_integer(block, "block");
                const auto snapshot = as_integer(slot, "slot");
                const py::gil_scoped_release release;
                return self.insert(key, place, snapshot);
            },
            py::arg("hash"), py::arg("block"), py::arg("slot") = 0,
            "Know a block in use by its hash, and a slot that holds the state behind it. Whether it is the one known.")
        .def("clear", &PrefixIndex::clear, py::call_guard<py::gil_scoped_release>(), "Know nothing any more.");
}

}  // namespace deepinfer
