#include "attention/tile_visibility.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "mosaic/positions.h"

namespace mosaic {
namespace {

/// Returns the keys [begin, end) visible to the row at position q of the slice; empty if begin ≥ end.
Range visibleKeys(const Slice& slice, int64_t q) {
  return {slice.k0 + ((slice.type & 2) != 0 ? q - slice.q0 : 0),
          slice.k1 - ((slice.type & 1) != 0 ? slice.q1 - 1 - q : 0)};
}

}  // namespace

void throwIfPositionsMismatch(const Tile& tile, int64_t rows, int64_t keys) {
  const auto count = [](std::span<const Span> spans) {
    int64_t sum = 0;
    for (const Span& span : spans) sum += span.length;
    return sum;
  };
  const int64_t numQueries = count(tile.q), numKeys = count(tile.k);
  if (numKeys > INT32_MAX) {
    throw std::invalid_argument("attention: expected fewer than 2^31 keys per rank, received " +
                                std::to_string(numKeys) + " keys; shard the sequence over more ranks");
  }
  if (numQueries == rows && numKeys == keys) return;
  throw std::invalid_argument("attention: expected positions of " + std::to_string(rows) + " queries and " +
                              std::to_string(keys) + " keys, as in the tensors, received " +
                              std::to_string(numQueries) + " and " + std::to_string(numKeys));
}

TileVisibility::TileVisibility(const Tile& tile, std::span<const Slice> sampleSlices) : q_(tile.q) {
  int64_t offset = 0;
  for (const Span& span : tile.q) {
    qSpanOffsets_.push_back(offset);
    offset += span.length;
  }
  offset = 0;
  for (const Span& span : tile.k) {
    if (span.length > 0) k_.push_back({span, offset, 0});
    offset += span.length;
  }
  for (const std::span<const Slice> slices : {std::span<const Slice>(tile.mask), sampleSlices}) {
    for (const Slice& slice : slices) {
      if (slice.q0 < slice.q1 && slice.k0 < slice.k1) slices_.push_back({slice, 0});
    }
  }
  std::sort(k_.begin(), k_.end(), [](auto& a, auto& b) { return a.span.start < b.span.start; });
  std::sort(slices_.begin(), slices_.end(), [](auto& a, auto& b) { return a.slice.q0 < b.slice.q0; });

  int64_t maxEnd = INT64_MIN;
  for (KeySpan& k : k_) k.maxEnd = maxEnd = std::max(maxEnd, k.span.start + (k.span.length - 1) * k.span.step + 1);
  maxEnd = INT64_MIN;
  for (SortedSlice& s : slices_) s.maxEnd = maxEnd = std::max(maxEnd, s.slice.q1);
}

template <class Fn>
void TileVisibility::forEachRun(Range rows, Fn fn) const {
  auto nextSpan = std::upper_bound(qSpanOffsets_.begin(), qSpanOffsets_.end(), rows.begin);
  size_t i = nextSpan == qSpanOffsets_.begin() ? 0 : static_cast<size_t>(nextSpan - qSpanOffsets_.begin()) - 1;
  for (; i < q_.size() && qSpanOffsets_[i] < rows.end; ++i) {
    const int64_t first = std::max(rows.begin, qSpanOffsets_[i]),
                  end = std::min(rows.end, qSpanOffsets_[i] + q_[i].length);
    if (first < end) fn(RowRun{first, end, q_[i].start + (first - qSpanOffsets_[i]) * q_[i].step, q_[i].step});
  }
}

/// Calls fn(index) for slices whose rows intersect the run.
template <class Fn>
void TileVisibility::forEachSlice(const RowRun& run, Fn fn) const {
  const int64_t lastPosition = run.position + (run.end - run.first - 1) * run.step;
  auto firstSliceAfter = std::upper_bound(slices_.begin(), slices_.end(), lastPosition,
                                          [](int64_t position, const SortedSlice& s) { return position < s.slice.q0; });
  for (auto i = firstSliceAfter; i != slices_.begin() && (i - 1)->maxEnd > run.position; --i) {
    if ((i - 1)->slice.q1 > run.position) fn(static_cast<size_t>(i - 1 - slices_.begin()));
  }
}

/// Calls fn(span) for spans that may have keys at positions [begin, end).
template <class Fn>
void TileVisibility::forEachKeySpan(int64_t begin, int64_t end, Fn fn) const {
  auto firstSpanAfter = std::lower_bound(k_.begin(), k_.end(), end,
                                     [](const KeySpan& k, int64_t position) { return k.span.start < position; });
  for (auto i = firstSpanAfter; i != k_.begin() && (i - 1)->maxEnd > begin; --i) fn(*(i - 1));
}

void TileVisibility::addSegments(const PanelRows& rows, Arena& arena, std::vector<Segment>& segments) const {
  const auto oldSegmentCount = static_cast<int64_t>(segments.size());
  std::vector<size_t> sliceIndices;
  forEachRun({rows.first, rows.first + rows.count},
             [&](const RowRun& run) { forEachSlice(run, [&](size_t slice) { sliceIndices.push_back(slice); }); });
  std::sort(sliceIndices.begin(), sliceIndices.end());
  sliceIndices.erase(std::unique(sliceIndices.begin(), sliceIndices.end()), sliceIndices.end());
  for (size_t slice : sliceIndices) addSegments(slices_[slice].slice, rows, arena, segments);
  std::stable_sort(segments.begin() + oldSegmentCount, segments.end(),
                   [](auto& a, auto& b) { return a.begin < b.begin; });
}

void TileVisibility::addSegments(const Slice& slice, const PanelRows& rows, Arena& arena,
                                 std::vector<Segment>& segments) const {
  Range* visibleRanges = arena.allocate<Range>(rows.count);  // global positions, per row
  Range hull{INT64_MAX, INT64_MIN};
  std::fill(visibleRanges, visibleRanges + rows.count, Range{0, 0});
  forEachRun({rows.first, rows.first + rows.count}, [&](const RowRun& run) {
    for (int64_t row = run.first; row < run.end; ++row) {
      const int64_t position = run.position + (row - run.first) * run.step;
      if (position < slice.q0 || position >= slice.q1) continue;
      const Range range = visibleKeys(slice, position);
      if (range.begin >= range.end) continue;
      visibleRanges[row - rows.first] = range;
      hull = {std::min(hull.begin, range.begin), std::max(hull.end, range.end)};
    }
  });

  forEachKeySpan(hull.begin, hull.end, [&](const KeySpan& k) {
    int32_t* lo = arena.allocate<int32_t>(rows.width);
    int32_t* hi = arena.allocate<int32_t>(rows.width);
    Segment segment{INT32_MAX, 0, 0, INT32_MAX, {lo, hi}};
    for (int32_t r = 0; r < rows.count; ++r) {
      const int64_t from = k.offset + countPositionsBefore(k.span, visibleRanges[r].begin);
      const int64_t to = k.offset + countPositionsBefore(k.span, visibleRanges[r].end);
      const bool hasKeys = visibleRanges[r].begin < visibleRanges[r].end && from < to;
      lo[r] = hasKeys ? static_cast<int32_t>(from) : 0;
      hi[r] = hasKeys ? static_cast<int32_t>(to) : 0;
      if (hasKeys) segment.begin = std::min(segment.begin, lo[r]);
      segment.end = std::max(segment.end, hi[r]);
      segment.coreBegin = std::max(segment.coreBegin, hasKeys ? lo[r] : INT32_MAX);
      segment.coreEnd = std::min(segment.coreEnd, hi[r]);
    }
    if (segment.end == 0) return;
    std::fill(lo + rows.count, lo + rows.width, lo[rows.count - 1]);
    std::fill(hi + rows.count, hi + rows.width, hi[rows.count - 1]);
    if (segment.coreBegin >= segment.coreEnd) segment.coreBegin = segment.coreEnd = segment.end;
    segments.push_back(segment);
  });
}

double TileVisibility::work(Range rows, Range keys) const {
  double pairs = 0;
  forEachRun(rows, [&](const RowRun& run) {
    forEachSlice(run, [&](size_t index) {
      const Slice& slice = slices_[index].slice;
      const Span rowSpan{run.position, run.end - run.first, run.step};
      const int64_t rowsBefore = countPositionsBefore(rowSpan, slice.q0);
      const int64_t rowsInSlice = countPositionsBefore(rowSpan, slice.q1) - rowsBefore;
      if (rowsInSlice == 0) return;
      const int64_t first = run.position + rowsBefore * run.step;
      const Range firstRange = visibleKeys(slice, first),
                  lastRange = visibleKeys(slice, first + (rowsInSlice - 1) * run.step);
      // Both bounds of the interval increase with the row.
      forEachKeySpan(firstRange.begin, lastRange.end, [&](const KeySpan& k) {
        const int64_t from = std::max(keys.begin, k.offset + countPositionsBefore(k.span, firstRange.begin));
        const int64_t to = std::min(keys.end, k.offset + countPositionsBefore(k.span, lastRange.end));
        if (from < to) pairs += static_cast<double>(rowsInSlice) * static_cast<double>(to - from);
      });
    });
  });
  return pairs;
}

BatchVisibility::BatchVisibility(const Tile& tile, int64_t batch) {
  const std::span<const std::vector<Slice>> masks = selectSampleMasks(tile, 0, batch);
  if (masks.empty()) {
    visibilities_.emplace_back(tile);
    return;
  }
  std::vector<const std::vector<Slice>*> distinctMasks;
  for (const std::vector<Slice>& sampleMask : masks) {
    const auto match = std::find_if(distinctMasks.begin(), distinctMasks.end(),
                                    [&](const auto* mask) { return areSlicesEqual(*mask, sampleMask); });
    indices_.push_back(static_cast<size_t>(match - distinctMasks.begin()));
    if (match != distinctMasks.end()) continue;
    distinctMasks.push_back(&sampleMask);
    visibilities_.emplace_back(tile, sampleMask);
  }
}

PanelSegments::PanelSegments(const TileVisibility& visibility, int64_t rows, int32_t width, Arena& arena)
    : rows_(rows), width_(width) {
  for (int64_t panel = 0; panel * width < rows; ++panel) {
    panelOffsets_.push_back(segments_.size());
    visibility.addSegments(this->rows(panel), arena, segments_);
  }
  panelOffsets_.push_back(segments_.size());
}

std::span<const Segment> PanelSegments::segments(int64_t panel) const {
  if (panel * width_ >= rows_) return {};
  const size_t first = panelOffsets_[static_cast<size_t>(panel)], end = panelOffsets_[static_cast<size_t>(panel) + 1];
  return {segments_.data() + first, end - first};
}

PanelRows PanelSegments::rows(int64_t panel) const {
  const int64_t first = panel * width_;
  return {first, static_cast<int32_t>(std::clamp<int64_t>(rows_ - first, 0, width_)), width_};
}

}  // namespace mosaic
