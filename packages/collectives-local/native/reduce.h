// Arithmetic of reductions: blocks of elements, accumulated in float32 in the order in which they are given.
#pragma once

#include <cstdint>

#include "signature.h"

namespace mosaic {

/// acc = in for the first operand, else acc (+ or max) in. A NaN wins every max.
void accumulate(float* acc, const void* in, uint64_t count, DType dtype, ReduceOp op, bool first);
/// Divides for a mean, and rounds to nearest even.
void finish(void* out, float* acc, uint64_t count, DType dtype, ReduceOp op, uint32_t operands);

}  // namespace mosaic
