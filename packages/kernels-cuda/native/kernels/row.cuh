// A warp and its row.
#pragma once

#include "kernels/element.cuh"
#include "kernels/rows.h"

namespace mosaic::cuda {

/// Calls body(offsets) with where each of the warp's rows begins; warps of the grid take turns.
template <int N, class Body>
DEVICE void forEachRow(const Rows<N>& over, Body body) {
  const int64_t warps = static_cast<int64_t>(gridDim.x) * (blockDim.x / 32);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  for (int64_t row = first; row < over.rows.extent.count; row += warps) {
    int64_t offset[N];
    offsetsOf(over.rows.extent, over.rows.operand, row, offset);
    body(offset);
  }
}

/// Calls body(i) for the places of a row that fall to this lane.
template <class Body>
DEVICE void forEachPlace(int64_t length, Body body) {
  for (int64_t i = threadIdx.x % 32; i < length; i += 32) body(i);
}

template <class Body>
DEVICE float sumOverRow(int64_t length, Body body) {
  float sum = 0;
  forEachPlace(length, [&](int64_t i) { sum += body(i); });
  return warpSum(sum);
}

template <class Body>
DEVICE float maxOverRow(int64_t length, Body body) {
  float top = -infinity();
  forEachPlace(length, [&](int64_t i) { top = fmaxf(top, body(i)); });
  return warpMax(top);
}

/// Whether `value` names one of `count`; else it is written down, the first to come.
DEVICE bool checkIndex(float value, int64_t count, BadIndex* bad, Indexed kernel) {
  if (value >= 0.f && value < static_cast<float>(count) && value == floorf(value)) return true;
  if (atomicClaim(&bad->found)) {
    store(&bad->value, value);
    store(&bad->count, count);
    store(&bad->kernel, kernel);
  }
  return false;
}

}  // namespace mosaic::cuda
