// Which keys a row sees, where it is an interval that moves evenly: one span of queries, one of keys, one slice.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define HOST_AND_DEVICE __host__ __device__ __forceinline__
#else
#define HOST_AND_DEVICE inline
#endif

namespace mosaic::cuda {

/// An end of the interval, before the first key: `at` for row 0, `by` further (or 0) for each row; as global positions.
struct Edge {
  int64_t at, by;
};

/// Row i of `rows` sees the keys [edgeOf(begin, i), edgeOf(end, i)) of `keys`, which lie `step` positions apart.
struct Visible {
  Edge begin, end;
  int64_t step;
  int32_t rows, keys;
};

/// Number of keys before the edge.
HOST_AND_DEVICE int32_t edgeOf(const Visible& visible, const Edge& edge, int32_t row) {
  const int64_t place = edge.at + row * edge.by;
  if (place <= 0) return 0;
  if (place > (visible.keys - 1) * visible.step) return visible.keys;
  return static_cast<int32_t>(visible.step == 1 ? place : (place + visible.step - 1) / visible.step);
}

/// The first row whose edge lies beyond `key`, for edges only move up; `rows` if there is none.
HOST_AND_DEVICE int32_t firstRowBeyond(const Visible& visible, const Edge& edge, int32_t key) {
  const int64_t ahead = key * visible.step - edge.at;
  if (ahead < 0) return 0;
  if (edge.by == 0) return visible.rows;
  const int64_t row = (edge.by == 1 ? ahead : ahead / edge.by) + 1;
  return row < visible.rows ? static_cast<int32_t>(row) : visible.rows;
}

}  // namespace mosaic::cuda
