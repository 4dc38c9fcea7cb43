#include "attention/gradient_group.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "attention/kv_reader.h"
#include "attention/task_gradient.h"

namespace mosaic {
namespace {

// Strips of keys share one range of rows in the sums of dk and dv: 16 keys, or for bfloat16 a fourth of a block.
constexpr int32_t kStripKeys = 16, kPairedStrips = 4, kMaxStrips = 6;
constexpr int32_t kMaxPanels = 8;
// Rows of one running sum of dk or dv, whose rounding error grows with the square root of its length. The sums are then
// added to one another. Sums of bfloat16 pairs are longer, because their operands are rounded to fewer digits.
constexpr int32_t kSumRows = 48;
constexpr int64_t kMaxMatrixBytes = 48 << 10;  // q of one group; five such matrices are in use

int32_t groupPanels(const BackwardCall& call) {
  const AttentionKernels& kernels = call.kernels;
  const int64_t depth = std::max(call.args.q.shape[3], call.args.kv.v.shape[3]);
  const int64_t panelBytes = depth * kernels.width * dtypeBytes(kernels.products);
  return static_cast<int32_t>(std::clamp<int64_t>(kMaxMatrixBytes / panelBytes, 1, kMaxPanels));
}

/// Whether groups of rows read the keys of a task at least twice on average, so that copies of the keys are worth it.
bool areKeysReused(const BackwardCall& call, const PanelSegments& segments, const GradientTask& task) {
  const int64_t width = call.kernels.width, groupRows = groupPanels(call) * width;
  int64_t keysRead = 0;
  for (int64_t group = task.rows.begin; group < task.rows.end; group += groupRows) {
    Range read{task.keys.end, task.keys.begin};
    for (int64_t first = group; first < std::min(group + groupRows, task.rows.end); first += width) {
      for (const Segment& s : segments.segments(first / width)) {
        if (s.begin >= task.keys.end || s.end <= task.keys.begin) continue;
        read = {std::min<int64_t>(read.begin, s.begin), std::max<int64_t>(read.end, s.end)};
      }
    }
    const int64_t count = std::min(read.end, task.keys.end) - std::max(read.begin, task.keys.begin);
    keysRead += std::max<int64_t>(count, 0);
  }
  return keysRead >= 2 * (task.keys.end - task.keys.begin);
}

struct Panel {
  BackwardPanel buffers;
  ScoreModifiers modifiers;
  PanelRows rows;
  std::span<const Segment> segments;  // segments that intersect the keys of the task, by begin
  char *q, *dOut;  // [width][rowStride], plain rows; in pairs for bfloat16
  bool isActive;   // has segments in the current block
};

/// The range of rows of a group that contribute to a strip of keys.
struct RowRange {
  int32_t first = INT32_MAX, end = 0;
  bool operator==(const RowRange&) const = default;
};

class GradientGroup {
 public:
  GradientGroup(const BackwardCall& call, const PanelSegments& segments, const GradientTask& task, Arena& arena,
                RowPrefetch& prefetch)
      : args_(call.args),
        kernels_(call.kernels),
        modifiers_(call.modifiers),
        task_(task),
        arena_(arena),
        prefetch_(prefetch),
        areKeysReused_(areKeysReused(call, segments, task)),
        prefetchesKeys_(task.rows.end - task.rows.begin > gradientGroupRows(call) && prefetch.remainingRows == 0),
        prefetchedEnd_(task.keys.begin),
        reader_(kernels_, args_.kv, KvUse::Backward, arena, areKeysReused_ ? task.keys : Range{0, 0}),
        dk_(args_.grads.dk, firstKey(), task.keys, kernels_.gradientBlock, areKeysReused_, arena),
        dv_(args_.grads.dv, firstKey(), task.keys, kernels_.gradientBlock, areKeysReused_, arena),
        depth_(static_cast<int32_t>(args_.q.shape[3])),
        valueDepth_(static_cast<int32_t>(args_.kv.v.shape[3])),
        elementBytes_(dtypeBytes(kernels_.products)),
        rowStride_(paddedStride(roundUp(std::max(depth_, valueDepth_), kernels_.depthMultiple), elementBytes_)),
        keysPerStrip_(isPaired() ? kernels_.gradientBlock / kPairedStrips : kStripKeys),
        panels_(static_cast<size_t>(std::min<int64_t>(
            groupPanels(call), ceilDiv(task.rows.end - task.rows.begin, kernels_.width)))) {
    reader_.select(task.batch, task.keyHead);
    const int64_t rows = static_cast<int64_t>(panels_.size()) * kernels_.width;
    weights_ = arena.allocate<char>(kernels_.gradientBlock * rows * elementBytes_);
    scoreGradients_ = arena.allocate<char>(kernels_.gradientBlock * rows * elementBytes_);
    char* q = arena.allocate<char>(rows * rowStride_ * elementBytes_);
    char* dOut = arena.allocate<char>(rows * rowStride_ * elementBytes_);
    rowBuffer_ = arena.allocate<float>(kernels_.width * rowStride_);
    float* unroundedWeights = isPaired() ? arena.allocate<float>(kernels_.gradientBlock * kernels_.width) : nullptr;
    char* pairs = isPaired() ? arena.allocate<char>(kernels_.gradientBlock * kernels_.width * elementBytes_) : nullptr;
    for (size_t p = 0; p < panels_.size(); ++p) {
      const int64_t first = static_cast<int64_t>(p) * kernels_.width, size = rowStride_ * kernels_.width;
      panels_[p].q = q + first * rowStride_ * elementBytes_;
      panels_[p].dOut = dOut + first * rowStride_ * elementBytes_;
      char *p0 = weights_ + first * elementBytes_, *ds = scoreGradients_ + first * elementBytes_;
      panels_[p].buffers = {arena.allocate<char>(size * elementBytes_),
                            arena.allocate<char>(size * elementBytes_),
                            arena.allocate<float>(size),
                            arena.allocate<float>(kernels_.width),
                            arena.allocate<float>(kernels_.width),
                            p0,
                            ds,
                            isPaired() ? pairs : ds,
                            unroundedWeights,
                            rows,
                            isPaired() ? kernels_.width : rows,
                            args_.tile.scale,
                            depth_,
                            valueDepth_,
                            0,
                            false,
                            &prefetch};
    }
    if (!modifiers_.modifiesScores()) return;
    const int64_t block = int64_t{kernels_.gradientBlock} * kernels_.width;
    scratch_ = {arena.allocate<float>(block), arena.allocate<float>(block)};
  }

