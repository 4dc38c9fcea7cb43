// The backward. A task is a block of keys and a block of rows of one key head. Within a task, groups of panels share
// smaller blocks of keys, see gradient_group.h.
//
// Blocks are processed in an order that makes the sums independent of the number of threads. A step adds to dk and dv
// of its keys and to dq of its rows. Steps of one key block, and steps of one row block, must therefore run in a fixed
// order; all other steps may run concurrently. Steps are arranged in rounds along the diagonals of the (keys × rows)
// grid, so that the steps of a round share neither keys nor rows. Each step has an index in the chain of its keys and
// one in the chain of its rows, and waits for its predecessors. Predecessors were claimed earlier, so they are running
// or done, and waits are rare and short.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "attention/attention.h"
#include "attention/gradient_group.h"
#include "attention/rows.h"
#include "attention/tile_visibility.h"
#include "micro/micro_kernels.h"
#include "pool/pause.h"
#include "short_sequences/short_sequences.h"
#include "simd/integers.h"

namespace mosaic {
namespace {

constexpr int64_t kMaxPrefetchedBytes = 128 << 10;  // operands of a head that an earlier step prefetches

struct BackwardStep {
  int32_t keyBlock, rowBlock;
  int32_t keyOrder, rowOrder;  // number of earlier steps with the same keys, and with the same rows
};

/// The division into blocks. Depends on the shapes alone.
struct BackwardGrid {
  int64_t keys, rows;            // keys of one key head; rows of one query head
  int64_t keysPerBlock, rowsPerBlock;
  int64_t groupSize;  // query heads per key head: each has its own row blocks

  int32_t keyBlocks() const { return static_cast<int32_t>(ceilDiv(keys, keysPerBlock)); }
  int32_t rowBlocksPerHead() const { return static_cast<int32_t>(ceilDiv(rows, rowsPerBlock)); }
  int32_t rowBlocks() const { return static_cast<int32_t>(rowBlocksPerHead() * groupSize); }
  Range keyRange(int32_t block) const;
  Range rowRange(int32_t block) const;  // within the query head rowHead(block)
  int64_t rowHead(int32_t block) const { return block / rowBlocksPerHead(); }
};

/// Returns the steps with work of one key head.
std::vector<BackwardStep> makeBackwardSteps(const BackwardGrid& grid, const TileVisibility& visibility);

/// The order of all steps: the first step of every head, then the second step of every head that has one, and so on.
/// Steps of a chain are thus claimed in sequence, and heads are processed side by side.
class StepOrder {
 public:
  struct StepIndex {
    int64_t step, head;  // head: batch · key heads + key head
  };

  StepOrder(const BatchVisibility& visibility, const std::vector<std::vector<BackwardStep>>& steps, int64_t batches,
            int64_t numKvHeads)
      : numKvHeads_(numKvHeads) {
    const auto stepCount = [&](int64_t batch) { return static_cast<int64_t>(steps[visibility.indexOf(batch)].size()); };
    for (int64_t b = 0; b < batches; ++b) sampleOrder_.push_back(b);
    std::stable_sort(sampleOrder_.begin(), sampleOrder_.end(),
                     [&](int64_t a, int64_t b) { return stepCount(a) > stepCount(b); });
    // Group steps by the number of batch elements that have them, starting with the steps that all have.
    int64_t first = 0, tasks = 0;
    for (int64_t sampleCount = batches; sampleCount > 0; --sampleCount) {
      const int64_t end = stepCount(sampleOrder_[static_cast<size_t>(sampleCount) - 1]);
      if (end == first) continue;
      stepRanges_.push_back({tasks, first, sampleCount});
      tasks += (end - first) * sampleCount * numKvHeads;
      first = end;
    }
    tasks_ = tasks;
  }

  int64_t tasks() const { return tasks_; }

