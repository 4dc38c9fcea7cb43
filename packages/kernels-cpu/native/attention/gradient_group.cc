#include "attention/gradient_group.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "attention/kv_reader.h"

namespace mosaic {
namespace {

constexpr int32_t kBlock = 96;                  // keys whose weights are held at once
constexpr int32_t kStrip = 24;                  // keys that share a range of panels in dk and dv
constexpr int32_t kStrips = kBlock / kStrip;
constexpr int32_t kMaxPanels = 8;
constexpr int64_t kMatrix = 12288;              // floats of one group's q: five such matrices are in use
static_assert(kBlock <= kKeyBlock);

int32_t groupPanels(const AttentionKernels& kernels, int64_t depth) {
  return static_cast<int32_t>(std::clamp<int64_t>(kMatrix / (depth * kernels.width), 1, kMaxPanels));
}

struct Panel {
  BackwardPanel at;
  PanelRows rows;
  std::span<const Segment> segments;  // those that meet the keys of the task, by begin
  float *q, *dOut;  // [width][rowStride], plain rows
  bool isActive;        // takes part in the current block
};

/// Panels that share a strip of keys.
struct PanelRange {
  int32_t first = INT32_MAX, last = -1;
  bool operator==(const PanelRange&) const = default;
};

class GradientGroup {
 public:
  GradientGroup(const AttendBackwardArguments& args, const AttentionKernels& kernels, const GradientTask& task,
                Arena& arena)
      : a_(args),
        k_(kernels),
        task_(task),
        reader_(kernels, args.kv.k, args.kv.v, arena),
        depth_(static_cast<int32_t>(args.q.shape[3])),
        rowStride_(paddedStride(depth_)),
        panels_(static_cast<size_t>(groupPanels(kernels, depth_))) {
    reader_.select(task.batch, task.keyHead);
    const int64_t rows = static_cast<int64_t>(panels_.size()) * k_.width;
    weights_ = arena.allocate<float>(kBlock * rows);
    weightGradients_ = arena.allocate<float>(kBlock * rows);
    float* q = arena.allocate<float>(rows * rowStride_);
    float* dOut = arena.allocate<float>(rows * rowStride_);
    rowBuffer_ = arena.allocate<float>(k_.width * rowStride_);
    for (size_t p = 0; p < panels_.size(); ++p) {
      const int64_t first = static_cast<int64_t>(p) * k_.width, size = depth_ * k_.width;
      panels_[p].q = q + first * rowStride_;
      panels_[p].dOut = dOut + first * rowStride_;
      panels_[p].at = {arena.allocate<float>(size), arena.allocate<float>(size), arena.allocate<float>(size),
                       arena.allocate<float>(k_.width), arena.allocate<float>(k_.width), weights_ + first,
                       weightGradients_ + first, rows, depth_, false};
    }
  }

  /// The group that starts at row `first`.
  void run(int64_t first, const PanelSegments& segments) {
    bool any = false;
    finite_ = disjoint_ = true;
    for (Panel& panel : panels_) {
      any |= load(panel, first, segments);
      first += k_.width;
    }
    if (!any) return;
    for (int64_t begin = task_.keys.begin; begin < task_.keys.end; begin += kBlock) {
      block(static_cast<int32_t>(begin), static_cast<int32_t>(std::min(begin + kBlock, task_.keys.end)));
    }
    for (const Panel& panel : panels_) {
      if (!panel.segments.empty()) store(panel);
    }
  }

 private:
  /// False if the rows see no key of the task. Such a panel is all zeros, as is the padding of the others.
  bool load(Panel& panel, int64_t first, const PanelSegments& segments) {
    panel.rows = segments.rows(first / k_.width);
    const int64_t count = panel.rows.count;
    panel.segments = segments.segments(first / k_.width);
    if (first >= task_.rows.end) panel.segments = {};
    const auto outside = [&](const Segment& s) { return s.begin >= task_.keys.end || s.end <= task_.keys.begin; };
    while (!panel.segments.empty() && outside(panel.segments.front())) panel.segments = panel.segments.subspan(1);
    while (!panel.segments.empty() && outside(panel.segments.back())) {
      panel.segments = panel.segments.first(panel.segments.size() - 1);
    }
    const int64_t used = panel.segments.empty() ? 0 : count;
    for (float* rows : {panel.q, panel.dOut}) {
      std::fill(rows + used * rowStride_, rows + k_.width * rowStride_, 0.0f);
    }
    if (used == 0) return false;

    const HeadRows at{task_.batch, task_.head, first};
    k_.unpack(rowsOf(a_.q, at), count, depth_, panel.q, rowStride_);
    k_.unpack(rowsOf(a_.saved.dOut, at), count, depth_, panel.dOut, rowStride_);
    k_.toPanel(panel.q, rowStride_, count, depth_, a_.tile.scale, panel.at.q);
    k_.toPanel(panel.dOut, rowStride_, count, depth_, 1.0f, panel.at.dOut);
    std::memset(panel.at.dq, 0, static_cast<size_t>(depth_ * k_.width) * sizeof(float));
    loadStatistics(panel, at);

    finite_ &= k_.finite(panel.q, rowStride_, count, depth_) && k_.finite(panel.dOut, rowStride_, count, depth_);
    for (size_t i = 1; i < panel.segments.size(); ++i) {
      disjoint_ &= panel.segments[i].begin >= panel.segments[i - 1].end;
    }
    return true;
  }

