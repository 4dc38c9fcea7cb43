// Transposition of squares of bfloat16 pairs, which packs operands into the order in which products of pairs read them.
#pragma once

#include <cstdint>

#include "simd/inline.h"

namespace mosaic {

template <class V>
struct PairPacking {
  static constexpr int L = V::lanes;

  /// to[p · stride + i] ← pair p of row i, for L rows of L pairs. `row(i)` returns the start of a row; null is a row of
  /// zeros.
  template <class Row>
  MOSAIC_INLINE void transpose(const Row& row, uint32_t* to, int64_t stride) {
    const auto loadBits = [&](int i) __attribute__((always_inline)) {
      const uint16_t* from = row(i);
      return from != nullptr ? V::load(reinterpret_cast<const float*>(from)) : V::zero();
    };
    const auto storeColumn = [&](int c, typename V::Vec column) __attribute__((always_inline)) {
      V::store(reinterpret_cast<float*>(to + c * stride), column);
    };
    V::transposeRows(loadBits, storeColumn);
  }

  /// to[c · stride + i] ← element c of row i, for 2 L rows of L columns, of which `columns` are stored. `stride` must
  /// be even.
  template <class Row>
  MOSAIC_INLINE void transposeRows(const Row& row, uint16_t* to, int64_t stride, int64_t columns) {
    const uint16_t zeros[L] = {};
    const auto loadBits = [&](int i) __attribute__((always_inline)) {
      const uint16_t *low = row(2 * i), *high = row(2 * i + 1);
      const auto rows = V::joinRows(low != nullptr ? low : zeros, high != nullptr ? high : zeros);
      return __builtin_bit_cast(typename V::Vec, V::interleave(rows));
    };
    const auto storeColumn = [&](int c, typename V::Vec column) __attribute__((always_inline)) {
      if (columns == L || c < columns) V::store(reinterpret_cast<float*>(to + c * stride), column);
    };
    V::transposeRows(loadBits, storeColumn);
  }

  /// to[c] ← the pair of elements c of two rows, for n columns, a multiple of L.
  MOSAIC_INLINE void pairRows(const uint16_t* low, const uint16_t* high, uint32_t* to, int64_t n) {
    for (int64_t c = 0; c < n; c += L) V::storePairs(to + c, V::interleave(V::joinRows(low + c, high + c)));
  }
};

}  // namespace mosaic
