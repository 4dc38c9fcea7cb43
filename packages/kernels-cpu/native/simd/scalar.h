// The vector trait of plain C++: 16 lanes, so that every edge case of AVX-512 kernels can be tested on any machine.
//
// All traits have the same members, and kernels use no others; avx512.h documents those that need it.
// GCC and Clang lower these vectors to whatever the baseline has (SSE2, NEON, or loops).
#pragma once

#include <cstdint>
#include <cstring>

#include "simd/exp2.h"
#include "simd/inline.h"
#include "simd/isa.h"

namespace mosaic {

struct Scalar {
  static constexpr Isa isa = Isa::Scalar;
  static constexpr int lanes = 16;
  // As many lanes as AVX-512, but tiles that fit the 16 registers of SSE2, where a vector takes four registers.
  static constexpr int tileRows = 2, tileVectors = 1, narrowTileRows = 2;
  static constexpr int wideTileRows = 2, wideVectors = 1;

  typedef float Vec __attribute__((vector_size(64)));
  typedef int32_t Int __attribute__((vector_size(64)));
  typedef uint32_t Bits __attribute__((vector_size(64)));
  typedef uint16_t Half __attribute__((vector_size(32)));
  using Mask = Int;  // 0 or −1 in each lane

  MOSAIC_INLINE Vec zero() { return Vec{}; }
  MOSAIC_INLINE Vec set1(float x) { return Vec{} + x; }
  MOSAIC_INLINE Vec load(const float* p) {
    Vec v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  MOSAIC_INLINE void store(float* p, Vec v) { std::memcpy(p, &v, sizeof v); }
  MOSAIC_INLINE Vec loadPartial(const float* p, int n) {
    Vec v = zero();
    std::memcpy(&v, p, static_cast<size_t>(n) * sizeof(float));
    return v;
  }
  MOSAIC_INLINE void storePartial(float* p, Vec v, int n) {
    std::memcpy(p, &v, static_cast<size_t>(n) * sizeof(float));
  }

  MOSAIC_INLINE Vec add(Vec a, Vec b) { return a + b; }
  MOSAIC_INLINE Vec sub(Vec a, Vec b) { return a - b; }
  MOSAIC_INLINE Vec mul(Vec a, Vec b) { return a * b; }
  MOSAIC_INLINE Vec div(Vec a, Vec b) { return a / b; }
  MOSAIC_INLINE Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
  MOSAIC_INLINE Vec max(Vec a, Vec b) { return select(a > b, a, b); }
  MOSAIC_INLINE Vec min(Vec a, Vec b) { return select(a < b, a, b); }

  MOSAIC_INLINE Mask lessThan(Vec a, Vec b) { return a < b; }
  MOSAIC_INLINE Vec select(Mask m, Vec a, Vec b) { return reinterpret_cast<Vec>((m & Int(a)) | (~m & Int(b))); }
  MOSAIC_INLINE bool any(Mask m) {
    int32_t seen = 0;
    for (int i = 0; i < lanes; ++i) seen |= m[i];
    return seen != 0;
  }
  MOSAIC_INLINE Mask inRange(const int32_t* lo, const int32_t* hi, int32_t j) {
    Int low, high;
    std::memcpy(&low, lo, sizeof low);
    std::memcpy(&high, hi, sizeof high);
    return (low <= j) & (j < high);
  }
  MOSAIC_INLINE float maxLane(Vec v) {
    float largest = v[0];
    for (int i = 1; i < lanes; ++i) largest = v[i] > largest ? v[i] : largest;
    return largest;
  }
  MOSAIC_INLINE float sum(Vec v) {
    float total = 0;
    for (int i = 0; i < lanes; ++i) total += v[i];
    return total;
  }

  static constexpr bool isExp2Saturating = false;
  static constexpr bool storesBf16Denormals = true;
  MOSAIC_INLINE Vec exp2(Vec x) {
    const Vec magic = set1(12582912.0f + 126.0f);  // 1.5·2²³: adding it leaves round(x) + 126 in the low bits
    x = max(set1(-126.0f), x);                     // max returns its second operand if that is NaN
    const Vec shiftedX = x + magic;
    const Vec f = x - (shiftedX - magic);
    Vec p = set1(2 * kExp2NearestCoefficients[6]);
    for (int i = 5; i >= 0; --i) p = p * f + set1(2 * kExp2NearestCoefficients[i]);
    return p * reinterpret_cast<Vec>(Bits(shiftedX) << 23);  // 2·2^f · 2^(n−1); n = −126 gives exponent bits 0: exact 0
  }

  MOSAIC_INLINE Vec loadBf16(const uint16_t* p) {
    Half h;
    std::memcpy(&h, p, sizeof h);
    return reinterpret_cast<Vec>(__builtin_convertvector(h, Bits) << 16);
  }
  MOSAIC_INLINE void storeBf16(uint16_t* p, Vec v) {
    const Bits bits = Bits(v);
    const Bits roundedBits = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const Bits quietNan = (bits >> 16) | 0x40u;
    const Bits nanMask = Bits(v != v);
    const Half h = __builtin_convertvector((nanMask & quietNan) | (~nanMask & roundedBits), Half);
    std::memcpy(p, &h, sizeof h);
  }
  MOSAIC_INLINE Vec loadF16(const uint16_t* p) {
    Half h;
    std::memcpy(&h, p, sizeof h);
    const Bits bits = __builtin_convertvector(h, Bits);
    // Interpret exponent and mantissa as a float32 that is 2^112 times too small, which also decodes denormals; then
    // scale.
    const Vec magnitude = reinterpret_cast<Vec>((bits & 0x7fffu) << 13) * set1(0x1p112f);
    const Bits specialMask = Bits(magnitude >= set1(65536.0f));  // exponent 31: infinity or NaN
    return reinterpret_cast<Vec>(Bits(magnitude) | (specialMask & 0x7f800000u) | ((bits & 0x8000u) << 16));
  }
  MOSAIC_INLINE void storeF16(uint16_t* p, Vec v) {
    for (int i = 0; i < lanes; ++i) p[i] = halfFromFloat(v[i]);
  }

  MOSAIC_INLINE void unzip(Vec& a, Vec& b) {
    const Vec inputs[2] = {a, b};
    for (int i = 0; i < lanes; ++i) {
      const Vec& x = inputs[2 * i / lanes];
      a[i] = x[2 * i % lanes];
      b[i] = x[2 * i % lanes + 1];
    }
  }
  MOSAIC_INLINE void zip(Vec& a, Vec& b) {
    const Vec even = a, odd = b;
    for (int i = 0; i < lanes; ++i) {
      // GCC 12 stores to a copy if the conditional expression itself is indexed, under -fsanitize=undefined.
      Vec& out = i < lanes / 2 ? a : b;
      out[2 * i % lanes] = even[i];
      out[2 * i % lanes + 1] = odd[i];
    }
  }

  MOSAIC_INLINE void transpose(const float* src, int64_t lds, float* dst, int64_t ldd) {
    const auto row = [&](int r) { return load(src + r * lds); };
    transposeRows(row, [&](int c, Vec column) { store(dst + c * ldd, column); });
  }
  template <class Row, class Column>
  MOSAIC_INLINE void transposeRows(const Row& row, const Column& column) {
    Vec columns[lanes];
    for (int r = 0; r < lanes; ++r) {
      const Vec v = row(r);
      for (int c = 0; c < lanes; ++c) columns[c][r] = v[c];
    }
    for (int c = 0; c < lanes; ++c) column(c, columns[c]);
  }

 private:
  // Rounds to nearest even. For denormals, adding 0.5, whose ulp is the denormal unit, makes the FPU do the rounding.
  MOSAIC_INLINE uint16_t halfFromFloat(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    const uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds to 65536 or more
    if (magnitude < 0x38800000u) {                                               // below 2⁻¹⁴: a denormal
      float y;
      std::memcpy(&y, &magnitude, sizeof y);
      y += 0.5f;  // its last place is 2⁻²⁴, the denormal unit of float16
      uint32_t shiftedBits;
      std::memcpy(&shiftedBits, &y, sizeof shiftedBits);
      return static_cast<uint16_t>(sign | (shiftedBits - 0x3f000000u));
    }
    return static_cast<uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13));
  }
};

}  // namespace mosaic
