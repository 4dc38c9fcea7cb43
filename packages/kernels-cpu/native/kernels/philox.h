// Philox4x32-10 (Salmon, Moraes, Dror and Shaw 2011): four random words from a counter and a key.
#pragma once

#include "kernels/math.h"

namespace mosaic {
namespace {

/// Computes the two halves of x · m, lane by lane.
template <class T>
MOSAIC_INLINE void mulWide(Bits<T> x, uint32_t m, Bits<T>& low, Bits<T>& high) {
#if defined(__AVX512F__)
  const __m512i each = reinterpret_cast<__m512i>(x), factor = _mm512_set1_epi64(m);
  const __m512i even = _mm512_mul_epu32(each, factor), odd = _mm512_mul_epu32(_mm512_srli_epi64(each, 32), factor);
  low = reinterpret_cast<Bits<T>>(_mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32)));
  high = reinterpret_cast<Bits<T>>(_mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd));
#elif defined(__AVX2__)
  const __m256i each = reinterpret_cast<__m256i>(x), factor = _mm256_set1_epi64x(m);
  const __m256i even = _mm256_mul_epu32(each, factor), odd = _mm256_mul_epu32(_mm256_srli_epi64(each, 32), factor);
  low = reinterpret_cast<Bits<T>>(_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa));
  high = reinterpret_cast<Bits<T>>(_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa));
#else
  for (int lane = 0; lane < T::lanes; lane++) {
    const uint64_t product = uint64_t{m} * x[lane];
    low[lane] = static_cast<uint32_t>(product);
    high[lane] = static_cast<uint32_t>(product >> 32);
  }
#endif
}

/// Replaces the counter of each lane by its random words. All lanes have the same key.
template <class T>
MOSAIC_INLINE void runPhiloxRounds(Bits<T> (&words)[4], uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; round++) {
    Bits<T> low[2], high[2];
    mulWide<T>(words[0], 0xD2511F53u, low[0], high[0]);
    mulWide<T>(words[2], 0xCD9E8D57u, low[1], high[1]);
    words[0] = high[1] ^ words[1] ^ key0;
    words[1] = low[1];
    words[2] = high[0] ^ words[3] ^ key1;
    words[3] = low[0];
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

}  // namespace
}  // namespace mosaic
