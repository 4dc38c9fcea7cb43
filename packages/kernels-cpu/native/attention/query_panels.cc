#include "attention/query_panels.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "attention/merge.h"

namespace mosaic {
namespace {

constexpr int32_t kResultMultiple = 16;  // row lengths are padded to this multiple for the transposition of results
// Panels for which keys are converted as tiles read them; for more, a copy of a block that all of them read is faster.
constexpr size_t kMaxStagedPanels = 1, kMaxStagedRowPanels = 2;  // the second if they read values by rows
// Panels that share the prefetching of the next block. More would prefetch its last keys too late.
constexpr size_t kMaxPrefetchingPanels = 2;

/// Calls fn for the segments that intersect [begin, end). Lowers `next` to the first later key that is visible to the
/// panel.
template <class Panel, class Fn>
void forEachSegment(Panel& panel, int32_t begin, int32_t end, int64_t& next, Fn fn) {
  while (!panel.remaining.empty() && panel.remaining.front().end <= begin) panel.remaining = panel.remaining.subspan(1);
  for (const Segment& s : panel.remaining) {
    if (s.end > end) next = std::min<int64_t>(next, std::max(s.begin, end));
    if (s.begin >= end) break;
    if (s.end > begin) fn(s);
  }
}

/// Whether row r of a panel attends to a key of the range.
bool attends(std::span<const Segment> segments, int32_t r, Range keys) {
  return std::any_of(segments.begin(), segments.end(), [&](const Segment& s) {
    return std::max<int64_t>(s.bounds.lo[r], keys.begin) < std::min<int64_t>(s.bounds.hi[r], keys.end);
  });
}

}  // namespace

QueryPanels::QueryPanels(const ForwardCall& call, size_t capacity, bool isNarrow, Arena& arena)
    : args_(call.args),
      kernels_(call.kernels),
      modifiers_(call.modifiers),
      wideKernels_(kernels_.attention),
      arena_(arena),
      depth_(args_.q.shape[3]),
      valueDepth_(args_.kv.v.shape[3]),
      rowStride_(roundUp(std::max(depth_, valueDepth_), std::max(wideKernels_.depthMultiple, kResultMultiple))),
      readerKernels_(isNarrow ? kernels_.mediumAttention : wideKernels_),
      reader_(readerKernels_, args_.kv, isNarrow ? KvUse::NarrowForward : KvUse::Forward, arena),
      canStage_(capacity <= (readerKernels_.readsValueRows ? kMaxStagedRowPanels : kMaxStagedPanels) &&
                !modifiers_.modifiesScores() && reader_.canStage()),
      scores_(arena.allocate<float>(wideKernels_.keyBlock * wideKernels_.width)),
      weights_(isPaired() ? arena.allocate<uint16_t>(wideKernels_.keyBlock * wideKernels_.width)
                          : static_cast<void*>(scores_)),
      rowBuffer_(arena.allocate<float>(wideKernels_.width * rowStride_)),
      rowLse_(arena.allocate<double>(wideKernels_.width)),
      part_(canStage_ ? arena.allocate<float>(reader_.partElements()) : nullptr) {
  panels_.reserve(capacity);
}

void QueryPanels::add(const PanelLocation& location, std::span<const Segment> segments) {
  const AttentionKernels& k = location.rows() <= kernels_.narrowAttention.width   ? kernels_.narrowAttention
                              : location.rows() <= kernels_.mediumAttention.width ? kernels_.mediumAttention
                                                                                  : kernels_.attention;
  const int64_t size = rowStride_ * k.width;
  panels_.push_back(
      {&k,
       {arena_.allocate<char>(size * dtypeBytes(wideKernels_.products)), arena_.allocate<float>(size),
        arena_.allocate<float>(k.width), arena_.allocate<float>(k.width), nullptr, scores_, weights_, args_.tile.scale,
        static_cast<int32_t>(depth_), static_cast<int32_t>(valueDepth_), false, nullptr},
       modifiers_.modifiesScores() ? modifiers_.makeScoreModifiers(location, k.width, arena_) : ScoreModifiers{},
       location,
       segments,
       segments});
  Panel& panel = panels_.back();
  loadQueries(panel);
  panel.buffers.weightSum = isPaired() ? arena_.allocate<float>(k.width) : panel.buffers.sum;
  for (float* statistic : {panel.buffers.negMax, panel.buffers.sum, panel.buffers.weightSum}) {
    std::fill(statistic, statistic + k.width, 0.0f);
  }
  std::memset(panel.buffers.out, 0, static_cast<size_t>(size) * sizeof(float));
}

void QueryPanels::loadQueries(const Panel& panel) {
  const PanelLocation& location = panel.location;
  for (int32_t h = 0; h < location.heads; ++h) {
    char* to =
        reinterpret_cast<char*>(rowBuffer_) + h * location.count * rowStride_ * dtypeBytes(wideKernels_.products);
    wideKernels_.unpack(rowsOf(args_.q, headRows(location, h)), location.count, depth_, to, rowStride_);
  }
  panel.kernels->toPanel(rowBuffer_, rowStride_, location.rows(), depth_, args_.tile.scale, panel.buffers.q);
}

/// Blocks are aligned to a fixed grid, so that a row's result does not depend on the other rows.
void QueryPanels::fold(int64_t keyHead, Range keys, RowPrefetch* upcoming) {
  if (panels_.empty()) return;  // no row attends to a key, although the bound of TileVisibility::work is not 0
  for (Panel& panel : panels_) panel.buffers.upcoming = upcoming;
  reader_.select(panels_.front().location.batch, keyHead);
  const int32_t multiple = wideKernels_.keyMultiple;
  for (int64_t block = keys.begin, next; block < keys.end;
       block = next / wideKernels_.keyBlock * wideKernels_.keyBlock) {
    const auto begin = static_cast<int32_t>(block);
    const auto end = static_cast<int32_t>(std::min(block + wideKernels_.keyBlock, keys.end));
    int32_t from = end, to = begin;
    bool isFullyVisible = true;
    next = keys.end + wideKernels_.keyBlock;
    for (Panel& panel : panels_) {
      forEachSegment(panel, begin, end, next, [&](const Segment& s) {
        from = std::min(from, std::max(s.begin / multiple * multiple, begin));
        to = std::max(to, std::min(s.end, end));
        isFullyVisible = isFullyVisible && s.coreBegin <= begin && s.coreEnd >= end;
      });
    }
    if (from >= to) continue;
    const bool isStaged = canStage_ && isFullyVisible && (to - from) % multiple == 0;
    KvRows rows = isStaged ? reader_.stage(from, to - from, part_)
                           : reader_.read(from, static_cast<int32_t>(roundUp(to - from, multiple)));
    // Each panel prefetches a part of the next block.
    const int64_t upcomingKeys = std::min<int64_t>(wideKernels_.keyBlock, keys.end - end);
    const auto prefetchingPanels = static_cast<int64_t>(std::min(panels_.size(), kMaxPrefetchingPanels));
    int64_t index = 0;
    for (Panel& panel : panels_) {
      const int64_t first = index * upcomingKeys / prefetchingPanels, last = ++index * upcomingKeys / prefetchingPanels;
      const int64_t count = index <= prefetchingPanels ? last - first : 0;
      rows.nextK = reader_.upcomingKeys(end + first, count);
      rows.nextV = reader_.upcomingValues(end + first, count);
      forEachSegment(panel, begin, end, next, [&](const Segment& s) { foldSegment(panel, s, rows); });
    }
  }
}

void QueryPanels::foldSegment(Panel& panel, const Segment& s, const KvRows& keys) const {
  forEachPart(
      s, wideKernels_, {keys.first, keys.first + keys.count}, [&](int32_t from, int32_t to, bool isMasked) {
        const KvRows block = subBlock(wideKernels_, keys, from, to);
        if (modifiers_.modifiesScores()) {
          return panel.kernels->foldModified(panel.buffers, block, isMasked ? &s.bounds : nullptr, panel.modifiers);
        }
        isMasked ? panel.kernels->foldMasked(panel.buffers, block, s.bounds)
                 : panel.kernels->fold(panel.buffers, block);
      });
}

void QueryPanels::store(const AttentionState& state, Range keys, bool isStateEmpty) const {
  for (const Panel& panel : panels_) storePanel(panel, state, keys, isStateEmpty);
}

/// Whether every row of the panel attended to a key of the range, and none to a key before.
bool QueryPanels::isEveryRowNew(const Panel& panel, const FloatRows& lse, Range keys, bool isStateEmpty) const {
  const auto isNew = [&](int32_t r) {
    return panel.buffers.sum[r] != 0 && attends(panel.segments, r, keys) && (isStateEmpty || lse(r) == -INFINITY);
  };
  for (int32_t r = 0; r < panel.kernels->width; ++r) {
    if (!isNew(r)) return false;
  }
  return true;
}

void QueryPanels::storePanel(const Panel& panel, const AttentionState& state, Range keys, bool isStateEmpty) const {
  const ForwardPanel& buffers = panel.buffers;
  const PanelLocation& location = panel.location;
  float* factor = buffers.scores;  // no longer needed
  const float dropoutScale = modifiers_.modifiesScores() ? panel.modifiers.dropoutScale : 1.0f;
  for (int32_t r = 0; r < panel.kernels->width; ++r) factor[r] = dropoutScale / buffers.weightSum[r];
  panel.kernels->computeLse(buffers, rowLse_);
  const FloatRows firstOut(state.out, headRows(location, 0)), firstLse(state.lse, headRows(location, 0));
  const bool hasWholeRows = valueDepth_ % kResultMultiple == 0 && firstOut.columnStride == 1;
  if (hasWholeRows && location.count == panel.kernels->width &&
      isEveryRowNew(panel, firstLse, keys, isStateEmpty)) {
    for (int32_t r = 0; r < location.count; ++r) firstLse(r) = static_cast<float>(rowLse_[r]);
    return panel.kernels->fromPanel(buffers.out, factor, valueDepth_, firstOut.data, firstOut.rowStride);
  }
  panel.kernels->fromPanel(buffers.out, factor, valueDepth_, rowBuffer_, rowStride_);
  for (int32_t h = 0; h < location.heads; ++h) {
    const FloatRows out(state.out, headRows(location, h)), lse(state.lse, headRows(location, h));
    for (int32_t i = 0; i < location.count; ++i) {
      const int32_t r = h * location.count + i;
      if (buffers.sum[r] == 0 || !attends(panel.segments, r, keys)) {
        if (isStateEmpty) lse(i) = -INFINITY;
        continue;
      }
      const MergeWeights weight = mergeWeights(isStateEmpty ? -INFINITY : lse(i), rowLse_[r]);
      lse(i) = weight.lse;
      mergeRow(weight, out.row(i), {rowBuffer_ + r * rowStride_, 1}, valueDepth_);
    }
  }
}

}  // namespace mosaic
