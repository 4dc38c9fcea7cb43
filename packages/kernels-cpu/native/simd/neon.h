// The vector traits of Arm: NEON, which every 64-bit Arm has, and NEON with products of bfloat16 pairs. 4 lanes, 32
// registers. Members are documented in avx512.h.
#pragma once

#ifndef __aarch64__
#error "neon.h: expected a file compiled for 64-bit Arm, received one without __aarch64__"
#endif

#include <arm_neon.h>

#include <cstdint>

#include "simd/exp2.h"
#include "simd/inline.h"
#include "simd/isa.h"

namespace mosaic {

struct Neon {
  static constexpr Isa isa = Isa::Neon;
  static constexpr int lanes = 4;
  // 24 accumulators hide the FMA latency (4 cycles × 4 pipes of Neoverse V1 and V2). With 3 or 4 vectors of B and the
  // broadcasts of A, 28 to 30 registers are in use.
  static constexpr int tileRows = 8, tileVectors = 3;
  static constexpr int wideTileRows = 6, wideVectors = 4;
  static constexpr int narrowTileRows = 16;

  using Vec = float32x4_t;
  using Mask = uint32x4_t;  // all bits of a lane

  MOSAIC_INLINE Vec zero() { return vdupq_n_f32(0); }
  MOSAIC_INLINE Vec set1(float x) { return vdupq_n_f32(x); }
  MOSAIC_INLINE Vec load(const float* p) { return vld1q_f32(p); }
  MOSAIC_INLINE void store(float* p, Vec v) { vst1q_f32(p, v); }
  MOSAIC_INLINE Vec loadPartial(const float* p, int n) {
    switch (n) {
      case 0: return zero();
      case 1: return vld1q_lane_f32(p, zero(), 0);
      case 2: return vcombine_f32(vld1_f32(p), vdup_n_f32(0));
      case 3: return vld1q_lane_f32(p + 2, vcombine_f32(vld1_f32(p), vdup_n_f32(0)), 2);
      default: return load(p);
    }
  }
  MOSAIC_INLINE void storePartial(float* p, Vec v, int n) {
    switch (n) {
      case 0: return;
      case 1: return vst1q_lane_f32(p, v, 0);
      case 2: return vst1_f32(p, vget_low_f32(v));
      case 3: vst1_f32(p, vget_low_f32(v)); return vst1q_lane_f32(p + 2, v, 2);
      default: return store(p, v);
    }
  }

  MOSAIC_INLINE Vec add(Vec a, Vec b) { return vaddq_f32(a, b); }
  MOSAIC_INLINE Vec sub(Vec a, Vec b) { return vsubq_f32(a, b); }
  MOSAIC_INLINE Vec mul(Vec a, Vec b) { return vmulq_f32(a, b); }
  MOSAIC_INLINE Vec div(Vec a, Vec b) { return vdivq_f32(a, b); }
  MOSAIC_INLINE Vec fma(Vec a, Vec b, Vec c) { return vfmaq_f32(c, a, b); }
  // Not FMAX and FMIN, which return NaN if either operand is NaN.
  MOSAIC_INLINE Vec max(Vec a, Vec b) { return select(vcgtq_f32(a, b), a, b); }
  MOSAIC_INLINE Vec min(Vec a, Vec b) { return select(vcltq_f32(a, b), a, b); }

  MOSAIC_INLINE Mask lessThan(Vec a, Vec b) { return vcltq_f32(a, b); }
  MOSAIC_INLINE Vec select(Mask m, Vec a, Vec b) { return vbslq_f32(m, a, b); }
  MOSAIC_INLINE bool any(Mask m) { return vmaxvq_u32(m) != 0; }
  MOSAIC_INLINE Mask inRange(const int32_t* lo, const int32_t* hi, int32_t j) {
    const int32x4_t key = vdupq_n_s32(j);
    return vandq_u32(vcleq_s32(vld1q_s32(lo), key), vcgtq_s32(vld1q_s32(hi), key));
  }
  MOSAIC_INLINE float maxLane(Vec v) { return vmaxvq_f32(v); }
  MOSAIC_INLINE float sum(Vec v) { return vaddvq_f32(v); }