  /// Processes the group that starts at row `first`.
  void run(int64_t first, const PanelSegments& segments) {
    const bool isLastGroup = first + static_cast<int64_t>(panels_.size()) * kernels_.width >= task_.rows.end;
    bool isAnyPanelLoaded = false;
    areOperandsFinite_ = areSegmentsDisjoint_ = true;
    for (Panel& panel : panels_) {
      isAnyPanelLoaded |= loadPanel(panel, first, segments);
      first += kernels_.width;
    }
    for (int64_t begin = task_.keys.begin; begin < task_.keys.end; begin += kernels_.gradientBlock) {
      const Range block = blockAt(begin);
      if (isAnyPanelLoaded) {
        if (prefetchesKeys_) selectPrefetch(block, isLastGroup);
        computeBlock(static_cast<int32_t>(block.begin), static_cast<int32_t>(block.end));
      }
      if (!isLastGroup) continue;
      dk_.store(block);
      dv_.store(block);
    }
    for (const Panel& panel : panels_) {
      if (!panel.segments.empty()) storeQueryGradients(panel);
    }
  }

 private:
  HeadRows firstKey() const { return {task_.batch, task_.keyHead, task_.keys.begin}; }

  Range blockAt(int64_t begin) const { return {begin, std::min(begin + kernels_.gradientBlock, task_.keys.end)}; }

  /// Selects the rows that the tiles of a block prefetch: the keys of the next block if no earlier group has read them,
  /// else the rows of dk and dv that are stored after the block.
  void selectPrefetch(const Range& block, bool isLastGroup) {
    const Range next = blockAt(block.end);
    if (next.begin < next.end && next.begin >= prefetchedEnd_ && isAttendedTo(next)) {
      const HeadRows at{task_.batch, task_.keyHead, next.begin};
      prefetch_ = {{upcomingRows(args_.kv.k, at), upcomingRows(args_.kv.v, at), upcomingRows(args_.grads.dk, at),
                    upcomingRows(args_.grads.dv, at)},
                   0};
      unallottedRows_ = next.end - next.begin;
      prefetchedEnd_ = next.end;
    } else {
      prefetch_ = {{dk_.upcomingStores(block), dv_.upcomingStores(block)}, 0};
      unallottedRows_ = isLastGroup ? block.end - block.begin : 0;
    }
  }

