// The innermost part of matrix multiplication: a tile of the product that stays in registers.
#pragma once

#include "kernels/loop.h"
#include "simd/isa.h"

namespace mosaic {
namespace {

/// Rows and vectors of accumulators. On plain C++ a vector is four registers wide, so the tile is small.
template <class T>
struct GemmTile {
  static constexpr bool plain = T::isa == Isa::Scalar;
  static constexpr int rows = plain ? 2 : T::wideTileRows;
  static constexpr int vectors = plain ? 1 : T::wideVectors;
  static constexpr int columns = vectors * T::lanes;
};

/// c [R, columns] ← a · b (+ c). Element (r, k) of a lies at a[r · rowStride + k · depthStride]; b is packed
/// [depth][GemmTile::columns]; c is float32 with dense rows.
struct TileArgs {
  const float* a;
  int64_t rowStride, depthStride;
  const float* b;
  int64_t depth;
  float* c;
  int64_t cStride;
  int64_t columns;  // of c to be written, 1 … GemmTile::columns
  bool add;
};

template <class T, int R, int N>
MOSAIC_INLINE void storeTile(const TileArgs& args, typename T::Vec (&sum)[R][N]) {
  for (int r = 0; r < R; r++) {
    float* row = args.c + r * args.cStride;
#pragma GCC unroll 8
    for (int v = 0; v < N; v++) {
      const int64_t left = args.columns - v * T::lanes;
      if (left >= T::lanes) {
        T::store(row + v * T::lanes, args.add ? T::add(T::load(row + v * T::lanes), sum[r][v]) : sum[r][v]);
      } else if (left > 0) {
        const int part = static_cast<int>(left);
        const auto before = args.add ? T::loadPartial(row + v * T::lanes, part) : T::zero();
        T::storePartial(row + v * T::lanes, T::add(before, sum[r][v]), part);
      }
    }
  }
}

/// `Dense`: a is dense along depth; otherwise along rows.
template <class T, int R, bool Dense>
MOSAIC_NOINLINE void multiplyTile(const TileArgs& args) {
  constexpr int N = GemmTile<T>::vectors;
  typename T::Vec sum[R][N];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
#pragma GCC unroll 8
    for (int v = 0; v < N; v++) sum[r][v] = T::zero();
  }
  const int64_t rowStep = Dense ? args.rowStride : 1, depthStep = Dense ? 1 : args.depthStride;
  const float* a = args.a;
  const float* b = args.b;
#pragma GCC unroll 2
  for (int64_t k = 0; k < args.depth; k++) {
    typename T::Vec column[N];
#pragma GCC unroll 8
    for (int v = 0; v < N; v++) column[v] = T::load(b + v * T::lanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      const auto each = T::set1(a[r * rowStep]);
#pragma GCC unroll 8
      for (int v = 0; v < N; v++) sum[r][v] = T::fma(each, column[v], sum[r][v]);
    }
    a += depthStep;
    b += GemmTile<T>::columns;
  }
  storeTile<T, R, N>(args, sum);
}

template <class T, bool Dense>
MOSAIC_INLINE void multiplyRows(const TileArgs& args, int64_t rows) {
  switch (rows) {
    case 1: return multiplyTile<T, 1, Dense>(args);
    case 2: return multiplyTile<T, 2, Dense>(args);
    case 3: return multiplyTile<T, 3, Dense>(args);
    case 4: return multiplyTile<T, 4, Dense>(args);
    case 5: return multiplyTile<T, 5, Dense>(args);
    default: return multiplyTile<T, GemmTile<T>::rows, Dense>(args);
  }
}

}  // namespace
}  // namespace mosaic
