// Rung 5: TMA and wgmma, without overlap of the two. A single thread requests whole tiles, and a barrier in shared
// memory counts their bytes. Four warps together multiply 64 rows directly from shared memory. Tiles are loaded two
// steps ahead, but products and softmax still wait for each other.
#pragma once

#include "kernels/hopper_tile.cuh"
#include "kernels/online_softmax.cuh"
#include "problem.h"

namespace ladder {

using namespace mosaic::cuda;

constexpr int kGroupRows = 64, kGroupKeys = 128;
constexpr int kGroupTileBytes = kPanelsBytes<kGroupKeys, kColumns>, kGroupStageBytes = 2 * kGroupTileBytes;
constexpr unsigned kGroupSharedBytes = kPanelsBytes<kGroupRows, kColumns> + kStages * (kGroupStageBytes + 16) + 8;

struct MappedProblem {
  TensorMap q, k, v;  // boxes of kGroupRows (q) and kGroupKeys (k, v) rows
  Problem base;
};

/// Computes 64 rows in a block of one warpgroup.
DEVICE void warpgroupAttention(const MappedProblem& mappedProblem) {
  const Problem& p = mappedProblem.base;
  const SharedAddress q = sharedBase(), stages = q + kPanelsBytes<kGroupRows, kColumns>;
  const SharedAddress ownFullBarrier = stages + kStages * kGroupStageBytes;
  const TmaPipeline<kGroupStageBytes> pipeline{stages, ownFullBarrier + 8};
  initBlockBarrier(ownFullBarrier, [&] { pipeline.init(1, 4); });

  const int row0 = blockIdx.x * kGroupRows, steps = (p.keys + kGroupKeys - 1) / kGroupKeys;
  const auto start = [&](int step) {
    if (threadIdx.x != 0 || step >= steps) return;
    pipeline.producerAcquire(step);
    const SharedAddress fullBarrier = pipeline.fullBarrier(step), k = pipeline.tile(step), v = k + kGroupTileBytes;
    arriveExpectTx(fullBarrier, kGroupStageBytes);
    loadPanels<kGroupKeys, kColumns>(k, mappedProblem.k, {0, step * kGroupKeys, 0, 0}, fullBarrier);
    loadPanels<kGroupKeys, kColumns>(v, mappedProblem.v, {0, step * kGroupKeys, 0, 0}, fullBarrier);
  };
  if (threadIdx.x == 0) {
    arriveExpectTx(ownFullBarrier, kPanelsBytes<kGroupRows, kColumns>);
    loadPanels<kGroupRows, kColumns>(q, mappedProblem.q, {0, row0, 0, 0}, ownFullBarrier);
  }
  for (int step = 0; step < kStages; step++) start(step);
  awaitPhase(ownFullBarrier, 0);

  const int lane = threadIdx.x & 31, c0 = (lane & 3) * 2, row = row0 + (threadIdx.x >> 5) * 16 + (lane >> 2);
  float s[kGroupKeys / 8][4], acc[kColumns / 8][4], maxScore[2] = {-infinity(), -infinity()}, sum[2] = {}, decay[2];
  uint32_t weights[kGroupKeys / 16][4];
  clear(acc);
  for (int step = 0; step < steps; step++) {
    pipeline.consumerWait(step);
    fenceWgmma();
    startMatmulTransposed<bf16, kColumns, kGroupRows>(s, q, 0, pipeline.tile(step));
    commitWgmma();
    waitWgmma<0>(s);
#pragma unroll
    for (int n = 0; n < kGroupKeys / 8; n++) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        if (step * kGroupKeys + n * 8 + c0 + i % 2 >= p.keys) s[n][i] = -infinity();
      }
    }
    updateOnlineSoftmax(s, p.scale, maxScore, sum, decay);
    scaleRows(acc, decay);
    packRows<bf16>(weights, s);
    fenceWgmma();
    startMatmul<bf16>(acc, weights, pipeline.tile(step) + kGroupTileBytes);
    commitWgmma();
    waitWgmma<0>(acc);
    pipeline.consumerRelease(step);
    start(step + kStages);
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