  /// Allots rows to a panel. If the first tiles of a block prefetched all rows, they would wait for them.
  void allotPrefetch() {
    const int64_t share = kernels_.gradientBlock / static_cast<int64_t>(panels_.size()) + 1;
    const int64_t rows = std::min(share, unallottedRows_);
    prefetch_.remainingRows += rows;
    unallottedRows_ -= rows;
  }

  bool isAttendedTo(const Range& keys) const {
    const auto intersects = [&](const Segment& s) { return s.begin < keys.end && s.end > keys.begin; };
    return std::any_of(panels_.begin(), panels_.end(),
                       [&](const Panel& panel) { return std::ranges::any_of(panel.segments, intersects); });
  }

  /// Returns false if the rows attend to no key of the task. Such a panel is set to zero, like the padding of other
  /// panels.
  bool loadPanel(Panel& panel, int64_t first, const PanelSegments& segments) {
    panel.rows = segments.rows(first / kernels_.width);
    const int64_t count = panel.rows.count;
    panel.buffers.rowCount = panel.rows.count;
    panel.segments = segments.segments(first / kernels_.width);
    if (first >= task_.rows.end) panel.segments = {};
    const auto isOutsideTask = [&](const Segment& s) { return s.begin >= task_.keys.end || s.end <= task_.keys.begin; };
    while (!panel.segments.empty() && isOutsideTask(panel.segments.front())) panel.segments = panel.segments.subspan(1);
    while (!panel.segments.empty() && isOutsideTask(panel.segments.back())) {
      panel.segments = panel.segments.first(panel.segments.size() - 1);
    }
    const int64_t usedRows = panel.segments.empty() ? 0 : count;
    for (char* rows : {panel.q, panel.dOut}) {
      std::memset(rows + usedRows * rowStride_ * elementBytes_, 0,
                  static_cast<size_t>((kernels_.width - usedRows) * rowStride_ * elementBytes_));
    }
    if (usedRows == 0) return false;

    const HeadRows headRows{task_.batch, task_.head, first};
    kernels_.unpack(rowsOf(args_.q, headRows), count, depth_, panel.q, rowStride_);
    kernels_.unpack(rowsOf(args_.saved.dOut, headRows), count, valueDepth_, panel.dOut, rowStride_);
    loadStatistics(panel, headRows);
    kernels_.toPanel(panel.q, rowStride_, count, depth_, args_.tile.scale, panel.buffers.q);
    kernels_.toPanel(panel.dOut, rowStride_, count, valueDepth_, 1.0f, panel.buffers.dOut);
    std::memset(panel.buffers.dq, 0, static_cast<size_t>(rowStride_ * kernels_.width) * sizeof(float));

    areOperandsFinite_ &= kernels_.isFinite(panel.q, rowStride_, count, depth_) &&
                          kernels_.isFinite(panel.dOut, rowStride_, count, valueDepth_);
    if (isPaired()) {
      kernels_.pairRows(panel.q, rowStride_, roundUp(depth_, kernels_.depthMultiple));
      kernels_.pairRows(panel.dOut, rowStride_, roundUp(valueDepth_, kernels_.depthMultiple));
    }
    if (modifiers_.modifiesScores()) {
      const PanelLocation location{task_.batch, task_.head, 1, first, static_cast<int32_t>(count)};
      panel.modifiers = modifiers_.makeScoreModifiers(location, kernels_.width, arena_);
    }
    for (size_t i = 1; i < panel.segments.size(); ++i) {
      const int32_t multiple = kernels_.keyMultiple;
      areSegmentsDisjoint_ &=
          panel.segments[i].begin / multiple >= ceilDiv(panel.segments[i - 1].end, multiple);
    }
    return true;
  }

  void loadStatistics(Panel& panel, const HeadRows& headRows) const {
    const FloatRows lse(args_.saved.lse, headRows), delta(args_.saved.delta, headRows);
    std::fill(panel.buffers.negLse, panel.buffers.negLse + kernels_.width, -INFINITY);
    std::fill(panel.buffers.negDelta, panel.buffers.negDelta + kernels_.width, 0.0f);
    panel.buffers.isLargeMode = false;
    for (int32_t r = 0; r < panel.rows.count; ++r) panel.buffers.isLargeMode |= isLarge(lse(r));
    for (int32_t r = 0; r < panel.rows.count; ++r) {
      if (lse(r) == -INFINITY) continue;
      panel.buffers.negDelta[r] = -delta(r);
      if (panel.buffers.isLargeMode) {
        panel.buffers.negLse[r] = -lse(r);
        continue;
      }
      const double exact = lse(r) * std::numbers::log2e;
      panel.buffers.negLse[r] = static_cast<float>(-exact);
      if (isPaired()) continue;
      scaleRow(panel, r, static_cast<float>(1 - (exact + panel.buffers.negLse[r]) * std::numbers::ln2));
    }
  }

