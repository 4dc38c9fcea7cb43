// Visibility as an interval of keys whose bounds are linear in the row: one span of queries, one of keys, one slice.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define HOST_AND_DEVICE __host__ __device__ __forceinline__
#else
#define HOST_AND_DEVICE inline
#endif

namespace mosaic::cuda {

/// A bound of the interval: a global position relative to the first key, `offset` for row 0, plus `slope` (or 0) for
/// each row. 32 bits, because 64-bit divisions are function calls; the host keeps all positions below kMaxPosition.
struct Edge {
  int32_t offset, slope;
};
constexpr int32_t kMaxPosition = (1 << 30) - 1;

/// Row i of `rows` attends to the keys [edgePosition(begin, i), edgePosition(end, i)) of `keys`, which are `step`
/// positions apart.
struct VisibleInterval {
  Edge begin, end;
  int32_t step, rows, keys;
};

/// Returns the number of keys before the edge.
HOST_AND_DEVICE int32_t edgePosition(const VisibleInterval& visible, const Edge& edge, int32_t row) {
  const int32_t position = edge.offset + row * edge.slope;
  if (position <= 0) return 0;
  if (position > (visible.keys - 1) * visible.step) return visible.keys;
  return visible.step == 1 ? position : (position + visible.step - 1) / visible.step;
}

/// Returns the first row whose edge is past `key`, or `rows` if there is none. Edges never decrease with the row.
HOST_AND_DEVICE int32_t firstRowBeyond(const VisibleInterval& visible, const Edge& edge, int32_t key) {
  const int32_t distance = key * visible.step - edge.offset;
  if (distance < 0) return 0;
  if (edge.slope == 0) return visible.rows;
  const int32_t row = (edge.slope == 1 ? distance : distance / edge.slope) + 1;
  return row < visible.rows ? row : visible.rows;
}

/// Consecutive local rows and consecutive local keys, and the visible pairs among them.
struct Part {
  int32_t row, key;  // the first of each
  VisibleInterval visible;
  /// The first block that owns these rows (or keys). Parts with the same rows (or keys) are adjacent and share blocks.
  int32_t block;
};

/// The global positions of a part: its first row, the distance between rows, and its first key. Keys are `visible.step`
/// apart. Used by position-dependent modifiers (score_modifiers.h), which require 31 bits.
struct PartPositions {
  int32_t row, rowStep, key;
};

/// Maximum number of parts per launch; more parts require more launches.
constexpr int kMaxParts = 64;
/// Size limit of kernel arguments on all drivers since CUDA 12.0; 12.1 and newer allow more.
constexpr unsigned kMaxArgumentBytes = 4096;
struct Parts {
  int32_t count;
  /// Added to a block's z index: 0 if the grid has all batch elements, else the batch element of these parts.
  int32_t batch;
  Part part[kMaxParts];
};

}  // namespace mosaic::cuda
