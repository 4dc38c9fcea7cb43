// The vector trait of AVX-512 with BF16: Avx512 plus products of pairs. The members for pairs are documented here.
#pragma once

#ifndef __AVX512BF16__
#error "avx512_bf16.h: expected a file compiled for AVX-512 with BF16, received one without __AVX512BF16__"
#endif

#include "simd/avx512.h"

namespace mosaic {

struct Avx512Bf16 : Avx512 {
  static constexpr Isa isa = Isa::Avx512Bf16;
  /// Each lane holds two neighbors along the reduction dimension, the first in the low half.
  using Pairs = __m512i;

  MOSAIC_INLINE Pairs loadPairs(const uint32_t* p) { return _mm512_loadu_si512(p); }
  MOSAIC_INLINE Pairs setPairs(uint32_t pair) { return _mm512_set1_epi32(static_cast<int>(pair)); }
  MOSAIC_INLINE void storePairs(uint32_t* p, Pairs v) { _mm512_storeu_si512(p, v); }
  /// Returns c plus both products of each lane. Denormal operands and results are treated as 0.
  MOSAIC_INLINE Vec dot(Pairs a, Pairs b, Vec c) {
    return _mm512_dpbf16_ps(c, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }

  /// exp2 for results that will be rounded to bfloat16: relative error below 4e-6.
  MOSAIC_INLINE Vec exp2Bf16(Vec x) { return exp2WithPolynomial(x, kExp2Bf16Coefficients); }

  /// Returns v as an opaque value, so that compilers do not fuse the operation that computed it with one that uses it.
  MOSAIC_INLINE Vec preventFusion(Vec v) {
    __asm__("" : "+v"(v));
    return v;
  }
  static constexpr bool storesBf16Denormals = false;
  /// Like Avx512::storeBf16 in one instruction, except that denormals are stored as 0, which they are as operands.
  MOSAIC_INLINE void storeBf16(uint16_t* p, Vec v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v)));
  }
  /// Rounds to nearest even, denormals to 0. Returns the lanes of `low` followed by those of `high`.
  MOSAIC_INLINE Pairs roundToPairs(Vec low, Vec high) {
    return reinterpret_cast<Pairs>(_mm512_cvtne2ps_pbh(high, low));
  }
  /// Interleaves two rows, stored one after the other, into pairs of one lane of each row.
  MOSAIC_INLINE Pairs interleave(Pairs rows) { return _mm512_permutexvar_epi16(interleaved(), rows); }
  MOSAIC_INLINE Pairs joinRows(const uint16_t* low, const uint16_t* high) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(load16(low)), load16(high), 1);
  }
  MOSAIC_INLINE void storeRows(uint16_t* low, uint16_t* high, Pairs rows) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(low), _mm512_castsi512_si256(rows));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(high), _mm512_extracti64x4_epi64(rows, 1));
  }

 private:
  MOSAIC_INLINE __m256i load16(const uint16_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  MOSAIC_INLINE __m512i interleaved() {
    return _mm512_set_epi32(0x1f000f, 0x1e000e, 0x1d000d, 0x1c000c, 0x1b000b, 0x1a000a, 0x190009, 0x180008, 0x170007,
                            0x160006, 0x150005, 0x140004, 0x130003, 0x120002, 0x110001, 0x100000);
  }
};

}  // namespace mosaic