  /// Multiplies dOut and delta of a row, in which all gradients are linear, by the factor that its weights lack because
  /// lse · log2 e is rounded. The error of log2 e as float32 is part of the lse of `fold`: the weights sum to 1.
  void scaleRow(const Panel& panel, int32_t r, float factor) const {
    panel.buffers.negDelta[r] *= factor;
    float* row = reinterpret_cast<float*>(panel.dOut) + r * rowStride_;
    for (int32_t d = 0; d < valueDepth_; ++d) row[d] *= factor;
  }

  /// Whether dk and dv of a block are summed over all its panels at once, at the end. This requires a separate place
  /// for each weight, and rows for which 0 · row is not NaN.
  bool defersKeyGradients() const { return areOperandsFinite_ && areSegmentsDisjoint_; }

  void computeBlock(int32_t begin, int32_t end) {
    const int32_t multiple = kernels_.keyMultiple;
    int32_t from = end, to = begin;
    for (Panel& panel : panels_) {
      panel.isActive = false;
      for (const Segment& s : panel.segments) {
        if (s.begin >= end || s.end <= begin) continue;
        panel.isActive = true;
        from = std::min(from, std::max(s.begin / multiple * multiple, begin));
        to = std::max(to, std::min(s.end, end));
      }
    }
    if (from >= to) return;
    const KvRows keys = reader_.read(from, static_cast<int32_t>(roundUp(to - from, multiple)));
    for (TaskGradient* gradient : {&dk_, &dv_}) gradient->load({keys.first, keys.first + presentKeys(keys)});
    RowRange stripRows[kMaxStrips];
    for (size_t p = 0; p < panels_.size(); ++p) {
      if (!panels_[p].isActive) continue;
      if (prefetchesKeys_) allotPrefetch();
      computePanelBlock(static_cast<int32_t>(p), keys, stripRows);
    }
    if (defersKeyGradients()) sumStrips(keys, stripRows);
  }

  /// Computes weights and dq of one panel, and adds it to the ranges of the strips that it contributes to.
  void computePanelBlock(int32_t p, const KvRows& keys, RowRange* stripRows) {
    const Panel& panel = panels_[static_cast<size_t>(p)];
    const int32_t begin = keys.first, end = keys.first + keys.count;
    for (const Segment& s : panel.segments) {
      forEachPart(s, kernels_, {begin, end}, [&](int32_t from, int32_t to, bool isMasked) {
        computeSubBlock(panel, subBlock(kernels_, keys, from, to), from - begin, isMasked ? &s.bounds : nullptr);
        for (int32_t strip = (from - begin) / keysPerStrip_; strip * keysPerStrip_ < to - begin; ++strip) {
          const int32_t stripBegin = begin + strip * keysPerStrip_;
          const Range keysOfStrip{std::max(from, stripBegin), std::min(to, stripBegin + keysPerStrip_)};
          const RowRange rows = attendingRows(panel, isMasked && !isPaired() ? &s.bounds : nullptr, keysOfStrip);
          if (rows.first >= rows.end) continue;
          stripRows[strip] = {std::min(stripRows[strip].first, p * kernels_.width + rows.first),
                              std::max(stripRows[strip].end, p * kernels_.width + rows.end)};
        }
      });
    }
  }

  /// Returns the range from the first to the last row that attends to a key of the range.
  static RowRange attendingRows(const Panel& panel, const VisibleKeys* bounds, const Range& keys) {
    RowRange rows{0, panel.rows.count};
    if (bounds == nullptr) return rows;
    const auto isHidden = [&](int32_t r) { return bounds->lo[r] >= keys.end || bounds->hi[r] <= keys.begin; };
    while (rows.first < rows.end && isHidden(rows.first)) ++rows.first;
    while (rows.first < rows.end && isHidden(rows.end - 1)) --rows.end;
    return rows;
  }

