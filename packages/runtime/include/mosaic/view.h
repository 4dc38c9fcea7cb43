// What kernels are given: raw memory, shapes and strides.
#pragma once

#include <cstdint>

#include "mosaic/dtype.h"

namespace mosaic {

constexpr int kMaxRank = 12;

/// A strided view of up to 12 axes, outermost first; strides count elements and may be 0 (broadcast) for an input.
/// Plain data: files compiled for one instruction set must not share functions with others (simd/isa.h).
struct View {
  void* data;
  DType dtype;
  int32_t rank;
  int64_t shape[kMaxRank];
  int64_t stride[kMaxRank];
};

/// A view that may be absent: its data is then null, and its rank 0.
struct OptionalView : View {};

/// One stride for each of `rank` axes.
struct Strides {
  int32_t rank;
  int64_t along[kMaxRank];
};

}  // namespace mosaic
