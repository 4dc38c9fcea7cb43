// The one inner loop of attention: a register tile of C += A · B.
//
// Forward: scores = K · Q', out' += V' · P. Backward: scores and dP like scores, dq' += K' · dS, dv += P · dOut and
// dk += dS · Q. In each, B is read as vectors and A element by element, broadcast from memory, which is a load and
// leaves the multiply pipes alone.
#pragma once

#include <cstdint>

#include "simd/inline.h"

namespace mosaic {

template <class V, int R, int N>
struct RegisterTile {
  using Vec = typename V::Vec;
  Vec at[R][N];

  MOSAIC_INLINE void clear(RegisterTile& c) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) c.at[r][n] = V::zero();
    }
  }

  MOSAIC_INLINE void store(const RegisterTile& c, float* to, int64_t stride) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) V::store(to + r * stride + n * V::lanes, c.at[r][n]);
    }
  }

  /// Adds the same vectors to every row.
  MOSAIC_INLINE void addToRows(RegisterTile& c, const float* row) {
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      const Vec x = V::load(row + n * V::lanes);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) c.at[r][n] = V::add(c.at[r][n], x);
    }
  }

  /// to += c. Sums of blocks are added to the sum of all, so that rounding errors grow with the length of a block and
  /// the number of blocks, not with their product; additions run beside multiplications and cost next to nothing.
  MOSAIC_INLINE void addTo(const RegisterTile& c, float* to, int64_t stride) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        float* at = to + r * stride + n * V::lanes;
        V::store(at, V::add(V::load(at), c.at[r][n]));
      }
    }
  }

  /// c[r][·] += Σ_t a[r · aRow + t · aStep] · b[t · bStep + ·]
  MOSAIC_INLINE void multiply(RegisterTile& c, const float* a, int64_t aRow, int64_t aStep, const float* b,
                              int64_t bStep, int32_t depth) {
#pragma GCC unroll 4
    for (int32_t t = 0; t < depth; ++t) {
      Vec y[N];
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) y[n] = V::load(b + t * bStep + n * V::lanes);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const Vec x = V::set1(a[r * aRow + t * aStep]);
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) c.at[r][n] = V::fma(x, y[n], c.at[r][n]);
      }
    }
  }
};

/// Calls body.template operator()<R>(row) for tiles that cover rows [from, to): as many of R as fit, then halves of it.
template <int R, class Body>
MOSAIC_INLINE void forTiles(int32_t from, int32_t to, const Body& body) {
  for (; from + R <= to; from += R) body.template operator()<R>(from);
  if constexpr (R > 1) {
    if (from < to) forTiles<R / 2>(from, to, body);
  }
}

}  // namespace mosaic
