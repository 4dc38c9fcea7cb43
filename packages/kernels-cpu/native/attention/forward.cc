// The forward fold: tasks are groups of panels of one head; a group shares each block of keys it reads.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <span>

#include "attention/attention.h"
#include "attention/kv_reader.h"
#include "attention/kernels.h"
#include "attention/tile_visibility.h"

namespace mosaic {
namespace {

constexpr int32_t kGroupPanels = 16;           // enough to hide the cost of reading a block
constexpr int64_t kGroupBytes = 224 << 10;      // of q and out, which should stay in the second-level cache
constexpr int64_t kTasksPerThread = 4;          // for balance
constexpr double kLog2e = std::numbers::log2e;

struct Panel {
  ForwardPanel at;
  PanelRows rows;
  std::span<const Segment> segments;  // by begin; those that are done drop out
};

/// Tasks [firstTask, endTask) are those of a batch element: its groups, head by head.
struct SampleTasks {
  int64_t batch, firstTask, endTask;
};

class Forward {
 public:
  Forward(const AttendArguments& args, const AttentionKernels& kernels, Arena& shared)
      : a_(args),
        k_(kernels),
        visibility_(args.tile, args.q.shape[0]),
        rows_(args.q.shape[2]),
        keys_(args.kv.k.shape[2]),
        depth_(args.q.shape[3]),
        rowStride_((depth_ + k_.rowPadding - 1) / k_.rowPadding * k_.rowPadding) {
    for (size_t i = 0; i < visibility_.count(); ++i) {
      panelSegments_.emplace_back(visibility_[i], rows_, k_.width, shared);
    }
  }

  void run(Pool& pool) {
    const int64_t heads = a_.q.shape[0] * a_.q.shape[1];
    const int64_t panels = (rows_ + k_.width - 1) / k_.width;
    const int64_t byCache = kGroupBytes / (2 * 4 * depth_ * k_.width);
    const int64_t tasks = pool.threads() == 1 ? 1 : kTasksPerThread * pool.threads();
    const int64_t byBalance = heads * panels / tasks;
    groupPanels_ = static_cast<int32_t>(std::clamp<int64_t>(std::min(byCache, byBalance), 1, kGroupPanels));
    orderGroups();
    pool.parallelFor(samples_.back().endTask, [&](int64_t task, int worker) {
      const auto isLater = [](int64_t at, const SampleTasks& sample) { return at < sample.endTask; };
      const SampleTasks& sample = *std::upper_bound(samples_.begin(), samples_.end(), task, isLater);
      Arena& arena = pool.arena(worker);
      arena.reset();
      const std::vector<int64_t>& groups = groups_[visibility_.indexOf(sample.batch)];
      const int64_t perHead = static_cast<int64_t>(groups.size()), own = task - sample.firstTask;
      group(sample.batch, own / perHead, groups[static_cast<size_t>(own % perHead)], arena);
    });
  }

 private:
  /// Groups with work, the largest first, so that the last tasks are short. One head after the other, so that its keys
  /// stay in the shared cache; samples with more work first.
  void orderGroups() {
    const int64_t size = groupPanels_ * k_.width, batches = a_.q.shape[0];
    std::vector<double> works;
    for (size_t i = 0; i < visibility_.count(); ++i) {
      std::vector<std::pair<double, int64_t>> found;
      double sum = 0;
      for (int64_t first = 0; first < rows_; first += size) {
        const double work = visibility_[i].work({first, std::min(rows_, first + size)}, {0, keys_});
        if (work > 0) found.push_back({-work, first});
        sum += work;
      }
      std::sort(found.begin(), found.end());
      groups_.emplace_back();
      for (const auto& [work, first] : found) groups_.back().push_back(first);
      works.push_back(sum);
    }
    for (int64_t b = 0; b < batches; ++b) samples_.push_back({b, 0, 0});
    const auto workOf = [&](const SampleTasks& sample) { return works[visibility_.indexOf(sample.batch)]; };
    std::stable_sort(samples_.begin(), samples_.end(),
                     [&](const auto& a, const auto& b) { return workOf(a) > workOf(b); });
    int64_t tasks = 0;
    for (SampleTasks& sample : samples_) {
      sample.firstTask = tasks;
      tasks += a_.q.shape[1] * static_cast<int64_t>(groups_[visibility_.indexOf(sample.batch)].size());
      sample.endTask = tasks;
    }
  }

