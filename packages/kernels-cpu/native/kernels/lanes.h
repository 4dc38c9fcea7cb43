// Conversion of rows of any dtype and stride to dense float32, and back.
#pragma once

#include "kernels/loop.h"

namespace mosaic {
namespace {

template <class T, class Convert>
MOSAIC_INLINE void widen(const uint16_t* from, float* to, int64_t n, Convert convert) {
  int64_t i = 0;
  for (; i + T::lanes <= n; i += T::lanes) T::store(to + i, convert(from + i));
  if (i == n) return;
  uint16_t remaining[T::lanes] = {};
  __builtin_memcpy(remaining, from + i, static_cast<size_t>(n - i) * 2);
  T::storePartial(to + i, convert(remaining), static_cast<int>(n - i));
}

template <class T, class Convert>
MOSAIC_INLINE void narrow(const float* from, uint16_t* to, int64_t n, Convert convert) {
  int64_t i = 0;
  for (; i + T::lanes <= n; i += T::lanes) convert(to + i, T::load(from + i));
  if (i == n) return;
  uint16_t remaining[T::lanes];
  convert(remaining, T::loadPartial(from + i, static_cast<int>(n - i)));
  __builtin_memcpy(to + i, remaining, static_cast<size_t>(n - i) * 2);
}

template <class Element>
MOSAIC_INLINE void gather(const Element* from, int64_t stride, Element* to, int64_t n) {
  if (stride == 0) {  // a broadcast scalar: a loop that compilers vectorize
    const Element value = *from;
    for (int64_t i = 0; i < n; i++) to[i] = value;
    return;
  }
  for (int64_t i = 0; i < n; i++) to[i] = from[i * stride];
}

template <class Element>
MOSAIC_INLINE void scatter(const Element* from, Element* to, int64_t stride, int64_t n) {
  if (stride == 1) {
    __builtin_memcpy(to, from, static_cast<size_t>(n) * sizeof(Element));
    return;
  }
  for (int64_t i = 0; i < n; i++) to[i * stride] = from[i];
}

template <class T>
MOSAIC_INLINE void widenDense(DType dtype, const uint16_t* from, float* to, int64_t n) {
  if (dtype == DType::BFloat16) {
    widen<T>(from, to, n, [](const uint16_t* p) { return T::loadBf16(p); });
  } else {
    widen<T>(from, to, n, [](const uint16_t* p) { return T::loadF16(p); });
  }
}

/// Returns n ≤ kChunkElements elements as dense float32: in place if they have that form, else in `buffer`.
template <class T>
MOSAIC_NOINLINE const float* fetch(DType dtype, const char* data, int64_t stride, int64_t n, float* buffer) {
  if (dtype == DType::Float32) {
    const auto* from = reinterpret_cast<const float*>(data);
    if (stride == 1) return from;
    gather(from, stride, buffer, n);
    return buffer;
  }
  const auto* from = reinterpret_cast<const uint16_t*>(data);
  if (stride == 0) {
    widenDense<T>(dtype, from, buffer, 1);
    for (int64_t i = 1; i < n; i++) buffer[i] = buffer[0];
    return buffer;
  }
  if (stride != 1) {
    uint16_t dense[kChunkElements];
    gather(from, stride, dense, n);
    widenDense<T>(dtype, dense, buffer, n);
  } else {
    widenDense<T>(dtype, from, buffer, n);
  }
  return buffer;
}

/// Returns where to compute n elements of an output: in place if it is dense float32, else in `buffer`, stored by
/// `flush`.
MOSAIC_INLINE float* target(DType dtype, char* data, int64_t stride, float* buffer) {
  return dtype == DType::Float32 && stride == 1 ? reinterpret_cast<float*>(data) : buffer;
}

/// Stores n ≤ kChunkElements elements, rounding to nearest even.
template <class T>
MOSAIC_NOINLINE void flush(DType dtype, char* data, int64_t stride, int64_t n, const float* values) {
  if (dtype == DType::Float32) {
    if (reinterpret_cast<float*>(data) != values) scatter(values, reinterpret_cast<float*>(data), stride, n);
    return;
  }
  auto* to = reinterpret_cast<uint16_t*>(data);
  uint16_t dense[kChunkElements];
  uint16_t* rounded = stride == 1 ? to : dense;
  if (dtype == DType::BFloat16) {
    narrow<T>(values, rounded, n, [](uint16_t* p, typename T::Vec v) { T::storeBf16(p, v); });
  } else {
    narrow<T>(values, rounded, n, [](uint16_t* p, typename T::Vec v) { T::storeF16(p, v); });
  }
  if (stride != 1) scatter(dense, to, stride, n);
}

/// Stores one element.
template <class T>
MOSAIC_INLINE void flushElement(DType dtype, char* data, float value) {
  if (dtype == DType::Float32) {
    *reinterpret_cast<float*>(data) = value;
  } else {
    flush<T>(dtype, data, 1, 1, &value);
  }
}

}  // namespace
}  // namespace mosaic
