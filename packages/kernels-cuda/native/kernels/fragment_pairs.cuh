// Maps elements of accumulators to their query and key, for score modifiers: 16 rows of a warp, laid out as in
// online_softmax.cuh.
#pragma once

#include "kernels/score_modifiers.cuh"

namespace mosaic::cuda {

/// Rows are queries and `row` is the lane's first row; columns are keys from key0 on.
struct RowsOfQueries {
  int row, key0;
  DEVICE Pair operator()(int n, int i) const {
    const int column = n * 8 + static_cast<int>(threadIdx.x & 3) * 2 + (i & 1);
    return {row + (i >> 1) * 8, key0 + column};
  }
};

/// Rows are keys and `key` is the lane's first key; columns are queries from row0 on.
struct RowsOfKeys {
  int key, row0;
  DEVICE Pair operator()(int n, int i) const {
    const auto [row, column] = RowsOfQueries{key, row0}(n, i);
    return {column, row};
  }
};

}  // namespace mosaic::cuda
