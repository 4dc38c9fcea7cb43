// Vectors of elements of any dtype: widened to float32 on load, rounded on store.
#pragma once

#include <cstdint>
#include <type_traits>

#include "mosaic/kernel_enums.h"
#include "simd/inline.h"

namespace mosaic {
namespace {

/// The storage type of an element of a dtype.
template <DType dtype>
using ElementOf = std::conditional_t<dtype == DType::Float32, float, uint16_t>;

/// Loads a vector of contiguous elements.
template <class V, DType dtype>
MOSAIC_INLINE typename V::Vec loadVector(const ElementOf<dtype>* from) {
  if constexpr (dtype == DType::Float32) {
    return V::load(from);
  } else if constexpr (dtype == DType::BFloat16) {
    return V::loadBf16(from);
  } else {
    return V::loadF16(from);
  }
}

/// Returns, as float32, the elements with even (`widenEven`) or odd (`widenOdd`) indices of a vector that holds the
/// bits of 2 · lanes bfloat16 elements.
template <class V>
MOSAIC_INLINE typename V::Vec widenEven(typename V::Vec bits) {
  typedef uint32_t Bits __attribute__((vector_size(sizeof bits)));
  return __builtin_bit_cast(typename V::Vec, __builtin_bit_cast(Bits, bits) << 16);
}
template <class V>
MOSAIC_INLINE typename V::Vec widenOdd(typename V::Vec bits) {
  typedef uint32_t Bits __attribute__((vector_size(sizeof bits)));
  return __builtin_bit_cast(typename V::Vec, __builtin_bit_cast(Bits, bits) & 0xffff0000u);
}

/// n ≤ lanes elements of any dtype, `stride` apart, as float32; the other lanes are 0.
template <class V>
MOSAIC_INLINE typename V::Vec loadElements(DType dtype, const char* data, int64_t stride, int n) {
  if (dtype == DType::Float32) {
    const auto* from = reinterpret_cast<const float*>(data);
    if (stride == 1) return n == V::lanes ? V::load(from) : V::loadPartial(from, n);
    float values[V::lanes] = {};
    for (int i = 0; i < n; i++) values[i] = from[i * stride];
    return V::load(values);
  }
  const auto* from = reinterpret_cast<const uint16_t*>(data);
  uint16_t halves[V::lanes] = {};
  if (stride != 1 || n != V::lanes) {
    for (int i = 0; i < n; i++) halves[i] = from[i * stride];
    from = halves;
  }
  return dtype == DType::BFloat16 ? loadVector<V, DType::BFloat16>(from) : loadVector<V, DType::Float16>(from);
}

/// Stores n ≤ lanes elements of any dtype, `stride` apart, rounded to nearest even.
template <class V>
MOSAIC_INLINE void storeElements(DType dtype, char* data, int64_t stride, typename V::Vec x, int n) {
  if (dtype == DType::Float32) {
    auto* to = reinterpret_cast<float*>(data);
    if (stride == 1) return n == V::lanes ? V::store(to, x) : V::storePartial(to, x, n);
    float values[V::lanes];
    V::store(values, x);
    for (int i = 0; i < n; i++) to[i * stride] = values[i];
    return;
  }
  auto* to = reinterpret_cast<uint16_t*>(data);
  uint16_t halves[V::lanes];
  const bool isInPlace = stride == 1 && n == V::lanes;
  dtype == DType::BFloat16 ? V::storeBf16(isInPlace ? to : halves, x) : V::storeF16(isInPlace ? to : halves, x);
  if (isInPlace) return;
  for (int i = 0; i < n; i++) to[i * stride] = halves[i];
}

}  // namespace
}  // namespace mosaic
