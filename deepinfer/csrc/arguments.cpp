#include "arguments.hpp"

#include <limits>
#include <string>

namespace py = pybind11;

namespace deepinfer {

std::int64_t as_integer(py::handle value, const char* name) {
    const auto index = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
    if (!index) {
        if (!PyErr_ExceptionMatches(PyExc_TypeError)) {
            throw py::error_already_set();
        }
        PyErr_Clear();
        throw py::type_error(std::string(name) + " must be an integer, not " + Py_TYPE(value.ptr())->tp_name);
    }
    int overflow = 0;
    const auto result = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
    if (overflow != 0) {
        throw py::value_error(std::string(name) + " does not fit 64 bits");
    }
    return result;
}

std::int32_t as_bounded(py::handle value, const char* name, std::int32_t lowest) {
    constexpr auto highest = std::numeric_limits<std::int32_t>::max();
    const auto number = as_integer(value, name);
    if (number < lowest || number > highest) {
        throw py::value_error(std::string(name) + " must be " + std::to_string(lowest) + " to " +
                              std::to_string(highest) + ", not " + std::to_string(number));
    }
    return static_cast<std::int32_t>(number);
}

}  // namespace deepinfer
