// The arithmetic of reductions over ranks: blocks of elements are accumulated in float32 in the order of the calls, and
// rounded once. The engine and the transports share it, so that a reduction has the same bits on every transport.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "mosaic/view.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace mosaic {

enum class ReduceOp : uint8_t { Sum, Mean, Max };

namespace reduction {

namespace detail {

constexpr uint64_t kBlockElements = 512;  // elements converted at a time, in L1

inline float fromBFloat16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

inline uint16_t toBFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (value != value) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float fromFloat16(uint16_t bits16) {
  const uint32_t sign = uint32_t{bits16 & 0x8000u} << 16, exponent = bits16 >> 10 & 31, mantissa = bits16 & 0x3ff;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000 | mantissa << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  const float subnormal = static_cast<float>(mantissa) * 0x1p-24f;
  return sign ? -subnormal : subnormal;
}

inline uint16_t toFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const float absValue = std::fabs(value);
  if (value != value) return static_cast<uint16_t>(sign | 0x7e00);
  if (absValue >= 65520.0f) return static_cast<uint16_t>(sign | 0x7c00);
  // Adding 0.5 shifts the bits of a subnormal to the bottom of the mantissa; the addition itself rounds them.
  if (absValue < 0x1p-14f)
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(absValue + 0.5f) - 0x3f000000u));
  const uint32_t magnitude = bits & 0x7fffffff;
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000u + 0xfff + (magnitude >> 13 & 1)) >> 13));
}

#if defined(__x86_64__)
inline bool hasF16c() {
  static const bool isSupported = __builtin_cpu_supports("f16c");
  return isSupported;
}

__attribute__((target("avx,f16c"))) inline uint64_t widenF16c(float* to, const uint16_t* from, uint64_t count) {
  uint64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  }
  return i;
}

__attribute__((target("avx,f16c"))) inline uint64_t narrowF16c(uint16_t* to, const float* from, uint64_t count) {
  uint64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), halves);
  }
  return i;
}
#else
inline bool hasF16c() { return false; }
inline uint64_t widenF16c(float*, const uint16_t*, uint64_t) { return 0; }
inline uint64_t narrowF16c(uint16_t*, const float*, uint64_t) { return 0; }
#endif

/// `from` may be any even address in a ring buffer; the conversions use unaligned loads.
inline void widen(float* to, const uint16_t* from, uint64_t count, DType dtype) {
  if (dtype == DType::BFloat16) {
    for (uint64_t i = 0; i < count; i++) to[i] = fromBFloat16(from[i]);
    return;
  }
  for (uint64_t i = hasF16c() ? widenF16c(to, from, count) : 0; i < count; i++) to[i] = fromFloat16(from[i]);
}

inline void narrow(uint16_t* to, const float* from, uint64_t count, DType dtype) {
  if (dtype == DType::BFloat16) {
    for (uint64_t i = 0; i < count; i++) to[i] = toBFloat16(from[i]);
    return;
  }
  for (uint64_t i = hasF16c() ? narrowF16c(to, from, count) : 0; i < count; i++) to[i] = toFloat16(from[i]);
}

inline void combine(float* acc, const float* in, uint64_t count, ReduceOp op, bool isFirst) {
  if (isFirst) {
    std::memcpy(acc, in, count * 4);
  } else if (op == ReduceOp::Max) {
    for (uint64_t i = 0; i < count; i++) acc[i] = acc[i] > in[i] || acc[i] != acc[i] ? acc[i] : in[i];
  } else {
    for (uint64_t i = 0; i < count; i++) acc[i] += in[i];
  }
}

}  // namespace detail

/// Computes acc = in for the first operand, else acc = acc + in or max(acc, in). A maximum propagates NaN.
inline void accumulate(float* acc, const void* in, uint64_t count, DType dtype, ReduceOp op, bool isFirst) {
  if (dtype == DType::Float32) return detail::combine(acc, static_cast<const float*>(in), count, op, isFirst);
  float widened[detail::kBlockElements];
  const auto* halves = static_cast<const uint16_t*>(in);
  for (uint64_t offset = 0; offset < count; offset += detail::kBlockElements) {
    const uint64_t n = count - offset < detail::kBlockElements ? count - offset : detail::kBlockElements;
    detail::widen(widened, halves + offset, n, dtype);
    detail::combine(acc + offset, widened, n, op, isFirst);
  }
}

/// Divides for a mean, and rounds to nearest even.
inline void finish(void* out, float* acc, uint64_t count, DType dtype, ReduceOp op, uint32_t operandCount) {
  if (op == ReduceOp::Mean) {
    for (uint64_t i = 0; i < count; i++) acc[i] /= static_cast<float>(operandCount);
  }
  if (dtype == DType::Float32) {
    std::memcpy(out, acc, count * 4);
  } else {
    detail::narrow(static_cast<uint16_t*>(out), acc, count, dtype);
  }
}

}  // namespace reduction

}  // namespace mosaic
