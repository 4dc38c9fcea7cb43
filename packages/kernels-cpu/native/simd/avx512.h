// The vector trait of AVX-512 (F, BW, VL, DQ): 16 lanes, 32 registers. The members of all traits are documented here.
#pragma once

#ifndef __AVX512F__
#error "avx512.h: expected a file compiled for AVX-512, received one without __AVX512F__"
#endif

#include <immintrin.h>

#include <cstdint>

#include "simd/exp2.h"
#include "simd/inline.h"
#include "simd/isa.h"

namespace mosaic {

struct Avx512 {
  static constexpr Isa isa = Isa::Avx512;
  static constexpr int lanes = 16;
  /// Shapes of register tiles: rows × vectors of accumulators. `tile` reads vectors from a packed panel, `wide` from
  /// plain rows, `narrow` one vector from a panel.
  static constexpr int tileRows = 8, tileVectors = 3, narrowTileRows = 16;
  static constexpr int wideTileRows = 6, wideVectors = 4;

  using Vec = __m512;
  using Mask = __mmask16;

  MOSAIC_INLINE Vec zero() { return _mm512_setzero_ps(); }
  MOSAIC_INLINE Vec set1(float x) { return _mm512_set1_ps(x); }
  /// Loads and stores need not be aligned.
  MOSAIC_INLINE Vec load(const float* p) { return _mm512_loadu_ps(p); }
  MOSAIC_INLINE void store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
  /// The first n lanes, 0 ≤ n ≤ lanes. The other lanes are loaded as 0, and their memory is not accessed.
  MOSAIC_INLINE Vec loadPartial(const float* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
  MOSAIC_INLINE void storePartial(float* p, Vec v, int n) { _mm512_mask_storeu_ps(p, first(n), v); }

  MOSAIC_INLINE Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
  MOSAIC_INLINE Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
  MOSAIC_INLINE Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
  MOSAIC_INLINE Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
  /// Returns a · b + c, rounded once (Scalar: twice).
  MOSAIC_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
  /// max and min return the second operand if either is NaN.
  MOSAIC_INLINE Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
  MOSAIC_INLINE Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }

