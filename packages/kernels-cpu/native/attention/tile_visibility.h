// The keys visible to the rows of a tile, in local indices. This is the only place that combines masks and placements.
//
// Through one slice, the keys of one span that are visible to a row form one interval of local indices, for any slice
// type and any placement of rows and keys. A panel therefore has one interval per row for each slice and span. Keys in
// the intersection of these intervals need no masking; keys outside their hull are skipped.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/attention.h"
#include "attention/attention_kernels.h"
#include "pool/pool.h"

namespace mosaic {

/// Local indices [begin, end).
struct Range {
  int64_t begin, end;
};

/// The keys of one span that are visible to the rows of a panel through one slice.
struct Segment {
  int32_t begin, end;          // the hull: no key outside is visible to any row
  int32_t coreBegin, coreEnd;  // keys visible to every row; begin = end if there are none
  VisibleKeys bounds;             // per row; padding rows repeat the last row, so that padding never requires masking
};

/// The rows of a panel: the first `count` of its `width`.
struct PanelRows {
  int64_t first;
  int32_t count, width;
};

/// Throws std::invalid_argument unless the spans of a tile have as many positions as there are rows and keys, because
/// span offsets are used as indices into these, and unless there are fewer than 2^31 keys, because their indices have
/// 32 bits.
void throwIfPositionsMismatch(const Tile& tile, int64_t rows, int64_t keys);

/// The positions of a tile's rows and keys, and the visible pairs.
class TileVisibility {
 public:
  /// Visibility for one sample: the tile's mask and the sample's own slices.
  explicit TileVisibility(const Tile& tile, std::span<const Slice> sampleSlices = {});

  /// Appends the segments of a panel, ordered by begin. Their row intervals are allocated in `arena`.
  void addSegments(const PanelRows& rows, Arena& arena, std::vector<Segment>& segments) const;

  /// Returns an upper bound of the number of visible pairs; 0 only if there are none.
  double work(Range rows, Range keys) const;

 private:
  struct KeySpan {
    Span span;
    int64_t offset;   // local index of its first key
    int64_t maxEnd;  // largest end of this span and all spans that start earlier
  };
  struct SortedSlice {
    Slice slice;
    int64_t maxEnd;  // largest q1 of this slice and all slices that start earlier
  };
  /// Consecutive rows within one span: local indices [first, end), at positions `position`, `position + step`, …
  struct RowRun {
    int64_t first, end, position, step;
  };

  template <class Fn>
  void forEachRun(Range rows, Fn fn) const;
  template <class Fn>
  void forEachSlice(const RowRun& run, Fn fn) const;
  template <class Fn>
  void forEachKeySpan(int64_t begin, int64_t end, Fn fn) const;
  void addSegments(const Slice& slice, const PanelRows& rows, Arena& arena, std::vector<Segment>& segments) const;

  std::span<const Span> q_;
  std::vector<int64_t> qSpanOffsets_;  // local index of the first row of each span
  std::vector<KeySpan> k_;           // by start
  std::vector<SortedSlice> slices_;  // by q0
};

/// Visibility of a tile for each sample of a batch. Samples with equal masks share one visibility; without sample
/// masks, all samples do.
class BatchVisibility {
 public:
  BatchVisibility(const Tile& tile, int64_t batch);

  /// Whether there are sample masks.
  bool isPerSample() const { return !indices_.empty(); }
  /// Returns the number of distinct visibilities.
  size_t count() const { return visibilities_.size(); }
  const TileVisibility& operator[](size_t index) const { return visibilities_[index]; }
  /// Returns the index of a batch element's visibility.
  size_t indexOf(int64_t batch) const { return indices_.empty() ? 0 : indices_[static_cast<size_t>(batch)]; }

 private:
  std::vector<TileVisibility> visibilities_;
  std::vector<size_t> indices_;  // by batch element; empty if all use the first
};

/// The segments of every panel of a tile, computed once for all heads.
class PanelSegments {
 public:
  /// `arena` must outlive the segments.
  PanelSegments(const TileVisibility& visibility, int64_t rows, int32_t width, Arena& arena);

  /// Returns the segments of a panel, ordered by begin; empty past the last panel.
  std::span<const Segment> segments(int64_t panel) const;
  PanelRows rows(int64_t panel) const;

 private:
  int64_t rows_;
  int32_t width_;
  std::vector<Segment> segments_;
  std::vector<size_t> panelOffsets_;  // index of the first segment of each panel, and the total
};

}  // namespace mosaic
