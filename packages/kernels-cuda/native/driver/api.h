// The driver's functions lie in core, where collectives find them too; here is what only kernels need.
#pragma once

#include "mosaic/cuda_driver.h"

namespace mosaic::cuda {

// CUtensorMapDataType and its like, of those that are used.
enum TensorMapType : int { TENSOR_MAP_FLOAT16 = 6, TENSOR_MAP_BFLOAT16 = 9 };
constexpr int TENSOR_MAP_INTERLEAVE_NONE = 0;
constexpr int TENSOR_MAP_SWIZZLE_128B = 3;
constexpr int TENSOR_MAP_L2_PROMOTION_256B = 3;
constexpr int TENSOR_MAP_FILL_ZEROS = 0;

/// cuTensorMapEncodeTiled: lengths, box and steps count elements, the fastest axis first; strides count bytes, from the
/// second axis on.
using TensorMapEncodeTiled = CUresult (*)(void* map, int type, unsigned rank, void* base, const uint64_t* lengths,
                                          const uint64_t* strides, const uint32_t* box, const uint32_t* steps,
                                          int interleave, int swizzle, int l2Promotion, int fill);

}  // namespace mosaic::cuda
