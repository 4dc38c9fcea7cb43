// The inner loop shared by attention and matrix multiplication: a register tile of C = A · B.
//
// B is read as vectors, from a packed panel or from plain rows. A is read element by element and broadcast from memory,
// which is a load and does not use the multiply pipes. Elements are float32, or pairs of bfloat16 that are neighbors
// along the reduction dimension. A trait has products of pairs if it has a member `dot` (avx512_bf16.h), or tile
// registers (amx.h).
#pragma once

#include <cstdint>

#include "simd/inline.h"
#include "simd/prefetch.h"

namespace mosaic {

/// A matrix whose element (row, t), with t along the reduction dimension, is at data[row · rowStride + t · step]. For
/// pairs the step is 1, because their elements are contiguous.
struct Operand {
  const void* data;
  int64_t rowStride, step;
};

/// Shapes of register tiles: rows × vectors of accumulators. `rows` and `vectors` are for a packed panel, `wide…` for
/// plain rows, `narrowRows` for a panel of one vector.
template <class V>
struct PairShape {
  static constexpr int rows = V::tileRows, vectors = V::tileVectors, narrowRows = V::narrowTileRows;
  static constexpr int wideRows = V::wideTileRows, wideVectors = V::wideVectors;
};

/// Products of float32 operands.
struct Float32Operands {
  using Scalar = float;
  using Element = float;
  static constexpr int valuesPerElement = 1;
  template <class V>
  struct Shape {
    static constexpr int rows = V::tileRows, vectors = V::tileVectors, narrowRows = V::narrowTileRows;
    static constexpr int wideRows = V::wideTileRows, wideVectors = V::wideVectors;
  };

  template <class V>
  MOSAIC_INLINE auto load(const float* b) {
    return V::load(b);
  }
  template <class V>
  MOSAIC_INLINE typename V::Vec multiplyAdd(const float* a, typename V::Vec b, typename V::Vec c) {
    return V::fma(V::set1(*a), b, c);
  }
  template <class V>
  MOSAIC_INLINE typename V::Vec toVector(const float* p) {
    return V::load(p);
  }
  MOSAIC_INLINE float toFloat(float x) { return x; }
  /// Returns a score as computed by a product; multiplied by `scale` if queries are not premultiplied.
  template <class V>
  MOSAIC_INLINE typename V::Vec scaleScore(typename V::Vec s, typename V::Vec) {
    return s;
  }
  /// Returns 2^x for results that become an operand.
  template <class V>
  MOSAIC_INLINE typename V::Vec exp2(typename V::Vec x) {
    return V::exp2(x);
  }
};

/// Products of bfloat16 pairs, accumulated in float32.
struct Bf16Operands {
  using Scalar = uint16_t;
  using Element = uint32_t;  // the first of a pair in the low half
  static constexpr int valuesPerElement = 2;
  template <class V>
  struct Shape : PairShape<V> {};

  template <class V>
  MOSAIC_INLINE auto load(const uint32_t* b) {
    return V::loadPairs(b);
  }
  template <class V>
  MOSAIC_INLINE typename V::Vec multiplyAdd(const uint16_t* a, typename V::Pairs b, typename V::Vec c) {
    uint32_t pair;
    __builtin_memcpy(&pair, a, sizeof pair);
    return V::dot(V::setPairs(pair), b, c);
  }
  template <class V>
  MOSAIC_INLINE typename V::Vec toVector(const uint16_t* p) {
    return V::loadBf16(p);
  }
  MOSAIC_INLINE float toFloat(uint16_t x) {
    const uint32_t bits = uint32_t{x} << 16;
    float value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
  }
  /// The result is rounded before m is subtracted.
  template <class V>
  MOSAIC_INLINE typename V::Vec scaleScore(typename V::Vec s, typename V::Vec scale) {
    return V::preventFusion(V::mul(s, scale));
  }
  template <class V>
  MOSAIC_INLINE typename V::Vec exp2(typename V::Vec x) {
    return V::exp2Bf16(x);
  }
};

/// Scope of the setup that tiles of `V` require; its end restores the previous state.
template <class V>
class MatrixUnit {
 public:
  MatrixUnit() {}
};

template <class V, class E, int R, int N>
struct RegisterTile {
  using Vec = typename V::Vec;
  using Scalar = typename E::Scalar;
  static constexpr bool isAsynchronous = false;
  Vec accumulators[R][N];

  MOSAIC_INLINE Vec get(const RegisterTile& c, int r, int n) { return c.accumulators[r][n]; }
  MOSAIC_INLINE int32_t numSteps(int32_t depth) { return (depth + E::valuesPerElement - 1) / E::valuesPerElement; }