  void loadStatistics(Panel& panel, const HeadRows& at) const {
    const FloatRows lse(a_.saved.lse, at), delta(a_.saved.delta, at);
    std::fill(panel.at.negLse, panel.at.negLse + k_.width, -INFINITY);
    std::fill(panel.at.negDelta, panel.at.negDelta + k_.width, 0.0f);
    panel.at.large = false;
    for (int32_t r = 0; r < panel.rows.count; ++r) panel.at.large |= isLarge(lse(r));
    for (int32_t r = 0; r < panel.rows.count; ++r) {
      if (lse(r) == -INFINITY) continue;
      panel.at.negLse[r] = panel.at.large ? -lse(r) : static_cast<float>(-lse(r) * std::numbers::log2e);
      panel.at.negDelta[r] = -delta(r);
    }
  }

  /// Whether dk and dv of a block are summed over all its panels at once, at the end. That needs one place for each
  /// weight, and rows that a weight of 0 does not turn into NaN.
  bool defersKeyGradients() const { return finite_ && disjoint_; }

  void block(int32_t begin, int32_t end) {
    int32_t from = end, to = begin;
    for (Panel& panel : panels_) {
      panel.isActive = false;
      for (const Segment& s : panel.segments) {
        if (s.begin >= end || s.end <= begin) continue;
        panel.isActive = true;
        from = std::min(from, std::max(s.begin, begin));
        to = std::max(to, std::min(s.end, end));
      }
    }
    if (from >= to) return;
    const KvRows keys = reader_.read(from, to - from);
    PanelRange strips[kStrips];
    for (size_t p = 0; p < panels_.size(); ++p) {
      if (panels_[p].isActive) panelBlock(static_cast<int32_t>(p), keys, strips);
    }
    if (defersKeyGradients()) sumStrips(keys, strips);
  }

  /// Weights and dq of one panel; marks the strips that it touches.
  void panelBlock(int32_t p, const KvRows& keys, PanelRange* strips) {
    const Panel& panel = panels_[static_cast<size_t>(p)];
    const int32_t begin = keys.first, end = keys.first + keys.count;
    int32_t covered = 0;
    for (const Segment& s : panel.segments) covered += std::max(0, std::min(s.end, end) - std::max(s.begin, begin));
    if (defersKeyGradients() && covered < keys.count) clear(panel, keys.count);
    for (const Segment& s : panel.segments) {
      const int32_t edges[] = {s.begin, s.coreBegin, s.coreEnd, s.end};
      for (int i = 0; i < 3; ++i) {
        const int32_t from = std::max(edges[i], begin), to = std::min(edges[i + 1], end);
        if (from >= to) continue;
        computeSubBlock(panel, subBlock(keys, from, to), from - begin, i == 1 ? nullptr : &s.visible);
        for (int32_t strip = (from - begin) / kStrip; strip * kStrip < to - begin; ++strip) {
          strips[strip] = {std::min(strips[strip].first, p), std::max(strips[strip].last, p)};
        }
      }
    }
  }

  /// Keys of one panel that all rows see, or that `visible` distinguishes. `offset` is the row of the weights.
  void computeSubBlock(const Panel& panel, const KvRows& keys, int32_t offset, const VisibleKeys* visible) {
    BackwardPanel at = panel.at;
    at.p += offset * at.stride;
    at.ds += offset * at.stride;
    if (visible == nullptr) {
      k_.gradient(at, keys);
    } else {
      k_.gradientMasked(at, keys, *visible);
    }
    if (defersKeyGradients()) return;
    const int32_t rows = panel.rows.count;
    for (const KeyGradient& term : {valueTerm(panel, offset, rows, keys), keyTerm(panel, offset, rows, keys)}) {
      if (visible == nullptr || finite_) {
        k_.keyGradient(term);
      } else {
        k_.keyGradientMasked(term, keys.first, *visible);
      }
    }
  }

