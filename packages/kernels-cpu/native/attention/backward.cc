// The backward: a task is a block of keys and a block of rows of one key head, see backward_order.h. Within it, groups
// of panels share smaller blocks of keys, see gradient_group.h.
#include <algorithm>

#include "attention/attention.h"
#include "attention/backward_order.h"
#include "attention/gradient_group.h"
#include "attention/rows.h"

namespace mosaic {
namespace {

/// Blocks of a task: large enough to hide loading and storing panels, small enough for every thread to have some.
BackwardGrid gridFor(const AttendBackwardArguments& a, int64_t groupRows) {
  const int64_t(&k)[4] = a.kv.k.shape;
  BackwardGrid grid{k[2], a.q.shape[2], 1024, 0, a.q.shape[1] / k[1]};
  const int64_t heads = k[0] * k[1];
  while (grid.keysPerBlock > 256 && heads * grid.keyBlocks() < 32) grid.keysPerBlock /= 2;
  // Not fewer row blocks than key blocks (for square tiles), so that those of a round differ.
  grid.rowsPerBlock = std::max(groupRows, grid.keysPerBlock / groupRows * groupRows);
  return grid;
}

/// Ends a step's turns also when it throws: others wait for them.
struct TurnGuard {
  Turns &keys, &rows;
  int64_t keyChain, rowChain;
  ~TurnGuard() {
    keys.finish(keyChain);
    rows.finish(rowChain);
  }
};

}  // namespace

void attendBackward(const AttendBackwardArguments& args, Isa isa, Pool& pool) {
  if (isEmpty(args.q) || isEmpty(args.kv.k)) return;
  const AttentionKernels& kernels = attentionKernels(isa);
  checkSpans(args.tile, args.q.shape[2], args.kv.k.shape[2]);
  const TileVisibility visibility(args.tile);
  pool.shared().reset();
  const PanelSegments panels(visibility, args.q.shape[2], kernels.width, pool.shared());
  const BackwardGrid grid = gridFor(args, gradientGroupRows(kernels, args.q.shape[3]));
  const std::vector<BackwardStep> steps = backwardSteps(grid, visibility);
  const int64_t keyHeads = args.kv.k.shape[1], heads = args.kv.k.shape[0] * keyHeads;
  Turns keyTurns(heads * grid.keyBlocks()), rowTurns(heads * grid.rowBlocks());

  pool.parallelFor(heads * static_cast<int64_t>(steps.size()), [&](int64_t task, int worker) {
    const BackwardStep& step = steps[static_cast<size_t>(task / heads)];
    const int64_t head = task % heads;
    const int64_t keyChain = head * grid.keyBlocks() + step.keyBlock;
    const int64_t rowChain = head * grid.rowBlocks() + step.rowBlock;
    keyTurns.await(keyChain, step.keyTurn);
    rowTurns.await(rowChain, step.rowTurn);
    const TurnGuard guard{keyTurns, rowTurns, keyChain, rowChain};
    const int64_t keyHead = head % keyHeads;
    const GradientTask at{head / keyHeads, keyHead * grid.group + grid.rowHead(step.rowBlock), keyHead,
                          grid.rowRange(step.rowBlock), grid.keyRange(step.keyBlock)};
    gradientTask(args, kernels, panels, at, pool.arena(worker));
  });
}

}  // namespace mosaic
