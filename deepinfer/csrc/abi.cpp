// What this file was compiled for, readable before the dynamic loader touches it: the loader of a mismatched
// extension would stop on the first missing symbol, with a message that names neither version.
//
// deepinfer_abi.inc is written by setup.py and defines DEEPINFER_ABI_FIELDS, the inside of a JSON object.
#include "bindings.hpp"
#include "deepinfer_abi.inc"

namespace deepinfer {
namespace {

#define DEEPINFER_ABI_PREFIX "DEEPINFER-C-ABI "

// A section of its own survives `strip` and can be shown with `readelf -p .deepinfer.abi`.
__attribute__((section(".deepinfer.abi"), used)) const char abi_note[] =
    DEEPINFER_ABI_PREFIX "{" DEEPINFER_ABI_FIELDS ", \"compiler\": \"" __VERSION__ "\"}";

}  // namespace

const char* abi_json() { return abi_note + sizeof(DEEPINFER_ABI_PREFIX) - 1; }

}  // namespace deepinfer
