// CUDA 13's form of cudaMemcpyBatchAsync for code that is compiled with CUDA 12's headers: no failIdx, and const where
// nothing is written. Included before everything else (-include), so that the code itself stays as it was published.
//
// The copies and their order are the same in both; what CUDA 12 tells through failIdx, which copy of a batch was
// refused, CUDA 13 does not tell, and it is dropped here. As in both, the stream must not be the legacy default stream.
#pragma once

#if defined(__cplusplus)

#include <cstddef>
#include <cuda_runtime_api.h>

#if CUDART_VERSION >= 12080 && CUDART_VERSION < 13000

inline cudaError_t cudaMemcpyBatchAsync(void* const* dsts, const void* const* srcs, const std::size_t* sizes,
                                        std::size_t count, cudaMemcpyAttributes* attrs, std::size_t* attrsIdxs,
                                        std::size_t numAttrs, cudaStream_t stream) {
    std::size_t refused = 0;
    return cudaMemcpyBatchAsync(const_cast<void**>(dsts), const_cast<void**>(srcs), const_cast<std::size_t*>(sizes),
                                count, attrs, attrsIdxs, numAttrs, &refused, stream);
}

#endif
#endif
