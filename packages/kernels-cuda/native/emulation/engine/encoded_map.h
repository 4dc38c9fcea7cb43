// What the stand-in driver puts into a TensorMap, and TMA takes out.
#pragma once

#include <cstdint>

#include "kernels/tensor_map.h"

namespace emulated {

/// Axes from the fastest on; lengths count elements of 16 bits, strides bytes.
struct EncodedMap {
  const char* base;
  int64_t length[4], stride[4];
  int boxRows;
};
static_assert(sizeof(EncodedMap) <= sizeof(mosaic::cuda::TensorMap));

}  // namespace emulated
