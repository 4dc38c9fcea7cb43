// What kernels are given of tensors: shared by the host, which fills it in, and the device.
#pragma once

#include <cstdint>

#include "mosaic/view.h"

namespace mosaic::cuda {

/// Lengths of the axes that a kernel walks over, outermost first.
struct Extent {
  int32_t rank;
  int64_t count;
  int64_t length[kMaxRank];
};

/// Memory and how an element's index leads into it; strides count elements and belong to an Extent.
struct Operand {
  void* data;
  DType dtype;
  int64_t stride[kMaxRank];
};

/// N operands walked over together.
template <int N>
struct Loop {
  Extent extent;
  Operand operand[N];
};

}  // namespace mosaic::cuda
