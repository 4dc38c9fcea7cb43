// The forward fold: tasks are groups of panels of one head; a group shares each block of keys it reads.
#include <algorithm>
#include <span>

#include "attention/attention.h"
#include "attention/query_panels.h"
#include "attention/short_queries.h"
#include "micro/micro_kernels.h"
#include "short_sequences/short_sequences.h"
#include "simd/integers.h"

namespace mosaic {
namespace {

// Row limits that amortize the cost of reading a block: in place, through a copy, or, for bfloat16, transposed. Smaller
// groups are easier to balance.
constexpr int32_t kMaxGroupRows = 448, kMaxCopiedGroupRows = 896, kMaxPairedGroupRows = 1024;
constexpr int64_t kMaxGroupBytes = 448 << 10;  // q and out of a group, which should fit the L2 cache
constexpr int64_t kTasksPerThread = 4;         // for load balance
constexpr int64_t kMaxPrefetchedBytes = 256 << 10;  // q, k and v of a head that an earlier task prefetches

/// Tasks [firstTask, endTask) belong to one batch element: its groups, head by head.
struct SampleTasks {
  int64_t batch, firstTask, endTask;
};

/// A group of panels: its head and its first row.
struct Group {
  int64_t batch, head, first;
};

/// Processes groups of query panels as tasks of the pool. FoldBlock (fold_block.h) folds a block of keys into a panel.
class Forward {
 public:
  Forward(const ForwardCall& call, Arena& sharedArena)
      : call_(call),
        args_(call.args),
        kernels_(call.kernels.attention),
        visibility_(args_.tile, args_.q.shape[0]),
        rows_(args_.q.shape[2]),
        keys_(args_.kv.k.shape[2]) {
    for (size_t i = 0; i < visibility_.count(); ++i) {
      panelSegments_.emplace_back(visibility_[i], rows_, kernels_.width, sharedArena);
    }
  }

  void run(Pool& pool) {
    const int64_t heads = args_.q.shape[0] * args_.q.shape[1];
    const int64_t panels = ceilDiv(rows_, kernels_.width);
    const int64_t panelBytes =
        (4 * args_.kv.v.shape[3] + dtypeBytes(kernels_.products) * args_.q.shape[3]) * kernels_.width;
    const int64_t panelsFittingCache = kMaxGroupBytes / panelBytes;
    const int64_t tasks = pool.threads() == 1 ? 1 : kTasksPerThread * pool.threads();
    const int64_t panelsForBalance = heads * panels / tasks;
    groupPanels_ = static_cast<int32_t>(
        std::clamp<int64_t>(std::min(panelsFittingCache, panelsForBalance), 1, maxGroupRows() / kernels_.width));
    orderGroups();
    tasksInProgress_ = pool.threads();
    pool.parallelFor(samples_.back().endTask, [&](int64_t task, int worker) {
      Arena& arena = pool.arena(worker);
      arena.reset();
      foldGroup(task, arena);
    });
  }

 private:
  int32_t maxGroupRows() const {
    if (kernels_.products == DType::BFloat16) return kMaxPairedGroupRows;
    const bool isCopied = !areBlocksReadInPlace(kernels_, args_.kv.v, KvUse::Forward, true);
    return isCopied ? kMaxCopiedGroupRows : kMaxGroupRows;
  }

  /// Orders groups with work by descending size, so that the last tasks are short. Heads are processed one after the
  /// other, so that the keys of a head stay in the shared cache. Samples with more work come first.
  void orderGroups() {
    const int64_t size = groupPanels_ * kernels_.width, batches = args_.q.shape[0];
    std::vector<double> maskWork;
    for (size_t i = 0; i < visibility_.count(); ++i) {
      std::vector<std::pair<double, int64_t>> groupWork;
      double sum = 0;
      for (int64_t first = 0; first < rows_; first += size) {
        const double work = visibility_[i].work({first, std::min(rows_, first + size)}, {0, keys_});
        if (work > 0) groupWork.push_back({-work, first});
        sum += work;
      }
      std::sort(groupWork.begin(), groupWork.end());
      groups_.emplace_back();
      for (const auto& [work, first] : groupWork) groups_.back().push_back(first);
      maskWork.push_back(sum);
    }
    for (int64_t b = 0; b < batches; ++b) samples_.push_back({b, 0, 0});
    const auto sampleWork = [&](const SampleTasks& sample) { return maskWork[visibility_.indexOf(sample.batch)]; };
    std::stable_sort(samples_.begin(), samples_.end(),
                     [&](const auto& a, const auto& b) { return sampleWork(a) > sampleWork(b); });
    int64_t tasks = 0;
    for (SampleTasks& sample : samples_) {
      sample.firstTask = tasks;
      tasks += args_.q.shape[1] * static_cast<int64_t>(groups_[visibility_.indexOf(sample.batch)].size());
      sample.endTask = tasks;
    }
  }

