// Which query and which key the elements of accumulators belong to, for what modifies scores: 16 rows of a warp, laid
// out as in online_softmax.cuh.
#pragma once

#include "kernels/score_modifiers.cuh"

namespace mosaic::cuda {

/// Rows are queries, of which `row` is the lane's first; columns are keys from key0 on.
struct RowsOfQueries {
  int row, key0;
  DEVICE Pair operator()(int n, int i) const {
    const int column = n * 8 + static_cast<int>(threadIdx.x & 3) * 2 + (i & 1);
    return {row + (i >> 1) * 8, key0 + column};
  }
};

/// Rows are keys, of which `key` is the lane's first; columns are queries from row0 on.
struct RowsOfKeys {
  int key, row0;
  DEVICE Pair operator()(int n, int i) const {
    const auto [row, column] = RowsOfQueries{key, row0}(n, i);
    return {column, row};
  }
};

}  // namespace mosaic::cuda
