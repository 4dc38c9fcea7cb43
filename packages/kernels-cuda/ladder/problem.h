// The computation of every rung: out = softmax(scale · q kᵀ) v, one head of 64 columns, no mask.
#pragma once

#include <cstdint>

namespace ladder {

constexpr int kColumns = 64;

/// q [rows, 64], k and v [keys, 64] in bfloat16, out [rows, 64] in float32; all dense.
struct Problem {
  const uint16_t *q, *k, *v;
  float* out;
  int32_t rows, keys;
  float scale;
};

}  // namespace ladder