  /// Processes keys of one panel that are visible to all rows, or as given by `bounds`. `offset` is the row of the
  /// weights.
  void computeSubBlock(const Panel& panel, const KvRows& keys, int32_t offset, const VisibleKeys* bounds) {
    BackwardPanel buffers = panel.buffers;
    buffers.p = static_cast<char*>(buffers.p) + offset * buffers.stride * elementBytes_;
    buffers.ds = static_cast<char*>(buffers.ds) + offset * buffers.stride * elementBytes_;
    if (!isPaired()) buffers.dsPanel = buffers.ds;
    if (modifiers_.modifiesScores()) {
      kernels_.computeModifiedGradients(buffers, keys, bounds, panel.modifiers, scratch_);
    } else if (bounds == nullptr) {
      kernels_.computeGradients(buffers, keys);
    } else {
      kernels_.computeMaskedGradients(buffers, keys, *bounds);
    }
    if (isPaired()) clearPadding(panel, buffers, keys.count);
    if (defersKeyGradients()) return;
    const int32_t rows = panel.rows.count;
    for (const KeyGradient& term :
         {valueGradientTerm(panel, offset, rows, keys), keyGradientTerm(panel, offset, rows, keys)}) {
      if (bounds == nullptr || areOperandsFinite_) {
        kernels_.addKeyGradient(term);
      } else {
        kernels_.addMaskedKeyGradient(term, keys.first, *bounds);
      }
    }
  }

  /// Sums dk and dv of each strip over its range of rows: float32 in parts of `kSumRows`, bfloat16 at once.
  void sumStrips(const KvRows& keys, const RowRange* stripRows) {
    for (int32_t strip = 0, next; strip * keysPerStrip_ < keys.count; strip = next) {
      const RowRange range = stripRows[strip];
      for (next = strip + 1; next * keysPerStrip_ < keys.count && stripRows[next] == range;) ++next;
      if (range.first >= range.end) continue;
      const int32_t begin = strip * keysPerStrip_, end = std::min(next * keysPerStrip_, keys.count);
      for (int32_t p = range.first / kernels_.width; p * kernels_.width < range.end; ++p) {
        clearUncomputedWeights(panels_[static_cast<size_t>(p)], keys.first, {begin, end});
      }
      const KvRows stripKeys = subBlock(kernels_, keys, keys.first + begin, keys.first + end);
      // The range ends before the padding of the last panel: for an infinite key, its weights there are 0 · ∞.
      const int32_t sumRows = isPaired() ? range.end - range.first : kSumRows;
      for (int32_t first = range.first; first < range.end; first += sumRows) {
        const int32_t rows = std::min(sumRows, range.end - first);
        const Panel& panel = panels_[static_cast<size_t>(first / kernels_.width)];
        for (KeyGradient term : {valueGradientTerm(panel, begin, rows, stripKeys),
                                 keyGradientTerm(panel, begin, rows, stripKeys)}) {
          skipRows(term, first % kernels_.width);
          kernels_.addKeyGradient(term);
        }
      }
    }
  }

  /// Removes the first `count` rows of a term from its matrices.
  void skipRows(KeyGradient& term, int64_t count) const {
    term.coefficients = static_cast<const char*>(term.coefficients) + count * elementBytes_;
    term.rows = static_cast<const char*>(term.rows) + count * rowStride_ * elementBytes_;
  }

  /// Returns the term dv += p · dOut over `rows` rows, beginning with the panel's first. `offset` is the row of the
  /// weights.
  KeyGradient valueGradientTerm(const Panel& panel, int32_t offset, int32_t rows, const KvRows& keys) const {
    const FloatRows dv = dv_.rowsFrom(keys.first);
    const int64_t stride = panel.buffers.stride;
    return {static_cast<char*>(panel.buffers.p) + offset * stride * elementBytes_,
            stride,
            panel.dOut,
            rowStride_,
            rows,
            presentKeys(keys),
            valueDepth_,
            1.0f,
            dv.data,
            dv.rowStride,
            dv.columnStride};
  }

  /// Returns the term dk += scale · ds · q.
  KeyGradient keyGradientTerm(const Panel& panel, int32_t offset, int32_t rows, const KvRows& keys) const {
    const FloatRows dk = dk_.rowsFrom(keys.first);
    const int64_t stride = panel.buffers.stride;
    return {static_cast<char*>(panel.buffers.ds) + offset * stride * elementBytes_,
            stride,
            panel.q,
            rowStride_,
            rows,
            presentKeys(keys),
            depth_,
            args_.tile.scale,
            dk.data,
            dk.rowStride,
            dk.columnStride};
  }

  /// Returns the number of keys of a block that are not padding.
  int32_t presentKeys(const KvRows& keys) const {
    return static_cast<int32_t>(std::min<int64_t>(keys.count, args_.kv.k.shape[2] - keys.first));
  }

