// Which keys a row sees, where that is an interval that moves evenly: one span of queries, one of keys, one slice.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define HOST_AND_DEVICE __host__ __device__ __forceinline__
#else
#define HOST_AND_DEVICE inline
#endif

namespace mosaic::cuda {

/// An end of the interval: before the first key it is `offset` for row 0, `slope` further (or 0) for each row; as
/// global positions. 32 bits, for 64-bit divisions are calls: the host keeps everything below kMaxPosition.
struct Edge {
  int32_t offset, slope;
};
constexpr int32_t kMaxPosition = (1 << 30) - 1;

/// Row i of `rows` sees the keys [edgePosition(begin, i), edgePosition(end, i)) of `keys`, which lie `step` positions
/// apart.
struct VisibleInterval {
  Edge begin, end;
  int32_t step, rows, keys;
};

/// Number of keys before the edge.
HOST_AND_DEVICE int32_t edgePosition(const VisibleInterval& visible, const Edge& edge, int32_t row) {
  const int32_t position = edge.offset + row * edge.slope;
  if (position <= 0) return 0;
  if (position > (visible.keys - 1) * visible.step) return visible.keys;
  return visible.step == 1 ? position : (position + visible.step - 1) / visible.step;
}

/// The first row whose edge lies beyond `key`, for edges only move up; `rows` if there is none.
HOST_AND_DEVICE int32_t firstRowBeyond(const VisibleInterval& visible, const Edge& edge, int32_t key) {
  const int32_t distance = key * visible.step - edge.offset;
  if (distance < 0) return 0;
  if (edge.slope == 0) return visible.rows;
  const int32_t row = (edge.slope == 1 ? distance : distance / edge.slope) + 1;
  return row < visible.rows ? row : visible.rows;
}

/// Consecutive local rows and consecutive local keys, and what is visible among them.
struct Part {
  int32_t row, key;  // the first of each
  VisibleInterval visible;
  /// The first block that owns these rows (or these keys). Parts of the same are neighbours and have blocks in common.
  int32_t block;
};

/// Where a part lies among all positions: its first row, how far rows are apart, its first key. Keys are `visible.step`
/// apart. For what goes by position (score_modifiers.h), which needs 31 bits.
struct PartPositions {
  int32_t row, rowStep, key;
};

/// What one launch takes; more parts take more launches.
constexpr int kMaxParts = 64;
/// What every driver since CUDA 12.0 takes as a kernel's arguments; 12.1 and newer take more.
constexpr unsigned kMaxArgumentBytes = 4096;
struct Parts {
  int32_t count;
  /// Added to a block's place along z: 0 where the grid has all batch elements, else the one whose parts these are.
  int32_t batch;
  Part part[kMaxParts];
};

}  // namespace mosaic::cuda
