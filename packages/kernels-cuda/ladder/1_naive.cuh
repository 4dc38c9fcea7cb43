// Rung 1: the formula. Each thread computes one row and reads everything from device memory twice: once for the largest
// score, without which exponentials overflow, and once for the sums.
#pragma once

#include "kernels/accumulator.cuh"
#include "problem.h"

namespace ladder {

DEVICE float dot(const uint16_t* a, const uint16_t* b) {
  float sum = 0.f;
  for (int c = 0; c < kColumns; c++) sum += widen<bf16>(load(a + c)) * widen<bf16>(load(b + c));
  return sum;
}

DEVICE void naiveAttention(const Problem& p) {
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= p.rows) return;
  const uint16_t* q = p.q + row * kColumns;
  const float scale = p.scale * mosaic::cuda::kLog2e;  // the hardware computes powers of two
  float maxScore = -infinity();
  for (int key = 0; key < p.keys; key++) maxScore = fmaxf(maxScore, scale * dot(q, p.k + key * kColumns));

  float sum = 0.f, acc[kColumns] = {};
  for (int key = 0; key < p.keys; key++) {
    const float weight = fastExp2(scale * dot(q, p.k + key * kColumns) - maxScore);
    sum += weight;
    for (int c = 0; c < kColumns; c++) acc[c] += weight * widen<bf16>(load(p.v + key * kColumns + c));
  }
  for (int c = 0; c < kColumns; c++) store(p.out + row * kColumns + c, acc[c] / sum);
}

}  // namespace ladder
