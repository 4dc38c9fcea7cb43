// Elements of any dtype as float32, and walks over strided operands.
#pragma once

#include "kernels/operand.h"
#include "kernels/ptx.cuh"

namespace mosaic::cuda {

DEVICE float loadElement(const Operand& x, int64_t at) {
  if (x.dtype == DType::Float32) return load(static_cast<const float*>(x.data) + at);
  const uint16_t bits = load(static_cast<const uint16_t*>(x.data) + at);
  return x.dtype == DType::BFloat16 ? widen<bf16>(bits) : widen<fp16>(bits);
}

/// Rounds once, to nearest even.
DEVICE void storeElement(const Operand& x, int64_t at, float value) {
  if (x.dtype == DType::Float32) return store(static_cast<float*>(x.data) + at, value);
  store(static_cast<uint16_t*>(x.data) + at, x.dtype == DType::BFloat16 ? narrow<bf16>(value) : narrow<fp16>(value));
}

/// Where the `index`th element of the extent lies in each operand.
template <int N>
DEVICE void offsetsOf(const Extent& extent, const Operand (&operand)[N], int64_t index, int64_t (&offset)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) offset[i] = 0;
  for (int axis = extent.rank - 1; axis >= 0; axis--) {
    const int64_t place = axis == 0 ? index : index % extent.length[axis];
    if (axis > 0) index /= extent.length[axis];
#pragma unroll
    for (int i = 0; i < N; i++) offset[i] += place * operand[i].stride[axis];
  }
}

/// Calls body(index, offsets) for every element; the threads of the grid take turns.
template <int N, class Body>
DEVICE void forEachElement(const Loop<N>& loop, Body body) {
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < loop.extent.count; i += threads) {
    int64_t offset[N];
    offsetsOf(loop.extent, loop.operand, i, offset);
    body(i, offset);
  }
}

DEVICE float warpSum(float x) {
  for (int lanes = 16; lanes > 0; lanes /= 2) x += shuffleXor(x, lanes);
  return x;
}
DEVICE float warpMax(float x) {
  for (int lanes = 16; lanes > 0; lanes /= 2) x = fmaxf(x, shuffleXor(x, lanes));
  return x;
}

}  // namespace mosaic::cuda
