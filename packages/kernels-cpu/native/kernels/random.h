// Counter-based random numbers, with Philox (philox.h).
//
// Block b of four elements encrypts the counter (b, stream) under the key `seed`. uniform: the upper 24 bits. normal:
// Box and Muller 1958, on the pairs (0, 1) and (2, 3) of a block, computed with math.h, so that the bits are the same
// on every machine.
#pragma once

#include "kernels/elementwise.h"
#include "kernels/math.h"
#include "kernels/philox.h"

namespace mosaic {
namespace {

/// Computes the four words of `T::lanes` blocks, beginning with `block`, a multiple of `T::lanes`.
template <class T>
MOSAIC_INLINE void philox(uint64_t block, const RandomSpec& spec, Bits<T> (&words)[4]) {
  const Bits<T> none{};
  const uint32_t first = static_cast<uint32_t>(block);
  for (int lane = 0; lane < T::lanes; lane++) words[0][lane] = first + static_cast<uint32_t>(lane);
  words[1] = none + static_cast<uint32_t>(block >> 32);
  words[2] = none + static_cast<uint32_t>(spec.stream);
  words[3] = none + static_cast<uint32_t>(spec.stream >> 32);
  runPhiloxRounds<T>(words, static_cast<uint32_t>(spec.seed), static_cast<uint32_t>(spec.seed >> 32));
}

/// Returns the upper 24 bits of each word, plus `offset`, as k · 2⁻²⁴.
template <class T>
MOSAIC_INLINE typename T::Vec uniformFraction(Bits<T> words, int32_t offset) {
  const Int<T> upper = reinterpret_cast<Int<T>>(words >> 8) + offset;
  return __builtin_convertvector(upper, typename T::Vec) * T::set1(0x1p-24f);
}

template <class T>
MOSAIC_NOINLINE void drawBlocks(uint64_t block, const RandomSpec& spec, float* out) {
  using V = typename T::Vec;
  Bits<T> words[4];
  float values[4][T::lanes];
  philox<T>(block, spec, words);
  if (spec.kind == RandomKind::Uniform) {
    const V low = T::set1(spec.a), range = T::set1(spec.b - spec.a);
    for (int i = 0; i < 4; i++) {
      const V value = low + uniformFraction<T>(words[i], 0) * range;
      T::store(values[i], blend<T>(lessThan<T>(value, T::set1(spec.b)), value, low));  // low if rounded up to high
    }
  } else {
    for (int i = 0; i < 4; i += 2) {
      const V radius = sqrtOf<T>(T::set1(-2.0f) * logOf<T>(uniformFraction<T>(words[i], 1)));  // of (0, 1]
      V sine, cosine;
      sinCos2Pi<T>(uniformFraction<T>(words[i + 1], 0), sine, cosine);
      T::store(values[i], T::set1(spec.a) + T::set1(spec.b) * (radius * cosine));
      T::store(values[i + 1], T::set1(spec.a) + T::set1(spec.b) * (radius * sine));
    }
  }
  for (int lane = 0; lane < T::lanes; lane++) {
    for (int i = 0; i < 4; i++) out[4 * lane + i] = values[i][lane];
  }
}

/// Draws elements first, first + 1, … (n ≤ kChunkElements) of the sequence.
template <class T>
MOSAIC_NOINLINE void draw(uint64_t first, int64_t n, const RandomSpec& spec, float* out) {
  constexpr int64_t batch = 4 * T::lanes;
  float values[batch];
  uint64_t blockStart = first - first % batch;
  for (int64_t drawnCount = 0; drawnCount < n; blockStart += batch) {
    const int64_t skippedCount = drawnCount == 0 ? static_cast<int64_t>(first - blockStart) : 0;
    drawBlocks<T>(blockStart / 4, spec, values);
    const int64_t count = minOf(batch - skippedCount, n - drawnCount);
    __builtin_memcpy(out + drawnCount, values + skippedCount, static_cast<size_t>(count) * sizeof(float));
    drawnCount += count;
  }
}

template <class T>
void random(const RandomArguments& args, Pool& pool) {
  const auto& [out, spec] = args;
  // The second operand has no memory: its "address" is twice the row-major index of an element.
  View index = out;
  index.data = nullptr;
  index.dtype = DType::Float16;
  int64_t stride = 1;
  for (int axis = out.rank - 1; axis >= 0; axis--) {
    index.stride[axis] = stride;
    stride *= out.shape[axis];
  }
  const Loop<2> loop = makeLoop<2>({&out, &index});
  const int innerAxis = loop.rank - 1;
  forEachChunk(loop, pool, [&](const Chunk<2>& chunk) {
    const uint64_t first = reinterpret_cast<uintptr_t>(chunk.data[1]) / 2;
    const int64_t step = loop.stride[1][innerAxis];
    float values[kChunkElements];
    if (step == 1) {
      draw<T>(first, chunk.length, spec, values);
    } else {
      for (int64_t i = 0; i < chunk.length; i++) draw<T>(first + static_cast<uint64_t>(i * step), 1, spec, values + i);
    }
    flush<T>(loop.dtype[0], chunk.data[0], loop.stride[0][innerAxis], chunk.length, values);
  });
}

// Dropout (Srivastava et al. 2014). The mask of an element depends on its position in the whole tensor.

template <class T>
void dropout(const DropoutArguments& args, Pool& pool) {
  const auto& [out, x, spec] = args;
  using V = typename T::Vec;
  View index = out;  // without memory, as in `random`: its "address" is twice the index of an element
  index.data = reinterpret_cast<void*>(static_cast<uintptr_t>(2 * spec.offset));
  index.dtype = DType::Float16;
  for (int axis = 0; axis < out.rank; axis++) index.stride[axis] = spec.strides.stride[axis];
  const RandomSpec random{RandomKind::Uniform, 0, 1, spec.seed, spec.stream};
  const V probability = T::set1(spec.probability), scale = T::set1(1.0f / (1.0f - spec.probability));
  const Loop<3> loop = makeLoop<3>({&out, &x, &index});
  const int innerAxis = loop.rank - 1;
  forEachChunk(loop, pool, [&](const Chunk<3>& chunk) {
    const uint64_t first = reinterpret_cast<uintptr_t>(chunk.data[2]) / 2;
    const int64_t step = loop.stride[2][innerAxis], n = chunk.length;
    float randomValues[kChunkElements], buffers[2][kChunkElements];
    if (step == 1) {
      draw<T>(first, n, random, randomValues);
    } else {
      for (int64_t i = 0; i < n; i++) draw<T>(first + static_cast<uint64_t>(i * step), 1, random, randomValues + i);
    }
    const float* from = fetch<T>(loop.dtype[1], chunk.data[1], loop.stride[1][innerAxis], n, buffers[1]);
    float* to = target(loop.dtype[0], chunk.data[0], loop.stride[0][innerAxis], buffers[0]);
    map2<T>(to, from, randomValues, n,
            [&](V v, V u) { return blend<T>(lessThan<T>(u, probability), T::zero(), v * scale); });
    flush<T>(loop.dtype[0], chunk.data[0], loop.stride[0][innerAxis], n, to);
  });
}

}  // namespace
}  // namespace mosaic