  StepIndex stepAt(int64_t task) const {
    const auto startsAfter = [](int64_t taskIndex, const StepRange& range) { return taskIndex < range.firstTask; };
    const StepRange& range = *(std::upper_bound(stepRanges_.begin(), stepRanges_.end(), task, startsAfter) - 1);
    const int64_t heads = range.sampleCount * numKvHeads_, taskInRange = task - range.firstTask,
                  head = taskInRange % heads;
    const int64_t batch = sampleOrder_[static_cast<size_t>(head / numKvHeads_)];
    return {range.firstStep + taskInRange / heads, batch * numKvHeads_ + head % numKvHeads_};
  }

 private:
  struct StepRange {
    int64_t firstTask, firstStep, sampleCount;  // sampleCount: number of batch elements that have these steps
  };

  int64_t numKvHeads_, tasks_ = 0;
  std::vector<int64_t> sampleOrder_;  // descending by number of steps
  std::vector<StepRange> stepRanges_;
};

/// Counts the finished steps of every chain.
class StepSequencer {
 public:
  explicit StepSequencer(int64_t chainCount)
      : completedSteps_(new std::atomic<int32_t>[static_cast<size_t>(chainCount)]()) {}
  void waitForStep(int64_t chain, int32_t order) const;
  void finish(int64_t chain) { completedSteps_[static_cast<size_t>(chain)].fetch_add(1, std::memory_order_release); }