  /// dk and dv over as many panels at once as possible: the longer the sum, the fewer times they are loaded and stored.
  void sumStrips(const KvRows& keys, const PanelRange* strips) {
    PanelRange all;
    for (int i = 0; i < kStrips; ++i) all = {std::min(all.first, strips[i].first), std::max(all.last, strips[i].last)};
    for (int32_t p = all.first; p <= all.last; ++p) {
      const Panel& panel = panels_[static_cast<size_t>(p)];
      if (!panel.isActive) clear(panel, keys.count);
    }
    for (int32_t strip = 0, next; strip * kStrip < keys.count; strip = next) {
      const PanelRange range = strips[strip];
      for (next = strip + 1; next * kStrip < keys.count && strips[next] == range;) ++next;
      if (range.last < range.first) continue;
      const Panel& panel = panels_[static_cast<size_t>(range.first)];
      // Without the padding of the last: where a key is infinite its weights there are 0 · ∞.
      const int32_t rows = (range.last - range.first) * k_.width + panels_[static_cast<size_t>(range.last)].rows.count;
      const int32_t begin = strip * kStrip, end = std::min(next * kStrip, keys.count);
      const KvRows some = subBlock(keys, keys.first + begin, keys.first + end);
      k_.keyGradient(valueTerm(panel, begin, rows, some));
      k_.keyGradient(keyTerm(panel, begin, rows, some));
    }
  }

  /// dv += p · dOut over `rows` rows from the first of the panel on. `offset` is the row of the weights.
  KeyGradient valueTerm(const Panel& panel, int32_t offset, int32_t rows, const KvRows& keys) const {
    const FloatRows dv(a_.grads.dv, {task_.batch, task_.keyHead, keys.first});
    const int64_t stride = panel.at.stride;
    return {panel.at.p + offset * stride, stride, panel.dOut, rowStride_, rows, keys.count, depth_, 1.0f, dv.data,
            dv.rowStride, dv.columnStride};
  }

  /// dk += scale · ds · q
  KeyGradient keyTerm(const Panel& panel, int32_t offset, int32_t rows, const KvRows& keys) const {
    const FloatRows dk(a_.grads.dk, {task_.batch, task_.keyHead, keys.first});
    const int64_t stride = panel.at.stride;
    return {panel.at.ds + offset * stride, stride, panel.q, rowStride_, rows, keys.count, depth_, a_.tile.scale,
            dk.data, dk.rowStride, dk.columnStride};
  }

  void clear(const Panel& panel, int32_t keys) const {
    for (int32_t j = 0; j < keys; ++j) {
      std::memset(panel.at.p + j * panel.at.stride, 0, static_cast<size_t>(k_.width) * sizeof(float));
      std::memset(panel.at.ds + j * panel.at.stride, 0, static_cast<size_t>(k_.width) * sizeof(float));
    }
  }

  void store(const Panel& panel) const {
    float* factor = panel.at.negLse;  // no longer needed
    std::fill(factor, factor + k_.width, a_.tile.scale);
    k_.fromPanel(panel.at.dq, factor, depth_, rowBuffer_, rowStride_);
    const FloatRows dq(a_.grads.dq, {task_.batch, task_.head, panel.rows.first});
    for (int32_t r = 0; r < panel.rows.count; ++r) {
      for (int32_t d = 0; d < depth_; ++d) dq(r, d) += rowBuffer_[r * rowStride_ + d];
    }
  }

  const AttendBackwardArguments& a_;
  const AttentionKernels& k_;
  const GradientTask& task_;
  KvReader reader_;
  const int32_t depth_;
  const int64_t rowStride_;
  std::vector<Panel> panels_;
  float *weights_, *weightGradients_;  // [kBlock][rows of the group]
  float* rowBuffer_;
  bool finite_ = true;                   // all rows of q and dOut
  bool disjoint_ = true;                 // no key lies in two segments of a panel
};

}  // namespace

int64_t gradientGroupRows(const AttentionKernels& kernels, int64_t depth) {
  return int64_t{groupPanels(kernels, depth)} * kernels.width;
}

void gradientTask(const AttendBackwardArguments& args, const AttentionKernels& kernels, const PanelSegments& segments,
                  const GradientTask& task, Arena& arena) {
  arena.reset();
  GradientGroup group(args, kernels, task, arena);
  const int64_t step = gradientGroupRows(kernels, args.q.shape[3]);
  for (int64_t first = task.rows.begin; first < task.rows.end; first += step) group.run(first, segments);
}

}  // namespace mosaic
