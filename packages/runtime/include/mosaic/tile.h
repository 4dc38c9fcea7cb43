// Parts of attention's arguments, as every device's native code is given them.
#pragma once

#include <cstdint>

#include "mosaic/dtype.h"

namespace mosaic {

/// A strided 4-d view. Strides count elements and may be anything for an input (0 broadcasts); an output must not
/// overlap itself. Rows [B, H, S] have shape {B, H, S, 1}.
struct TensorView {
  void* data;
  DType dtype;
  int64_t shape[4];
  int64_t stride[4];
};

/// Global positions start, start + step, … of consecutive local rows; step ≥ 1.
struct Span {
  int64_t start, length, step;
};

/// Row q of [q0, q1) sees the keys [k0 + (type & 2 ? q − q0 : 0), k1 − (type & 1 ? q1 − 1 − q : 0)); all positions are
/// global.
struct Slice {
  int64_t q0, q1, k0, k1;
  int32_t type;
};

}  // namespace mosaic
