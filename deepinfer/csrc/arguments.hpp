// Arguments as Python gives them; the twin in Python raises the same types with the same words.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

namespace deepinfer {

// An int, or anything with __index__ (numpy's integers), that fits 64 bits.
std::int64_t as_integer(pybind11::handle value, const char* name);
// An integer from `lowest` to the largest int32.
std::int32_t as_bounded(pybind11::handle value, const char* name, std::int32_t lowest);

}  // namespace deepinfer
