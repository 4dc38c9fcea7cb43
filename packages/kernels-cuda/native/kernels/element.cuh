// Elements of any dtype as float32, and iteration over strided operands.
#pragma once

#include "kernels/operand.h"
#include "kernels/ptx.cuh"

namespace mosaic::cuda {

DEVICE float loadElement(const Operand& x, int64_t at) {
  if (x.dtype == DType::Float32) return load(static_cast<const float*>(x.data) + at);
  const uint16_t bits = load(static_cast<const uint16_t*>(x.data) + at);
  return x.dtype == DType::BFloat16 ? widen<bf16>(bits) : widen<fp16>(bits);
}

/// Stores an element, rounded to nearest even.
DEVICE void storeElement(const Operand& x, int64_t at, float value) {
  if (x.dtype == DType::Float32) return store(static_cast<float*>(x.data) + at, value);
  store(static_cast<uint16_t*>(x.data) + at, x.dtype == DType::BFloat16 ? narrow<bf16>(value) : narrow<fp16>(value));
}

// Loading and decoding are separate, so that several loads can be issued before the first element is decoded.

DEVICE bool is32Bit(DType dtype) { return dtype == DType::Float32; }
DEVICE const void* addressOf(const Operand& x, int64_t at) {
  return static_cast<const char*>(x.data) + at * (is32Bit(x.dtype) ? 4 : 2);
}

/// One element, or kVectorLength contiguous elements, in storage format.
template <int WIDTH>
struct Raw;
template <>
struct Raw<1> {
  uint32_t word;

  DEVICE static Raw load(const Operand& x, int64_t at) { return {loadWord(addressOf(x, at), is32Bit(x.dtype))}; }
  DEVICE void decode(DType dtype, float (&v)[1]) const {
    const auto half = static_cast<uint16_t>(word);
    v[0] = is32Bit(dtype) ? floatOf(word) : dtype == DType::BFloat16 ? widen<bf16>(half) : widen<fp16>(half);
  }
};
template <>
struct Raw<kVectorLength> {
  uint4 words;

  DEVICE static Raw load(const Operand& x, int64_t at) { return {loadWords(addressOf(x, at), is32Bit(x.dtype))}; }
  DEVICE void decode(DType dtype, float (&v)[kVectorLength]) const {
    const uint32_t word[] = {words.x, words.y, words.z, words.w};
    const bool isBfloat16 = dtype == DType::BFloat16, isFloat32 = is32Bit(dtype);
#pragma unroll
    for (int i = 0; i < kVectorLength; i++) {
      const auto half = static_cast<uint16_t>(word[i / 2] >> i % 2 * 16);
      const float narrow = isBfloat16 ? widen<bf16>(half) : widen<fp16>(half);
      v[i] = isFloat32 ? floatOf(word[i]) : narrow;
    }
  }
};

DEVICE void storeVector(const Operand& x, int64_t at, const float (&v)[kVectorLength]) {
  if (is32Bit(x.dtype))
    return store(reinterpret_cast<float4*>(static_cast<float*>(x.data) + at), make_float4(v[0], v[1], v[2], v[3]));
  const uint2 pairs = x.dtype == DType::BFloat16 ? make_uint2(pack2<bf16>(v[0], v[1]), pack2<bf16>(v[2], v[3]))
                                                 : make_uint2(pack2<fp16>(v[0], v[1]), pack2<fp16>(v[2], v[3]));
  store(reinterpret_cast<uint2*>(static_cast<uint16_t*>(x.data) + at), pairs);
}

/// Adds the offset of element `index` to `offset`. Templated on the index, because 64-bit divisions take several times
/// as long as 32-bit ones.
template <class Index, int N>
DEVICE void addOffsets(const Extent& extent, const Operand (&operand)[N], Index index, int64_t (&offset)[N]) {
  for (int axis = extent.rank - 1; axis >= 0; axis--) {
    const auto length = static_cast<Index>(extent.length[axis]);
    const Index outerIndex = axis == 0 ? 0 : index / length;
    const auto place = static_cast<int64_t>(index - outerIndex * length);
    index = outerIndex;
#pragma unroll
    for (int i = 0; i < N; i++) offset[i] += place * operand[i].stride[axis];
  }
}

/// Computes the offset of element `index` of the extent in each operand.
template <int N>
DEVICE void offsetsOf(const Extent& extent, const Operand (&operand)[N], int64_t index, int64_t (&offset)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) offset[i] = 0;
  if (extent.count <= UINT32_MAX)
    addOffsets(extent, operand, static_cast<uint32_t>(index), offset);
  else
    addOffsets(extent, operand, index, offset);
}

/// Calls body(index, offsets) for every element; elements are distributed over the threads of the grid.
template <int N, class Body>
DEVICE void forEachElement(const Loop<N>& loop, Body body) {
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < loop.extent.count; i += threads) {
    int64_t offset[N];
    offsetsOf(loop.extent, loop.operand, i, offset);
    body(i, offset);
  }
}

/// Computes the offsets of a vector. Loops with a single axis, the usual case, need no division.
template <int N>
DEVICE void vectorOffsets(const Loop<N>& loop, int64_t index, int64_t (&offset)[N]) {
  if (loop.extent.rank > 1) return offsetsOf(loop.extent, loop.operand, index, offset);
#pragma unroll
  for (int n = 0; n < N; n++) offset[n] = index;
}

/// Implements mapElements for vectors, several per thread at a time. Past the end, the last vector is loaded again but
/// not stored.
template <int N, class Function>
DEVICE void mapVectors(const Loop<N>& loop, Function function) {
  constexpr int kVectors = 2;
  const auto& operand = loop.operand;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x * kVectorLength;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kVectorLength;
#pragma unroll 1
  for (int64_t index = first; index < loop.extent.count; index += kVectors * step) {
    int64_t at[kVectors][N];
    Raw<kVectorLength> raw[kVectors][N];
#pragma unroll
    for (int v = 0; v < kVectors; v++) {
      vectorOffsets(loop, min(index + v * step, loop.extent.count - kVectorLength), at[v]);
    }
#pragma unroll
    for (int v = 0; v < kVectors; v++) {
#pragma unroll
      for (int n = 1; n < N; n++) raw[v][n] = Raw<kVectorLength>::load(operand[n], at[v][n]);
    }
#pragma unroll
    for (int v = 0; v < kVectors; v++) {
      if (index + v * step >= loop.extent.count) break;
      float x[N][kVectorLength];
#pragma unroll
      for (int n = 1; n < N; n++) raw[v][n].decode(operand[n].dtype, x[n]);
      function(x);
      storeVector(operand[0], at[v][0], x[0]);
    }
  }
}

/// Calls function(x), which computes x[0][i], of the first operand, from the others' x[n][i]. It is called for
/// kVectorLength elements at once if the operands allow it, else for one.
template <int N, class Function>
DEVICE void mapElements(const Loop<N>& loop, Function function) {
  if (loop.isVectorized) return mapVectors(loop, function);
  const auto& operand = loop.operand;
  forEachElement(loop, [&](int64_t, const int64_t(&at)[N]) {
    float x[N][1];
#pragma unroll
    for (int n = 1; n < N; n++) x[n][0] = loadElement(operand[n], at[n]);
    function(x);
    storeElement(operand[0], at[0], x[0][0]);
  });
}

/// Calls body(i) for each element of a vector.
template <int WIDTH, class Body>
DEVICE void forEachIndex(const float (&)[WIDTH], Body body) {
#pragma unroll
  for (int i = 0; i < WIDTH; i++) body(i);
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