  /// c[r][·] ← Σ_t a[r][t] · b[t · bStep + ·], t < depth; bStep counts elements. `prefetch` makes one step per t.
  template <class P>
  MOSAIC_INLINE void product(RegisterTile& c, const Operand& a, const void* b, int64_t bStep, int32_t depth,
                             P& prefetch) {
#pragma GCC unroll 32
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) c.accumulators[r][n] = V::zero();
    }
    // One pointer per four rows: few enough pointers for the registers, with offsets that addressing modes can express.
    const auto* panel = static_cast<const typename E::Element*>(b);
    const int64_t row = a.rowStride, step = E::valuesPerElement == 1 ? a.step : 2, rows3 = 3 * row;
    const Scalar* rowPointers[(R + 3) / 4];
#pragma GCC unroll 8
    for (int i = 0; i < (R + 3) / 4; ++i) rowPointers[i] = static_cast<const Scalar*>(a.data) + 4 * i * row;
    const int32_t steps = numSteps(depth);
#pragma GCC unroll 4
    for (int32_t t = 0; t < steps; ++t) {
      prefetch.step();
      decltype(E::template load<V>(panel)) y[N];
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) y[n] = E::template load<V>(panel + t * bStep + n * V::lanes);
#pragma GCC unroll 32
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) {
          const int64_t offset = r % 4 == 0 ? 0 : r % 4 == 1 ? row : r % 4 == 2 ? 2 * row : rows3;
          c.accumulators[r][n] = E::template multiplyAdd<V>(rowPointers[r / 4] + offset, y[n], c.accumulators[r][n]);
        }
      }
#pragma GCC unroll 8
      for (int i = 0; i < (R + 3) / 4; ++i) rowPointers[i] += step;
    }
  }

  MOSAIC_INLINE void product(RegisterTile& c, const Operand& a, const void* b, int64_t bStep, int32_t depth) {
    NoPrefetch prefetch;
    product(c, a, b, bStep, depth, prefetch);
  }

  /// to += a · b. The sum of each block is computed separately and then added, so that rounding errors grow with the
  /// length of a block plus the number of blocks, not with their product. The additions overlap with multiplications
  /// and cost almost nothing.
  template <class P>
  MOSAIC_INLINE void addProduct(float* to, int64_t stride, const Operand& a, const void* b, int64_t bStep,
                                int32_t depth, P& prefetch) {
    RegisterTile c;
    auto sweep = prefetch.sweep(numSteps(depth));
    product(c, a, b, bStep, depth, sweep);
#pragma GCC unroll 32
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        float* row = to + r * stride + n * V::lanes;
        V::store(row, V::add(V::load(row), c.accumulators[r][n]));
      }
    }
  }
  MOSAIC_INLINE void addProduct(float* to, int64_t stride, const Operand& a, const void* b, int64_t bStep,
                                int32_t depth) {
    NoPrefetch prefetch;
    addProduct(to, stride, a, b, bStep, depth, prefetch);
  }
};

/// Returns the operand for the rows of a from `row` on.
template <class E>
MOSAIC_INLINE Operand rowsAt(const Operand& a, int64_t row) {
  return {static_cast<const typename E::Scalar*>(a.data) + row * a.rowStride, a.rowStride, a.step};
}

/// Like this for an operand whose rows are prepared when a tile reads them: calls a(row).
template <class E, class A>
MOSAIC_INLINE auto rowsAt(const A& a, int64_t row) -> decltype(a(row)) {
  return a(row);
}

/// Calls body.template operator()<R>(row) for tiles that cover rows [from, to): R rows each while they fit, then half
/// of R, or four after six, so that an even number of rows has no single-row tile, whose few sums wait for each other.
/// Tiles of 32 rows, those of tile registers, are not split, because operands are padded for them. The number of rows
/// is a multiple of `minRows`.
template <int R, int minRows = 1, class Body>
MOSAIC_INLINE void forEachTile(int32_t from, int32_t to, const Body& body) {
  for (; from + R <= to; from += R) body.template operator()<R>(from);
  if constexpr (R == 32) {
    if (from < to) body.template operator()<R>(from);
  } else if constexpr (R > minRows) {
    if (from < to) forEachTile<R == 6 ? 4 : R / 2, minRows>(from, to, body);
  }
}

/// Calls epilogue.template operator()<R>(tile, row) with tiles of a [rows from, to) · b, in order. With tile registers,
/// the computation of a tile overlaps with the epilogue of the previous tile. `a` is an operand of `rowsAt`.
template <class V, class E, int R, int N, class A, class P, class Epilogue>
MOSAIC_INLINE void forEachProductTile(int32_t from, int32_t to, const A& a, const void* b, int32_t depth,
                                      P& prefetch, const Epilogue& epilogue) {
  if constexpr (RegisterTile<V, E, R, N>::isAsynchronous) {
    using Tile = RegisterTile<V, E, R, N>;
    Tile c;
    if (from < to) Tile::product(c, rowsAt<E>(a, from), b, N * V::lanes, depth);
    for (int32_t j = from; j < to; j += R) {
      const bool hasNextTile = j + R < to;
      if (hasNextTile) Tile::begin(rowsAt<E>(a, j + R), b, N * V::lanes, depth);
      epilogue.template operator()<R>(c, j);
      if (hasNextTile) Tile::finish(c);
    }
  } else {
    forEachTile<R, E::valuesPerElement>(from, to, [&]<int rows>(int32_t j) __attribute__((always_inline)) {
      using Tile = RegisterTile<V, E, rows, N>;
      Tile c;
      auto sweep = prefetch.sweep(Tile::numSteps(depth));
      Tile::product(c, rowsAt<E>(a, j), b, N * V::lanes, depth, sweep);
      epilogue.template operator()<rows>(c, j);
    });
  }
}

template <class V, class E, int R, int N, class A, class Epilogue>
MOSAIC_INLINE void forEachProductTile(int32_t from, int32_t to, const A& a, const void* b, int32_t depth,
                                      const Epilogue& epilogue) {
  NoPrefetch prefetch;
  forEachProductTile<V, E, R, N>(from, to, a, b, depth, prefetch, epilogue);
}

}  // namespace mosaic
