// The vector trait of AVX2 with FMA and F16C: 8 lanes, 16 registers. Members are documented in avx512.h.
#pragma once

#ifndef __AVX2__
#error "avx2.h: expected a file compiled for AVX2, received one without __AVX2__"
#endif

#include <immintrin.h>

#include <cstdint>

#include "simd/exp2.h"
#include "simd/inline.h"
#include "simd/isa.h"

namespace mosaic {

struct Avx2 {
  static constexpr Isa isa = Isa::Avx2;
  static constexpr int lanes = 8;
  // 12 accumulators hide the FMA latency (4 cycles × 2 pipes). With 3 or 2 vectors and 1 broadcast, all 16 are in use.
  static constexpr int tileRows = 4, tileVectors = 3, narrowTileRows = 8;
  static constexpr int wideTileRows = 6, wideVectors = 2;

  using Vec = __m256;
  using Mask = __m256;  // all bits of a lane

  MOSAIC_INLINE Vec zero() { return _mm256_setzero_ps(); }
  MOSAIC_INLINE Vec set1(float x) { return _mm256_set1_ps(x); }
  MOSAIC_INLINE Vec load(const float* p) { return _mm256_loadu_ps(p); }
  MOSAIC_INLINE void store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
  MOSAIC_INLINE Vec loadPartial(const float* p, int n) { return _mm256_maskload_ps(p, first(n)); }
  MOSAIC_INLINE void storePartial(float* p, Vec v, int n) { _mm256_maskstore_ps(p, first(n), v); }

  MOSAIC_INLINE Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
  MOSAIC_INLINE Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
  MOSAIC_INLINE Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
  MOSAIC_INLINE Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
  MOSAIC_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
  MOSAIC_INLINE Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
  MOSAIC_INLINE Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }

  MOSAIC_INLINE Mask lessThan(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
  MOSAIC_INLINE Vec select(Mask m, Vec a, Vec b) { return _mm256_blendv_ps(b, a, m); }
  MOSAIC_INLINE bool any(Mask m) { return _mm256_movemask_ps(m) != 0; }
  MOSAIC_INLINE Mask inRange(const int32_t* lo, const int32_t* hi, int32_t j) {
    const __m256i key = _mm256_set1_epi32(j);
    const __m256i below = _mm256_cmpgt_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(lo)), key);
    const __m256i under = _mm256_cmpgt_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(hi)), key);
    return _mm256_castsi256_ps(_mm256_andnot_si256(below, under));
  }
  MOSAIC_INLINE float maxLane(Vec v) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
  }
  MOSAIC_INLINE float sum(Vec v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }

  static constexpr bool isExp2Saturating = false;
  static constexpr bool storesBf16Denormals = true;
  MOSAIC_INLINE Vec exp2(Vec x) {
    // Additions use other pipes than multiplications: this costs 8 multiply slots. See scalar.h for the arithmetic.
    const Vec magic = set1(12582912.0f + 126.0f);
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
    return mul(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(shiftedX), 23)));
  }

  MOSAIC_INLINE Vec loadBf16(const uint16_t* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load8(p)), 16));
  }
  MOSAIC_INLINE void storeBf16(uint16_t* p, Vec v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i high = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const __m256i half = _mm256_add_epi32(_mm256_set1_epi32(0x7fff), odd);
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
    const __m256i quietNan = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i out = _mm256_blendv_epi8(rounded, quietNan, nan);
    const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(out), _mm256_extracti128_si256(out, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
  }
  MOSAIC_INLINE Vec loadF16(const uint16_t* p) { return _mm256_cvtph_ps(load8(p)); }
  MOSAIC_INLINE void storeF16(uint16_t* p, Vec v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }

  MOSAIC_INLINE void unzip(Vec& a, Vec& b) {
    const Vec even = _mm256_shuffle_ps(a, b, 0x88), odd = _mm256_shuffle_ps(a, b, 0xdd);  // within each 128-bit lane
    a = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(even), 0xd8));
    b = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(odd), 0xd8));
  }
  MOSAIC_INLINE void zip(Vec& a, Vec& b) {
    const Vec low = _mm256_unpacklo_ps(a, b), high = _mm256_unpackhi_ps(a, b);
    a = _mm256_permute2f128_ps(low, high, 0x20);
    b = _mm256_permute2f128_ps(low, high, 0x31);
  }

  MOSAIC_INLINE void transpose(const float* src, int64_t lds, float* dst, int64_t ldd) {
    const auto row = [&](int i) __attribute__((always_inline)) { return load(src + i * lds); };
    transposeRows(row, [&](int c, Vec column) { store(dst + c * ldd, column); });
  }
  template <class Row, class Column>
  MOSAIC_INLINE void transposeRows(const Row& row, const Column& column) {
    __m256 r[8], t[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) r[i] = row(i);
    for (int i = 0; i < 4; ++i) {
      t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
      t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 2; ++i) {  // rows 4i … 4i+3, columns k and k+4
      r[4 * i + 0] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], _MM_SHUFFLE(1, 0, 1, 0));
      r[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], _MM_SHUFFLE(3, 2, 3, 2));
      r[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], _MM_SHUFFLE(1, 0, 1, 0));
      r[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], _MM_SHUFFLE(3, 2, 3, 2));
    }
    for (int i = 0; i < 4; ++i) {
      column(i, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
      column(i + 4, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
  }

 private:
  MOSAIC_INLINE __m128i load8(const uint16_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
  MOSAIC_INLINE __m256i first(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
};

}  // namespace mosaic