 private:
  std::unique_ptr<std::atomic<int32_t>[]> completedSteps_;
};

Range BackwardGrid::keyRange(int32_t block) const {
  return {block * keysPerBlock, std::min(keys, (block + 1) * keysPerBlock)};
}

Range BackwardGrid::rowRange(int32_t block) const {
  const int64_t first = block % rowBlocksPerHead() * rowsPerBlock;
  return {first, std::min(rows, first + rowsPerBlock)};
}

std::vector<BackwardStep> makeBackwardSteps(const BackwardGrid& grid, const TileVisibility& visibility) {
  const int32_t keyBlocks = grid.keyBlocks(), rowBlocks = grid.rowBlocks();
  std::vector<int32_t> keyStepCounts(static_cast<size_t>(keyBlocks)), rowStepCounts(static_cast<size_t>(rowBlocks));
  std::vector<BackwardStep> steps;
  for (int32_t round = 0; round < rowBlocks; ++round) {
    for (int32_t k = 0; k < keyBlocks; ++k) {
      const int64_t start = int64_t{k} * rowBlocks / keyBlocks;
      const int32_t r = static_cast<int32_t>((start + round) % rowBlocks);
      if (visibility.work(grid.rowRange(r), grid.keyRange(k)) == 0) continue;
      steps.push_back({k, r, keyStepCounts[static_cast<size_t>(k)]++, rowStepCounts[static_cast<size_t>(r)]++});
    }
  }
  return steps;
}

void StepSequencer::waitForStep(int64_t chain, int32_t order) const {
  spinUntil([&] { return completedSteps_[static_cast<size_t>(chain)].load(std::memory_order_acquire) == order; });
}

/// Returns blocks large enough to amortize loading and storing panels, and small enough to give every thread some work.
BackwardGrid makeGrid(const AttendBackwardArguments& a, int64_t groupRows) {
  const int64_t(&k)[4] = a.kv.k.shape;
  BackwardGrid grid{k[2], a.q.shape[2], 1024, 0, a.q.shape[1] / k[1]};
  const int64_t heads = k[0] * k[1];
  while (grid.keysPerBlock > 256 && heads * grid.keyBlocks() * grid.keyBlocks() < 32) grid.keysPerBlock /= 2;
  // At least as many row blocks as key blocks (for square tiles), so that the steps of a round use different ones.
  grid.rowsPerBlock = std::max(groupRows, grid.keysPerBlock / groupRows * groupRows);
  return grid;
}

/// Returns the operands and gradients of a head. Their rows are too far apart for the hardware prefetcher.
RowPrefetch upcomingRowsOf(const AttendBackwardArguments& a, const HeadRows& at) {
  return {{upcomingRows(a.q, at), upcomingRows(a.kv.k, at), upcomingRows(a.kv.v, at), upcomingRows(a.saved.dOut, at),
           upcomingRows(a.grads.dq, at), upcomingRows(a.grads.dk, at), upcomingRows(a.grads.dv, at)},
          std::min(a.q.shape[2], a.kv.k.shape[2])};
}

/// Completes a step's turns also when it throws, because other steps wait for them.
struct StepGuard {
  StepSequencer &keys, &rows;
  int64_t keyChain, rowChain;
  ~StepGuard() {
    keys.finish(keyChain);
    rows.finish(rowChain);
  }
};

}  // namespace

void attendBackward(const AttendBackwardArguments& args, Isa isa, Pool& pool) {
  if (isEmpty(args.q) || isEmpty(args.kv.k)) return;
  const DType dtype = args.q.dtype;
  const bool hasSameDType = args.kv.k.dtype == dtype && args.kv.v.dtype == dtype && args.saved.dOut.dtype == dtype;
  const CallModifiers modifiers(args.tile);
  // The same choice as in the forward, because weights must equal those of the forward.
  const bool isInputDTypeUsed = hasSameDType && !modifiers.modifiesScores();
  const AttentionKernels& kernels = microKernels(isa, isInputDTypeUsed ? dtype : DType::Float32).attention;
  const BackwardCall call{args, kernels, modifiers};
  throwIfPositionsMismatch(args.tile, args.q.shape[2], args.kv.k.shape[2]);
  if (tryBackwardShortSequences(args, isa, pool)) return;
  const BatchVisibility visibility(args.tile, args.q.shape[0]);
  pool.sharedArena().reset();
  const BackwardGrid grid = makeGrid(args, gradientGroupRows(call));
  std::vector<PanelSegments> panels;
  std::vector<std::vector<BackwardStep>> steps;
  for (size_t i = 0; i < visibility.count(); ++i) {
    panels.emplace_back(visibility[i], args.q.shape[2], kernels.width, pool.sharedArena());
    steps.push_back(makeBackwardSteps(grid, visibility[i]));
  }
  const int64_t numKvHeads = args.kv.k.shape[1], heads = args.kv.k.shape[0] * numKvHeads;
  const StepOrder order(visibility, steps, args.kv.k.shape[0], numKvHeads);
  StepSequencer keySequencer(heads * grid.keyBlocks()), rowSequencer(heads * grid.rowBlocks());
  const int64_t elements = args.q.shape[2] * (args.q.shape[3] + args.kv.v.shape[3]) * 2;
  const bool isOneStepPerHead = grid.keyBlocks() == 1 && grid.rowBlocks() == 1 &&
                                elements * dtypeBytes(dtype) <= kMaxPrefetchedBytes;

  pool.parallelFor(order.tasks(), [&](int64_t task, int worker) {
    const auto [stepIndex, head] = order.stepAt(task);
    const size_t sample = visibility.indexOf(head / numKvHeads);
    const BackwardStep& step = steps[sample][static_cast<size_t>(stepIndex)];
    const int64_t keyChain = head * grid.keyBlocks() + step.keyBlock;
    const int64_t rowChain = head * grid.rowBlocks() + step.rowBlock;
    keySequencer.waitForStep(keyChain, step.keyOrder);
    rowSequencer.waitForStep(rowChain, step.rowOrder);
    const StepGuard guard{keySequencer, rowSequencer, keyChain, rowChain};
    const int64_t keyHead = head % numKvHeads;
    RowPrefetch upcoming{};  // of the next task of this thread, if all tasks take the same time
    if (isOneStepPerHead && task + pool.threads() < order.tasks()) {
      const int64_t nextHead = order.stepAt(task + pool.threads()).head;
      upcoming = upcomingRowsOf(args, {nextHead / numKvHeads, nextHead % numKvHeads, 0});
    }
    const GradientTask at{head / numKvHeads, keyHead * grid.groupSize + grid.rowHead(step.rowBlock), keyHead,
                          grid.rowRange(step.rowBlock), grid.keyRange(step.keyBlock)};
    runGradientTask(call, panels[sample], at, pool.arena(worker), upcoming);
  });
}

}  // namespace mosaic
