// Rung 3: tensor cores. A warp multiplies 16 × 8 × 16 elements with one instruction, if each lane holds the right ones.
// Of each 16 × 8 block, lane t has rows t/4 and t/4 + 8 and columns t%4·2 and t%4·2 + 1. Scores are produced in the
// layout that weights require, so that no data moves between lanes between the two products. Operands are still loaded
// one by one from device memory.
#pragma once

#include "kernels/online_softmax.cuh"
#include "problem.h"

namespace ladder {

using namespace mosaic::cuda;

constexpr int kKeysPerStep = 64;

/// Loads columns c and c + 1 of a row; zeros past the end.
DEVICE uint32_t pairAt(const uint16_t* x, int row, int rows, int c) {
  return row < rows ? load(reinterpret_cast<const uint32_t*>(x + row * kColumns + c)) : 0;
}
/// Loads rows r and r + 1 of a column.
DEVICE uint32_t columnPairAt(const uint16_t* x, int row, int rows, int c) {
  const uint32_t low = row < rows ? load(x + row * kColumns + c) : 0;
  const uint32_t high = row + 1 < rows ? load(x + (row + 1) * kColumns + c) : 0;
  return low | high << 16;
}

/// Computes 16 rows in a block of one warp.
DEVICE void tensorCoreAttention(const Problem& p) {
  const int lane = threadIdx.x & 31, g = lane >> 2, c0 = (lane & 3) * 2, row = blockIdx.x * 16 + g;
  uint32_t q[kColumns / 16][4];
#pragma unroll
  for (int k = 0; k < kColumns / 16; k++) {
#pragma unroll
    for (int i = 0; i < 4; i++) q[k][i] = pairAt(p.q, row + i % 2 * 8, p.rows, k * 16 + i / 2 * 8 + c0);
  }
  float acc[kColumns / 8][4] = {}, maxScore[2] = {-infinity(), -infinity()}, sum[2] = {}, decay[2];
  for (int key0 = 0; key0 < p.keys; key0 += kKeysPerStep) {
    float s[kKeysPerStep / 8][4] = {};
#pragma unroll
    for (int n = 0; n < kKeysPerStep / 8; n++) {
#pragma unroll
      for (int k = 0; k < kColumns / 16; k++) {
        const int key = key0 + n * 8 + g, c = k * 16 + c0;
        mma16x8x16<bf16>(s[n], q[k], pairAt(p.k, key, p.keys, c), pairAt(p.k, key, p.keys, c + 8));
      }
#pragma unroll
      for (int i = 0; i < 4; i++) {
        if (key0 + n * 8 + c0 + i % 2 >= p.keys) s[n][i] = -infinity();
      }
    }
    updateOnlineSoftmax(s, p.scale, maxScore, sum, decay);
    scaleRows(acc, decay);
#pragma unroll
    for (int k = 0; k < kKeysPerStep / 16; k++) {
      const uint32_t weights[4] = {pack2<bf16>(s[2 * k][0], s[2 * k][1]), pack2<bf16>(s[2 * k][2], s[2 * k][3]),
                                   pack2<bf16>(s[2 * k + 1][0], s[2 * k + 1][1]),
                                   pack2<bf16>(s[2 * k + 1][2], s[2 * k + 1][3])};
#pragma unroll
      for (int n = 0; n < kColumns / 8; n++) {
        const int key = key0 + k * 16 + c0, c = n * 8 + g;
        const uint32_t lowPair = columnPairAt(p.v, key, p.keys, c), highPair = columnPairAt(p.v, key + 8, p.keys, c);
        mma16x8x16<bf16>(acc[n], weights, lowPair, highPair);
      }
    }
  }
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const float rowSum = quadSum(sum[h]);
    if (row + h * 8 >= p.rows) continue;
#pragma unroll
    for (int n = 0; n < kColumns / 8; n++) {
      auto* out = reinterpret_cast<float2*>(p.out + (row + h * 8) * kColumns + n * 8 + c0);
      store(out, make_float2(acc[n][h * 2] / rowSum, acc[n][h * 2 + 1] / rowSum));
    }
  }
}

}  // namespace ladder
