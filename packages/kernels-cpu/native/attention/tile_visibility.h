// Which keys are visible to the rows of a tile, in local indices: masks meet placements here, and nowhere else.
//
// Through one slice, the keys of one span that a row sees are one interval of local indices, whatever the type of the
// slice and the placement of rows and keys. A panel therefore carries, per slice and span, an interval per row. Where
// all of these overlap nothing needs masking; outside their hull there is nothing to do.
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

/// What the rows of a panel see of one span of keys through one slice.
struct Segment {
  int32_t begin, end;          // the hull: no row sees anything outside
  int32_t coreBegin, coreEnd;  // what every row sees; begin = end when there is no such key
  VisibleKeys bounds;             // per row; rows past the last repeat it, so that padding never forces masking
};

/// Rows of a panel: `count` of the `width` that it has.
struct PanelRows {
  int64_t first;
  int32_t count, width;
};

/// Throws std::invalid_argument unless the spans of a tile have as many positions as there are rows and keys: what they
/// state is an index into them. One of keys has 32 bits.
void throwIfPositionsMismatch(const Tile& tile, int64_t rows, int64_t keys);

/// Where a tile puts its rows and keys and which of them meet.
class TileVisibility {
 public:
  /// What is visible to one sample: the tile's mask, and slices of its own.
  explicit TileVisibility(const Tile& tile, std::span<const Slice> sampleSlices = {});

  /// Appends the segments of a panel, by increasing begin. Their row intervals live in `arena`.
  void addSegments(const PanelRows& rows, Arena& arena, std::vector<Segment>& segments) const;

  /// An upper bound of the number of pairs that count; 0 exactly when it is known that there are none.
  double work(Range rows, Range keys) const;

 private:
  struct KeySpan {
    Span span;
    int64_t offset;   // local index of its first key
    int64_t maxEnd;  // the largest end of this and all spans that start earlier
  };
  struct SortedSlice {
    Slice slice;
    int64_t maxEnd;  // the largest q1 of this and all slices that start earlier
  };
  /// Consecutive rows within one span: local [first, end), at positions `position`, + step, …
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

/// What the samples of a batch see of a tile. Samples that see the same share one visibility; without masks of their
/// own, all do.
class BatchVisibility {
 public:
  BatchVisibility(const Tile& tile, int64_t batch);

  /// Whether samples have masks of their own.
  bool isPerSample() const { return !indices_.empty(); }
  /// How many different ones there are.
  size_t count() const { return visibilities_.size(); }
  const TileVisibility& operator[](size_t index) const { return visibilities_[index]; }
  /// The one of a batch element.
  size_t indexOf(int64_t batch) const { return indices_.empty() ? 0 : indices_[static_cast<size_t>(batch)]; }

 private:
  std::vector<TileVisibility> visibilities_;
  std::vector<size_t> indices_;  // by batch element; empty if all have the first
};

/// The segments of every panel of a tile, found once for all heads.
class PanelSegments {
 public:
  /// `arena` must outlive the segments.
  PanelSegments(const TileVisibility& visibility, int64_t rows, int32_t width, Arena& arena);

  /// By increasing begin; empty past the last panel.
  std::span<const Segment> segments(int64_t panel) const;
  PanelRows rows(int64_t panel) const;

 private:
  int64_t rows_;
  int32_t width_;
  std::vector<Segment> segments_;
  std::vector<size_t> panelOffsets_;  // of the first segment of each panel, and the end
};

}  // namespace mosaic
