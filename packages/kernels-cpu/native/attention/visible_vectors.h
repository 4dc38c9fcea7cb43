// Which vectors of rows attend to which keys of a block. Where a diagonal of the mask crosses a block, about half of
// its pairs are masked. If no row of a vector attends to a key of a tile, kernels skip the vector.
#pragma once

#include <cstdint>

#include "attention/attention_kernels.h"
#include "simd/inline.h"
#include "simd/register_tile.h"

namespace mosaic {

/// Rows of register tiles of N vectors that read a panel.
template <class V, class E, int N>
inline constexpr int kTileRows = N == 1 && N != E::template Shape<V>::vectors ? E::template Shape<V>::narrowRows
                                                                              : E::template Shape<V>::rows;

/// Keys [begin, end) of a block that are visible to vectors of rows from the first on.
struct KeyStrip {
  int32_t begin, end;
  int first;
};

/// The visible keys of each of the N vectors of a panel, as intervals of positions within a block.
template <class V, int N>
class VisibleVectors {
 public:
  static constexpr int L = V::lanes;

  /// `rowCount`: rows of the panel; the others are padding, which attends to no key.
  __attribute__((always_inline)) VisibleVectors(const VisibleKeys& bounds, int32_t firstKey, int32_t rowCount = N * L) {
    for (int n = 0; n < N; ++n) {
      int32_t begin = INT32_MAX, end = 0;
      for (int i = n * L; i < n * L + L; ++i) {  // compiled to vectors
        const int32_t lo = bounds.lo[i], hi = bounds.hi[i];
        const bool isEmpty = lo >= hi;
        begin = isEmpty || begin < lo ? begin : lo;
        end = isEmpty || end > hi ? end : hi;
      }
      const bool isUsed = begin < end && n * L < rowCount;
      begin_[n] = isUsed ? begin - firstKey : INT32_MAX;
      end_[n] = isUsed ? end - firstKey : INT32_MIN;
    }
  }

  /// Every vector with rows attends to every key.
  __attribute__((always_inline)) explicit VisibleVectors(int32_t rowCount) {
    for (int n = 0; n < N; ++n) {
      begin_[n] = n * L < rowCount ? 0 : INT32_MAX;
      end_[n] = n * L < rowCount ? INT32_MAX : INT32_MIN;
    }
  }

  /// Calls body.template operator()<count>(strip) for strips of keys that cover [from, to) in order: vectors [first,
  /// first + count) attend to keys of the strip, all others to none. `count` may be 0. Strips consist of tiles of R
  /// keys.
  template <int R, class Body>
  __attribute__((always_inline)) void forEachStrip(int32_t from, int32_t to, const Body& body) const {
    while (from < to) {
      const Vectors vectors = vectorsOf(from, from + R);
      int32_t end = from + R;
      while (end < to && vectorsOf(end, end + R) == vectors) end += R;
      end = end < to ? end : to;
      call<N>(vectors.count, KeyStrip{from, end, vectors.first}, body);
      from = end;
    }
  }

 private:
  struct Vectors {
    int first, count;
    bool operator==(const Vectors&) const = default;
  };

  /// Returns the range from the first to the last vector that attends to a key of [from, to).
  __attribute__((always_inline)) Vectors vectorsOf(int32_t from, int32_t to) const {
    int first = N, end = 0;
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      const bool isVisible = begin_[n] < to && end_[n] > from;
      first = isVisible && n < first ? n : first;
      end = isVisible ? n + 1 : end;
    }
    return first < end ? Vectors{first, end - first} : Vectors{0, 0};
  }

  template <int count, class Body>
  __attribute__((always_inline)) void call(int vectors, const KeyStrip& strip, const Body& body) const {
    if (vectors == count) return body.template operator()<count>(strip);
    if constexpr (count > 0) call<count - 1>(vectors, strip, body);
  }

  int32_t begin_[N], end_[N];
};

}  // namespace mosaic