  void group(int64_t batch, int64_t h, int64_t first, Arena& arena) const {
    const PanelSegments& panelSegments = panelSegments_[visibility_.indexOf(batch)];
    KvReader reader(k_, a_.kv.k, a_.kv.v, arena);
    reader.select(batch, h * a_.kv.k.shape[1] / a_.q.shape[1]);
    float* weights = arena.allocate<float>(kKeyBlock * k_.width);
    float* rowBuffer = arena.allocate<float>(k_.width * rowStride_);

    std::vector<Panel> panels;
    panels.reserve(static_cast<size_t>(groupPanels_));
    for (int64_t p = first / k_.width; p < first / k_.width + groupPanels_; ++p) {
      const std::span<const Segment> segments = panelSegments.segments(p);
      if (segments.empty()) continue;
      const int64_t size = depth_ * k_.width;
      panels.push_back({{arena.allocate<float>(size), arena.allocate<float>(size), arena.allocate<float>(k_.width),
                         arena.allocate<float>(k_.width), weights, static_cast<int32_t>(depth_), false},
                        panelSegments.rows(p),
                        segments});
      load(panels.back(), {batch, h, panels.back().rows.first}, rowBuffer);
    }
    foldKeys(panels, reader);
    for (Panel& panel : panels) {
      panel.segments = panelSegments.segments(panel.rows.first / k_.width);
      store(panel, {batch, h, panel.rows.first}, rowBuffer);
    }
  }

  /// Every block of keys that some panel sees, in order. Blocks lie on a fixed grid, so that a row's result does not
  /// depend on its group.
  void foldKeys(std::vector<Panel>& panels, const KvReader& reader) const {
    for (int64_t block = 0, next; block < keys_; block = next / kKeyBlock * kKeyBlock) {
      const int32_t begin = static_cast<int32_t>(block), end = static_cast<int32_t>(std::min(block + kKeyBlock, keys_));
      int32_t from = end, to = begin;
      next = INT64_MAX;
      for (Panel& panel : panels) {
        forSegments(panel, begin, end, next, [&](const Segment& s) {
          from = std::min(from, std::max(s.begin, begin));
          to = std::max(to, std::min(s.end, end));
        });
      }
      if (from < to) {
        const KvRows keys = reader.read(from, to - from);
        for (Panel& panel : panels) {
          forSegments(panel, begin, end, next, [&](const Segment& s) { foldSegment(panel.at, s, keys); });
        }
      }
    }
  }

  /// Calls fn for the segments that meet [begin, end); lowers `next` to the first key after it that the panel sees.
  template <class Fn>
  static void forSegments(Panel& panel, int32_t begin, int32_t end, int64_t& next, Fn fn) {
    while (!panel.segments.empty() && panel.segments.front().end <= begin) panel.segments = panel.segments.subspan(1);
    for (const Segment& s : panel.segments) {
      if (s.end > end) next = std::min<int64_t>(next, std::max(s.begin, end));
      if (s.begin >= end) break;
      if (s.end > begin) fn(s);
    }
  }

  void foldSegment(ForwardPanel& panel, const Segment& s, const KvRows& keys) const {
    const int32_t begin = keys.first, end = keys.first + keys.count;
    const auto clipped = [&](int32_t from, int32_t to, auto fold) {
      from = std::max(from, begin), to = std::min(to, end);
      if (from < to) fold(subBlock(keys, from, to));
    };
    const auto masked = [&](const KvRows& block) { k_.foldMasked(panel, block, s.visible); };
    clipped(s.begin, s.coreBegin, masked);
    clipped(s.coreBegin, s.coreEnd, [&](const KvRows& block) { k_.fold(panel, block); });
    clipped(s.coreEnd, s.end, masked);
  }