  /// Clears the weights of the keys in `strip` that are in no segment of a panel, because the sums of dk and dv of the
  /// strip include every row of its panels. The strip is relative to `firstKey`, the first key of the block.
  void clearUncomputedWeights(const Panel& panel, int32_t firstKey, Range strip) const {
    const int64_t multiple = kernels_.keyMultiple;
    int64_t next = strip.begin;
    for (const Segment& s : panel.segments) {
      clearWeights(panel, {next, std::min(s.begin / multiple * multiple - firstKey, strip.end)});
      next = std::max(next, roundUp(s.end, multiple) - firstKey);
    }
    clearWeights(panel, {next, strip.end});
  }

  /// Clears rows [begin, end) of the weights of a panel.
  void clearWeights(const Panel& panel, Range keys) const {
    for (void* matrix : {panel.buffers.p, panel.buffers.ds}) {
      for (int64_t j = keys.begin; j < keys.end; ++j) {
        char* row = static_cast<char*>(matrix) + j * panel.buffers.stride * elementBytes_;
        std::memset(row, 0, static_cast<size_t>(kernels_.width * elementBytes_));
      }
    }
  }

  /// Clears the padding of the weights. Sums over pairs of rows include the padding after an odd last row, where
  /// weights are 0 · ∞ if a key is infinite.
  void clearPadding(const Panel& panel, const BackwardPanel& buffers, int32_t keys) const {
    const int32_t count = panel.rows.count;
    if (count == kernels_.width) return;
    for (void* matrix : {buffers.p, buffers.ds}) {
      for (int32_t j = 0; j < keys; ++j) {
        char* row = static_cast<char*>(matrix) + j * buffers.stride * elementBytes_;
        std::memset(row + count * elementBytes_, 0, static_cast<size_t>((kernels_.width - count) * elementBytes_));
      }
    }
  }

  void storeQueryGradients(const Panel& panel) const {
    float* factor = panel.buffers.negLse;  // no longer needed
    std::fill(factor, factor + kernels_.width, args_.tile.scale);
    kernels_.fromPanel(panel.buffers.dq, factor, depth_, rowBuffer_, rowStride_);
    const FloatRows dq(args_.grads.dq, {task_.batch, task_.head, panel.rows.first});
    for (int32_t r = 0; r < panel.rows.count; ++r) {
      const float* terms = rowBuffer_ + r * rowStride_;
      const FloatRow sums = dq.row(r);
      if (sums.stride == 1) {  // compiled to vectors
        for (int32_t d = 0; d < depth_; ++d) sums.data[d] += terms[d];
      } else {
        for (int32_t d = 0; d < depth_; ++d) sums.data[d * sums.stride] += terms[d];
      }
    }
  }

  bool isPaired() const { return kernels_.products == DType::BFloat16; }

  const AttendBackwardArguments& args_;
  const AttentionKernels& kernels_;
  const CallModifiers& modifiers_;
  const GradientTask& task_;
  Arena& arena_;
  RowPrefetch& prefetch_;
  const bool areKeysReused_;
  const bool prefetchesKeys_;  // or dk and dv; of one group of rows, nothing or what the caller has selected
  int64_t prefetchedEnd_;      // the end of the keys that were prefetched
  int64_t unallottedRows_ = 0; // rows to prefetch during the next panels of a block
  KvReader reader_;
  TaskGradient dk_, dv_;
  const int32_t depth_, valueDepth_;
  const int64_t elementBytes_;  // bytes of an element of the products
  const int64_t rowStride_;
  const int32_t keysPerStrip_;  // keys per strip
  std::vector<Panel> panels_;
  char *weights_, *scoreGradients_;  // [keys per block][rows of the group]
  float* rowBuffer_;
  ModifiedScratch scratch_{};            // for one block
  bool areOperandsFinite_ = true;        // whether all rows of q and dOut are finite
  bool areSegmentsDisjoint_ = true;      // no key is in two segments, each widened to `keyMultiple`, of a panel
};

}  // namespace

int64_t gradientGroupRows(const BackwardCall& call) { return int64_t{groupPanels(call)} * call.kernels.width; }

void runGradientTask(const BackwardCall& call, const PanelSegments& segments, const GradientTask& task, Arena& arena,
                     RowPrefetch& prefetch) {
  arena.reset();
  GradientGroup group(call, segments, task, arena, prefetch);
  const int64_t step = gradientGroupRows(call);
  for (int64_t first = task.rows.begin; first < task.rows.end; first += step) group.run(first, segments);
}

}  // namespace mosaic