  static constexpr bool isExp2Saturating = false;
  static constexpr bool storesBf16Denormals = true;
  MOSAIC_INLINE Vec exp2(Vec x) {
    const Vec magic = set1(12582912.0f + 126.0f);  // see scalar.h for the arithmetic
    x = max(set1(-126.0f), x);
    const Vec shiftedX = add(x, magic);
    const Vec f = sub(x, sub(shiftedX, magic));
    Vec p = set1(2 * kExp2NearestCoefficients[6]);
    p = fma(p, f, set1(2 * kExp2NearestCoefficients[5]));
    p = fma(p, f, set1(2 * kExp2NearestCoefficients[4]));
    p = fma(p, f, set1(2 * kExp2NearestCoefficients[3]));
    p = fma(p, f, set1(2 * kExp2NearestCoefficients[2]));
    p = fma(p, f, set1(2 * kExp2NearestCoefficients[1]));
    p = fma(p, f, set1(2 * kExp2NearestCoefficients[0]));
    return mul(p, vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(shiftedX), 23)));
  }

  MOSAIC_INLINE Vec loadBf16(const uint16_t* p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
  MOSAIC_INLINE void storeBf16(uint16_t* p, Vec v) {
    const uint32x4_t bits = vreinterpretq_u32_f32(v);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
    const uint32x4_t quietNan = vorrq_u32(bits, vdupq_n_u32(0x400000));
    vst1_u16(p, vshrn_n_u32(vbslq_u32(vceqq_f32(v, v), rounded, quietNan), 16));
  }
  MOSAIC_INLINE Vec loadF16(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
  MOSAIC_INLINE void storeF16(uint16_t* p, Vec v) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(v))); }

  MOSAIC_INLINE void unzip(Vec& a, Vec& b) {
    const Vec low = a;
    a = vuzp1q_f32(low, b);
    b = vuzp2q_f32(low, b);
  }
  MOSAIC_INLINE void zip(Vec& a, Vec& b) {
    const Vec even = a;
    a = vzip1q_f32(even, b);
    b = vzip2q_f32(even, b);
  }

  MOSAIC_INLINE void transpose(const float* src, int64_t lds, float* dst, int64_t ldd) {
    const auto row = [&](int i) __attribute__((always_inline)) { return load(src + i * lds); };
    transposeRows(row, [&](int c, Vec column) { store(dst + c * ldd, column); });
  }
  template <class Row, class Column>
  MOSAIC_INLINE void transposeRows(const Row& row, const Column& column) {
    const float32x4_t a = row(0), b = row(1), c = row(2), d = row(3);
    const float64x2_t ab0 = doubles(vtrn1q_f32(a, b)), ab1 = doubles(vtrn2q_f32(a, b));  // columns 0, 2 and 1, 3
    const float64x2_t cd0 = doubles(vtrn1q_f32(c, d)), cd1 = doubles(vtrn2q_f32(c, d));
    column(0, floats(vtrn1q_f64(ab0, cd0)));
    column(1, floats(vtrn1q_f64(ab1, cd1)));
    column(2, floats(vtrn2q_f64(ab0, cd0)));
    column(3, floats(vtrn2q_f64(ab1, cd1)));
  }

 private:
  MOSAIC_INLINE float64x2_t doubles(float32x4_t v) { return vreinterpretq_f64_f32(v); }
  MOSAIC_INLINE float32x4_t floats(float64x2_t v) { return vreinterpretq_f32_f64(v); }
};

#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC

/// FEAT_BF16: Neoverse V1, N2, V2 (Graviton 3 and 4, Grace). Adds the members for pairs.
struct NeonBf16 : Neon {
  static constexpr Isa isa = Isa::NeonBf16;
  /// Each lane holds two neighbors along the reduction dimension, the first in the low half.
  using Pairs = uint32x4_t;

  MOSAIC_INLINE void storeBf16(uint16_t* p, Vec v) {
    vst1_u16(p, vreinterpret_u16_bf16(vcvt_bf16_f32(v)));
  }

  MOSAIC_INLINE Pairs loadPairs(const uint32_t* p) { return vld1q_u32(p); }
  MOSAIC_INLINE Pairs setPairs(uint32_t pair) {
    Pairs pairs = vdupq_n_u32(pair);
    // GCC 12 encodes a bfloat16 constant as the same number in float16: 1 (0x3f80) by fmov .8h, #1.0 (0x3c00).
    if (__builtin_constant_p(pair)) __asm__("" : "+w"(pairs));
    return pairs;
  }
  MOSAIC_INLINE void storePairs(uint32_t* p, Pairs v) { vst1q_u32(p, v); }
  /// Returns c plus both products of each lane (BFDOT). Denormal operands and results are treated as 0. The sum of the
  /// products and the sum with c are rounded to odd, unless the processor has FEAT_EBF16.
  MOSAIC_INLINE Vec dot(Pairs a, Pairs b, Vec c) {
    return vbfdotq_f32(c, vreinterpretq_bf16_u32(a), vreinterpretq_bf16_u32(b));
  }

  /// exp2 for results that will be rounded to bfloat16.
  MOSAIC_INLINE Vec exp2Bf16(Vec x) { return exp2(x); }

  /// Returns v as an opaque value, so that compilers do not fuse the operation that computed it with one that uses it.
  MOSAIC_INLINE Vec preventFusion(Vec v) {
    __asm__("" : "+w"(v));
    return v;
  }
  /// Rounds to nearest even. Returns the lanes of `low` followed by those of `high`.
  MOSAIC_INLINE Pairs roundToPairs(Vec low, Vec high) {
    return vreinterpretq_u32_bf16(vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(low), high));
  }
  /// Interleaves two rows, stored one after the other, into pairs of one lane of each row.
  MOSAIC_INLINE Pairs interleave(Pairs rows) {
    const uint16x8_t both = vreinterpretq_u16_u32(rows);
    return vreinterpretq_u32_u16(vzip1q_u16(both, vextq_u16(both, both, 4)));
  }
  MOSAIC_INLINE Pairs joinRows(const uint16_t* low, const uint16_t* high) {
    return vreinterpretq_u32_u16(vcombine_u16(vld1_u16(low), vld1_u16(high)));
  }
  MOSAIC_INLINE void storeRows(uint16_t* low, uint16_t* high, Pairs rows) {
    const uint16x8_t both = vreinterpretq_u16_u32(rows);
    vst1_u16(low, vget_low_u16(both));
    vst1_u16(high, vget_high_u16(both));
  }
};

#endif

}  // namespace mosaic