  Group groupOf(int64_t task) const {
    const auto endsAfter = [](int64_t taskIndex, const SampleTasks& sample) { return taskIndex < sample.endTask; };
    const SampleTasks& sample = *std::upper_bound(samples_.begin(), samples_.end(), task, endsAfter);
    const std::vector<int64_t>& groups = groups_[visibility_.indexOf(sample.batch)];
    const int64_t groupsPerHead = static_cast<int64_t>(groups.size()), taskInSample = task - sample.firstTask;
    return {sample.batch, taskInSample / groupsPerHead, groups[static_cast<size_t>(taskInSample % groupsPerHead)]};
  }

  void foldGroup(int64_t task, Arena& arena) const {
    const Group group = groupOf(task);
    const PanelSegments& panelSegments = panelSegments_[visibility_.indexOf(group.batch)];
    QueryPanels panels(call_, static_cast<size_t>(groupPanels_), false, arena);
    const int64_t firstPanel = group.first / kernels_.width;
    for (int64_t p = firstPanel; p < firstPanel + groupPanels_; ++p) {
      const std::span<const Segment> segments = panelSegments.segments(p);
      if (segments.empty()) continue;
      const PanelRows rows = panelSegments.rows(p);
      panels.add({group.batch, group.head, 1, rows.first, rows.count}, segments);
    }
    RowPrefetch upcoming = upcomingRowsOf(task + tasksInProgress_);
    panels.fold(keyHead(group.head), {0, keys_}, &upcoming);
    panels.store(args_.state, {0, keys_}, false);
  }

  /// Returns the operands and the output of a later task if it is a whole head. The rows of a head are too far apart
  /// for the hardware prefetcher, and a short head has too little computation to hide reading them.
  RowPrefetch upcomingRowsOf(int64_t task) const {
    const AttendArguments& a = args_;
    const int64_t elements = rows_ * a.q.shape[3] + keys_ * (a.q.shape[3] + a.kv.v.shape[3]);
    const bool isSmallHead =
        rows_ <= groupPanels_ * kernels_.width && elements * dtypeBytes(a.q.dtype) <= kMaxPrefetchedBytes;
    if (!isSmallHead || task >= samples_.back().endTask) return {};
    const Group next = groupOf(task);
    const HeadRows queryRows{next.batch, next.head, 0}, keyRows{next.batch, keyHead(next.head), 0};
    return {{upcomingRows(a.q, queryRows), upcomingRows(a.state.out, queryRows), upcomingRows(a.kv.k, keyRows),
             upcomingRows(a.kv.v, keyRows)},
            std::min(rows_, keys_)};
  }

  int64_t keyHead(int64_t head) const { return head * args_.kv.k.shape[1] / args_.q.shape[1]; }

  const ForwardCall& call_;
  const AttendArguments& args_;
  const AttentionKernels& kernels_;
  const BatchVisibility visibility_;
  const int64_t rows_, keys_;
  int32_t groupPanels_ = 1;
  int64_t tasksInProgress_ = 1;  // one per thread
  // One entry per visibility.
  std::vector<PanelSegments> panelSegments_;
  std::vector<std::vector<int64_t>> groups_;  // first row of each group
  std::vector<SampleTasks> samples_;          // all batch elements, in task order
};

}  // namespace

void attend(const AttendArguments& args, Isa isa, Pool& pool) {
  if (isEmpty(args.q) || isEmpty(args.kv.k)) return;
  throwIfPositionsMismatch(args.tile, args.q.shape[2], args.kv.k.shape[2]);
  if (tryAttendShortSequences(args, isa, pool)) return;
  pool.sharedArena().reset();
  const bool hasSameDType = args.q.dtype == args.kv.k.dtype && args.q.dtype == args.kv.v.dtype;
  const CallModifiers modifiers(args.tile);
  // Modified scores pass through memory as float32, whatever the dtype of the operands.
  const bool isInputDTypeUsed = hasSameDType && !modifiers.modifiesScores();
  const ForwardCall call{args, microKernels(isa, isInputDTypeUsed ? args.q.dtype : DType::Float32), modifiers};
  if (areQueriesShort(args, call.kernels)) return attendShortQueries(call, pool);
  Forward(call, pool.sharedArena()).run(pool);
}

}  // namespace mosaic
