// Tensor arguments of kernels, filled in by the host and read by the device.
#pragma once

#include <cstdint>

#include "mosaic/view.h"

namespace mosaic::cuda {

/// Lengths of the axes that a kernel iterates over, outermost first.
struct Extent {
  int32_t rank;
  int64_t count;
  int64_t length[kMaxAxes];
};

/// Memory and the strides by which an element's index is mapped to it. Strides count elements and belong to an Extent.
struct Operand {
  void* data;
  DType dtype;
  int64_t stride[kMaxAxes];
};

/// Threads per block, except in attention kernels.
constexpr unsigned kBlockThreads = 256;

/// Elements that a thread loads and stores at once: 16 bytes of float32.
constexpr int kVectorLength = 4;

/// N operands that are iterated over together.
template <int N>
struct Loop {
  Extent extent;
  /// Whether kVectorLength elements along the last axis may be accessed at once.
  bool isVectorized;
  Operand operand[N];
};

}  // namespace mosaic::cuda
