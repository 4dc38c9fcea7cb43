#include "kernels/ranks.h"

#include "kernels/element.cuh"

using namespace mosaic;
using namespace mosaic::cuda;

extern "C" {

/// Float32, one addition after the other, rounded once: every rank gets the same bits, whatever moved the operands.
__global__ void reduceRanks(const __grid_constant__ ReduceRanksParameters p) {
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < p.count; i += threads) {
    float sum = 0.f;
    for (int32_t rank = 0; rank < p.ranks; rank++) {
      const int64_t place = rank - (rank > p.rank ? 1 : 0);
      const float x = rank == p.rank ? loadElement(p.own, i) : loadElement(p.others, place * p.count + i);
      if (rank == 0) sum = x;
      else if (p.op == MOSAIC_REDUCE_MAX) sum = sum > x || sum != sum ? sum : x;
      else sum += x;
    }
    storeElement(p.out, i, p.op == MOSAIC_REDUCE_MEAN ? sum / static_cast<float>(p.ranks) : sum);
  }
}

}  // extern "C"

EMULATED_KERNEL(reduceRanks, ReduceRanksParameters)