  /// False if either is NaN.
  MOSAIC_INLINE Mask lessThan(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
  /// m ? a : b
  MOSAIC_INLINE Vec select(Mask m, Vec a, Vec b) { return _mm512_mask_blend_ps(m, b, a); }
  MOSAIC_INLINE bool any(Mask m) { return m != 0; }
  /// lo[lane] ≤ j < hi[lane]
  MOSAIC_INLINE Mask inRange(const int32_t* lo, const int32_t* hi, int32_t j) {
    const __m512i key = _mm512_set1_epi32(j);
    const __mmask16 from = _mm512_cmple_epi32_mask(_mm512_loadu_si512(lo), key);
    return _mm512_mask_cmpgt_epi32_mask(from, _mm512_loadu_si512(hi), key);
  }
  /// Any value if a lane is NaN.
  MOSAIC_INLINE float maxLane(Vec v) { return _mm512_reduce_max_ps(v); }
  MOSAIC_INLINE float sum(Vec v) { return _mm512_reduce_add_ps(v); }

  /// Whether exp2 returns ∞ from 128 on; otherwise any value.
  static constexpr bool isExp2Saturating = true;
  static constexpr bool storesBf16Denormals = true;
  /// Returns 2^x for x < 128: relative error below 1e-7; exactly 0 from −∞ to about −125.5; NaN for NaN.
  MOSAIC_INLINE Vec exp2(Vec x) { return exp2WithPolynomial(x, kExp2FloorCoefficients); }

  /// Conversions of `lanes` elements. Stores round to nearest even and preserve NaN.
  MOSAIC_INLINE Vec loadBf16(const uint16_t* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load16(p)), 16));
  }
  MOSAIC_INLINE void storeBf16(uint16_t* p, Vec v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i high = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    const __m512i half = _mm512_add_epi32(_mm512_set1_epi32(0x7fff), odd);
    const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, half), 16);
    const __m512i quietNan = _mm512_or_si512(high, _mm512_set1_epi32(0x40));
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    const __m256i packed = _mm512_cvtepi32_epi16(_mm512_mask_blend_epi32(nan, rounded, quietNan));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), packed);
  }
  MOSAIC_INLINE Vec loadF16(const uint16_t* p) { return _mm512_cvtph_ps(load16(p)); }
  MOSAIC_INLINE void storeF16(uint16_t* p, Vec v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }

  /// Deinterleaves the concatenation of a and b: a ← the elements with even indices, b ← those with odd indices.
  MOSAIC_INLINE void unzip(Vec& a, Vec& b) {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    const Vec low = a;
    a = _mm512_permutex2var_ps(low, even, b);
    b = _mm512_permutex2var_ps(low, odd, b);
  }
  /// The inverse of `unzip`.
  MOSAIC_INLINE void zip(Vec& a, Vec& b) {
    const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i second = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    const Vec even = a;
    a = _mm512_permutex2var_ps(even, first, b);
    b = _mm512_permutex2var_ps(even, second, b);
  }

  /// dst[c · ldd + r] ← src[r · lds + c] for `lanes` rows and columns. src and dst must not overlap.
  MOSAIC_INLINE void transpose(const float* src, int64_t lds, float* dst, int64_t ldd) {
    const auto row = [&](int i) __attribute__((always_inline)) { return load(src + i * lds); };
    transposeRows(row, [&](int c, Vec column) { store(dst + c * ldd, column); });
  }
  /// Calls column(c, …) for each c with the vector whose lane r is row(r)[c].
  template <class Row, class Column>
  MOSAIC_INLINE void transposeRows(const Row& row, const Column& column) {
    __m512 r[16], t[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) r[i] = row(i);
    for (int i = 0; i < 8; ++i) {
      t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
      t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 4; ++i) {  // r[4i + k]: rows 4i … 4i+3 of columns k, k+4, k+8, k+12
      r[4 * i + 0] = _mm512_shuffle_ps(t[4 * i], t[4 * i + 2], _MM_SHUFFLE(1, 0, 1, 0));
      r[4 * i + 1] = _mm512_shuffle_ps(t[4 * i], t[4 * i + 2], _MM_SHUFFLE(3, 2, 3, 2));
      r[4 * i + 2] = _mm512_shuffle_ps(t[4 * i + 1], t[4 * i + 3], _MM_SHUFFLE(1, 0, 1, 0));
      r[4 * i + 3] = _mm512_shuffle_ps(t[4 * i + 1], t[4 * i + 3], _MM_SHUFFLE(3, 2, 3, 2));
    }
    for (int k = 0; k < 4; ++k) {
      const __m512 a = _mm512_shuffle_f32x4(r[k], r[k + 4], 0x88);  // rows 0–7: columns k, k+8
      const __m512 b = _mm512_shuffle_f32x4(r[k], r[k + 4], 0xdd);  // rows 0–7: columns k+4, k+12
      const __m512 c = _mm512_shuffle_f32x4(r[k + 8], r[k + 12], 0x88);
      const __m512 d = _mm512_shuffle_f32x4(r[k + 8], r[k + 12], 0xdd);
      column(k, _mm512_shuffle_f32x4(a, c, 0x88));
      column(k + 8, _mm512_shuffle_f32x4(a, c, 0xdd));
      column(k + 4, _mm512_shuffle_f32x4(b, d, 0x88));
      column(k + 12, _mm512_shuffle_f32x4(b, d, 0xdd));
    }
  }

 protected:
  template <int size>
  MOSAIC_INLINE Vec exp2WithPolynomial(Vec x, const float (&coefficients)[size]) {
    const __mmask16 keep = _mm512_cmp_ps_mask(x, set1(kExp2Min), _CMP_NLT_UQ);  // true for NaN
    const Vec f = _mm512_reduce_ps(x, 9);                                         // x − floor(x)
    Vec p = set1(coefficients[size - 1]);
#pragma GCC unroll 8
    for (int i = size - 2; i >= 0; --i) p = fma(p, f, set1(coefficients[i]));
    return _mm512_maskz_scalef_ps(keep, p, x);  // p · 2^floor(x)
  }

 private:
  MOSAIC_INLINE __m256i load16(const uint16_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  MOSAIC_INLINE __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
};

}  // namespace mosaic
