// What kernels are given of tensors: shared by the host, which fills it in, and the device.
#pragma once

#include <cstdint>

#include "mosaic/view.h"

namespace mosaic::cuda {

/// Lengths of the axes that a kernel walks over, outermost first.
struct Extent {
  int32_t rank;
  int64_t count;
  int64_t length[kMaxAxes];
};

/// Memory and how an element's index leads into it; strides count elements and belong to an Extent.
struct Operand {
  void* data;
  DType dtype;
  int64_t stride[kMaxAxes];
};

/// Threads of a block, but of attention's.
constexpr unsigned kBlockThreads = 256;

/// Elements of an operand that a thread loads and stores at once: 16 bytes of float32.
constexpr int kVectorLength = 4;

/// N operands walked over together.
template <int N>
struct Loop {
  Extent extent;
  /// Whether kVectorLength elements along the last axis may be taken at once.
  bool isVectorized;
  Operand operand[N];
};

}  // namespace mosaic::cuda
