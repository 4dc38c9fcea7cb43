// Rung 2: tiles and online softmax. A block of 64 rows reads each key and value once for all rows, 32 at a time,
// through shared memory. When a larger score occurs, the partial sums are scaled down, so that one pass suffices.
#pragma once

#include "kernels/accumulator.cuh"
#include "problem.h"

namespace ladder {

constexpr int kTileRows = 64, kTileKeys = 32;
constexpr unsigned kTiledSharedBytes = 2 * kTileKeys * kColumns * 4;

DEVICE SharedAddress elementAddress(SharedAddress tile, int key, int c) { return tile + (key * kColumns + c) * 4; }

/// Computes a block of rows, one thread per row.
DEVICE void tiledAttention(const Problem& p) {
  const int row = blockIdx.x * kTileRows + threadIdx.x;
  const bool isInBounds = row < p.rows;
  const float scale = p.scale * mosaic::cuda::kLog2e;
  const SharedAddress k = sharedBase(), v = k + kTiledSharedBytes / 2;
  float q[kColumns], acc[kColumns] = {}, maxScore = -infinity(), sum = 0.f;
#pragma unroll
  for (int c = 0; c < kColumns; c++) q[c] = isInBounds ? widen<bf16>(load(p.q + row * kColumns + c)) : 0.f;

  for (int key0 = 0; key0 < p.keys; key0 += kTileKeys) {
    const int keys = min(kTileKeys, p.keys - key0);
    syncBlock();  // all threads have finished reading the previous tile
    for (int i = threadIdx.x; i < keys * kColumns; i += kTileRows) {
      storeShared(k + i * 4, widen<bf16>(load(p.k + key0 * kColumns + i)));
      storeShared(v + i * 4, widen<bf16>(load(p.v + key0 * kColumns + i)));
    }
    syncBlock();
    for (int key = 0; key < keys; key++) {
      float score = 0.f;
#pragma unroll
      for (int c = 0; c < kColumns; c++) score += q[c] * loadShared(elementAddress(k, key, c));
      const float newMax = fmaxf(maxScore, scale * score), decay = fastExp2(maxScore - newMax);
      const float weight = fastExp2(scale * score - newMax);
      maxScore = newMax;
      sum = sum * decay + weight;
#pragma unroll
      for (int c = 0; c < kColumns; c++) acc[c] = acc[c] * decay + weight * loadShared(elementAddress(v, key, c));
    }
  }
  if (!isInBounds) return;
#pragma unroll
  for (int c = 0; c < kColumns; c++) store(p.out + row * kColumns + c, acc[c] / sum);
}

}  // namespace ladder