  /// Queries, and the state so far: m = lse, Σ = 1, out as it is. Where m is multiplied by log2 e, and rounded, what it
  /// lost goes into Σ.
  void load(Panel& panel, const HeadRows& rows, float* rowBuffer) const {
    ForwardPanel& at = panel.at;
    const int32_t count = panel.rows.count;
    k_.unpack(rowsOf(a_.q, rows), count, depth_, rowBuffer, rowStride_);
    k_.toPanel(rowBuffer, rowStride_, count, depth_, a_.tile.scale, at.q);

    std::fill(at.negMax, at.negMax + k_.width, 0.0f);
    std::fill(at.sum, at.sum + k_.width, 0.0f);
    const FloatRows lse(a_.state.lse, rows);
    bool any = false;
    for (int32_t r = 0; r < count; ++r) at.large |= isLarge(lse(r));
    for (int32_t r = 0; r < count; ++r) {
      if (lse(r) == -INFINITY) continue;
      const double state = lse(r) * kLog2e;
      at.negMax[r] = at.large ? -lse(r) : static_cast<float>(-state);
      at.sum[r] = at.large ? 1 : static_cast<float>(std::exp2(state + at.negMax[r]));
      any = true;
    }
    if (!any) {
      std::memset(at.out, 0, static_cast<size_t>(depth_ * k_.width) * sizeof(float));
      return;
    }
    k_.unpack(rowsOf(a_.state.out, rows), count, depth_, rowBuffer, rowStride_);
    for (int32_t r = 0; r < count; ++r) {
      float* row = rowBuffer + r * rowStride_;
      for (int64_t d = 0; d < depth_; ++d) row[d] = at.sum[r] == 0 ? 0.0f : row[d] * at.sum[r];
    }
    k_.toPanel(rowBuffer, rowStride_, count, depth_, 1.0f, at.out);
  }

  /// out and lse of the rows that saw something.
  void store(const Panel& panel, const HeadRows& rows, float* rowBuffer) const {
    const ForwardPanel& at = panel.at;
    const FloatRows out(a_.state.out, rows), lse(a_.state.lse, rows);
    float* factor = at.p;  // no longer needed
    for (int32_t r = 0; r < k_.width; ++r) factor[r] = 1.0f / at.sum[r];
    k_.fromPanel(at.out, factor, depth_, rowBuffer, rowStride_);
    for (int32_t r = 0; r < panel.rows.count; ++r) {
      const auto saw = [r](const Segment& s) { return s.visible.lo[r] < s.visible.hi[r]; };
      if (at.sum[r] == 0 || std::none_of(panel.segments.begin(), panel.segments.end(), saw)) continue;
      const double sum = at.sum[r], total = std::log2(sum) - at.negMax[r];
      lse(r) = static_cast<float>(at.large ? std::log(sum) - at.negMax[r] : total / kLog2e);
      const float* row = rowBuffer + r * rowStride_;
      for (int64_t d = 0; d < depth_; ++d) out(r, d) = row[d];
    }
  }

  const AttendArguments& a_;
  const AttentionKernels& k_;
  const BatchVisibility visibility_;
  const int64_t rows_, keys_, depth_;
  const int64_t rowStride_;  // of the row buffer
  int32_t groupPanels_ = 1;
  // One for each visibility.
  std::vector<PanelSegments> panelSegments_;
  std::vector<std::vector<int64_t>> groups_;  // first rows
  std::vector<SampleTasks> samples_;          // every batch element, in the order of its tasks
};

}  // namespace

void attend(const AttendArguments& args, Isa isa, Pool& pool) {
  if (isEmpty(args.q) || isEmpty(args.kv.k)) return;
  checkSpans(args.tile, args.q.shape[2], args.kv.k.shape[2]);
  pool.shared().reset();
  Forward(args, attentionKernels(isa), pool.shared()).run(pool);
}

}  // namespace mosaic
