#include "attention/query_panels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "attention/merge.h"

namespace mosaic {
namespace {

constexpr int32_t kResultMultiple = 16;  // of the length of rows that are transposed at a time
constexpr double kLog2e = std::numbers::log2e;

/// Calls fn for the segments that meet [begin, end); lowers `next` to the first key after it that the panel sees.
template <class Panel, class Fn>
void forSegments(Panel& panel, int32_t begin, int32_t end, int64_t& next, Fn fn) {
  while (!panel.remaining.empty() && panel.remaining.front().end <= begin) panel.remaining = panel.remaining.subspan(1);
  for (const Segment& s : panel.remaining) {
    if (s.end > end) next = std::min<int64_t>(next, std::max(s.begin, end));
    if (s.begin >= end) break;
    if (s.end > begin) fn(s);
  }
}

}  // namespace

QueryPanels::QueryPanels(const ForwardCall& call, size_t capacity, bool isNarrow, Arena& arena)
    : args_(call.args),
      kernels_(call.kernels),
      modifiers_(call.modifiers),
      wide_(kernels_.attention),
      arena_(arena),
      depth_(args_.q.shape[3]),
      valueDepth_(args_.kv.v.shape[3]),
      rowStride_(roundUp(std::max(depth_, valueDepth_), std::max(wide_.depthMultiple, kResultMultiple))),
      reader_(wide_, args_.kv, isNarrow ? KvUse::NarrowForward : KvUse::Forward, arena),
      scores_(arena.allocate<float>(wide_.keyBlock * wide_.width)),
      weights_(isPaired() ? arena.allocate<uint16_t>(wide_.keyBlock * wide_.width) : static_cast<void*>(scores_)),
      rowBuffer_(arena.allocate<float>(wide_.width * rowStride_)) {
  panels_.reserve(capacity);
}

void QueryPanels::add(const PanelPlace& place, std::span<const Segment> segments) {
  const AttentionKernels& k =
      place.rows() <= kernels_.narrowAttention.width ? kernels_.narrowAttention : kernels_.attention;
  const int64_t size = rowStride_ * k.width;
  panels_.push_back({&k,
                     {arena_.allocate<char>(size * dtypeBytes(wide_.products)), arena_.allocate<float>(size),
                      arena_.allocate<float>(k.width), arena_.allocate<float>(k.width), nullptr, scores_, weights_,
                      args_.tile.scale, static_cast<int32_t>(depth_), static_cast<int32_t>(valueDepth_), false},
                     modifiers_.any() ? modifiers_.ofRows(place, k.width, arena_) : ScoreModifiers{},
                     place,
                     segments,
                     segments});
  Panel& panel = panels_.back();
  loadQueries(panel);
  panel.buffers.weightSum = isPaired() ? arena_.allocate<float>(k.width) : panel.buffers.sum;
  for (float* each : {panel.buffers.negMax, panel.buffers.sum, panel.buffers.weightSum}) {
    std::fill(each, each + k.width, 0.0f);
  }
  std::memset(panel.buffers.out, 0, static_cast<size_t>(size) * sizeof(float));
}

void QueryPanels::loadQueries(const Panel& panel) {
  const PanelPlace& place = panel.place;
  for (int32_t h = 0; h < place.heads; ++h) {
    char* to = reinterpret_cast<char*>(rowBuffer_) + h * place.count * rowStride_ * dtypeBytes(wide_.products);
    wide_.unpack(rowsOf(args_.q, rowsAt(place, h)), place.count, depth_, to, rowStride_);
  }
  panel.kernels->toPanel(rowBuffer_, rowStride_, place.rows(), depth_, args_.tile.scale, panel.buffers.q);
}

/// Blocks lie on a fixed grid, so that a row's result does not depend on its neighbours.
void QueryPanels::fold(int64_t keyHead, Range keys) {
  reader_.select(panels_.front().place.batch, keyHead);
  const int32_t multiple = wide_.keyMultiple;
  for (int64_t block = keys.begin, next; block < keys.end; block = next / wide_.keyBlock * wide_.keyBlock) {
    const auto begin = static_cast<int32_t>(block);
    const auto end = static_cast<int32_t>(std::min(block + wide_.keyBlock, keys.end));
    int32_t from = end, to = begin;
    next = keys.end + wide_.keyBlock;
    for (Panel& panel : panels_) {
      forSegments(panel, begin, end, next, [&](const Segment& s) {
        from = std::min(from, std::max(s.begin / multiple * multiple, begin));
        to = std::max(to, std::min(s.end, end));
      });
    }
    if (from >= to) continue;
    const KvRows rows = reader_.read(from, static_cast<int32_t>(roundUp(to - from, multiple)));
    for (Panel& panel : panels_) {
      forSegments(panel, begin, end, next, [&](const Segment& s) { foldSegment(panel, s, rows); });
    }
  }
}

void QueryPanels::foldSegment(Panel& panel, const Segment& s, const KvRows& keys) const {
  forParts(s, wide_.keyMultiple, {keys.first, keys.first + keys.count}, [&](int32_t from, int32_t to, bool masked) {
    const KvRows block = subBlock(wide_, keys, from, to);
    if (modifiers_.any()) {
      return panel.kernels->foldModified(panel.buffers, block, masked ? &s.visible : nullptr, panel.modifiers);
    }
    masked ? panel.kernels->foldMasked(panel.buffers, block, s.visible) : panel.kernels->fold(panel.buffers, block);
  });
}

void QueryPanels::store(const AttentionState& state, Range keys, bool isEmpty) const {
  for (const Panel& panel : panels_) storePanel(panel, state, keys, isEmpty);
}

void QueryPanels::storePanel(const Panel& panel, const AttentionState& state, Range keys, bool isEmpty) const {
  const ForwardPanel& buffers = panel.buffers;
  const PanelPlace& place = panel.place;
  float* factor = buffers.scores;  // no longer needed
  const float dropoutScale = modifiers_.any() ? panel.modifiers.dropoutScale : 1.0f;
  for (int32_t r = 0; r < panel.kernels->width; ++r) factor[r] = dropoutScale / buffers.weightSum[r];
  panel.kernels->fromPanel(buffers.out, factor, valueDepth_, rowBuffer_, rowStride_);
  for (int32_t h = 0; h < place.heads; ++h) {
    const FloatRows out(state.out, rowsAt(place, h)), lse(state.lse, rowsAt(place, h));
    for (int32_t i = 0; i < place.count; ++i) {
      const int32_t r = h * place.count + i;
      const auto saw = [&](const Segment& s) {
        return std::max<int64_t>(s.visible.lo[r], keys.begin) < std::min<int64_t>(s.visible.hi[r], keys.end);
      };
      if (buffers.sum[r] == 0 || std::none_of(panel.segments.begin(), panel.segments.end(), saw)) {
        if (isEmpty) lse(i) = -INFINITY;
        continue;
      }
      const double sum = buffers.sum[r];
      const double negMax = buffers.negMax[r];
      const double own = buffers.large ? std::log(sum) - negMax : (std::log2(sum) - negMax) / kLog2e;
      const MergeWeights weight = mergeWeights(isEmpty ? -INFINITY : lse(i), own);
      lse(i) = weight.lse;
      mergeRow(weight, out.row(i), {rowBuffer_ + r * rowStride_, 1}, valueDepth_);
    }
  }
}

}  // namespace mosaic
