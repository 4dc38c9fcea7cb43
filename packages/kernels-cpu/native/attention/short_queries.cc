// Heads of a group are rows of the same panels. Keys are split on a grid that depends only on the shapes
// (Flash-Decoding, Dao et al. 2023), or, for sample masks, on the keys visible to each sample. Each split has its own
// state, and states are merged in order.
#include "attention/short_queries.h"

#include <algorithm>
#include <cmath>

#include "attention/query_panels.h"
#include "attention/query_rows.h"
#include "simd/integers.h"

namespace mosaic {
namespace {

constexpr int64_t kTargetSplits = 64;         // splits over all key heads, if there are enough keys
constexpr int64_t kMinKeysPerSplit = 1024;    // per split
constexpr int32_t kMaxPanels = 16;      // per task
constexpr int64_t kMaxTaskBytes = 256 << 10;  // q and out of a task

struct ShortQueryGrid {
  int64_t rows, keys, numKvHeads, groupSize;
  int32_t headsPerPanel, panels;  // panels: per key head
  int64_t keysPerSplit, splits;
};

/// Returns the cost of folding a block into the panels of a key head: their rows, used or not, and one for each panel.
/// The heads that do not fill a panel take a medium one if they fit.
int64_t panelCost(const MicroKernels& kernels, int64_t width, int64_t rows, int64_t groupSize) {
  const int64_t headsPerPanel = width / rows, remainingRows = groupSize % headsPerPanel * rows;
  const int64_t mediumWidth = kernels.mediumAttention.width;
  const int64_t lastWidth = remainingRows <= mediumWidth ? mediumWidth : width;
  return groupSize / headsPerPanel * (width + 1) + (remainingRows == 0 ? 0 : lastWidth + 1);
}

/// Returns the kernels of the panels that most heads are in: narrow if one narrow panel holds all rows, else medium or
/// wide, whichever costs less. A task has room for a limited number of medium panels.
const AttentionKernels& chooseKernels(const AttendArguments& args, const MicroKernels& kernels) {
  const int64_t rows = args.q.shape[2], groupSize = args.q.shape[1] / args.kv.k.shape[1];
  const int64_t narrowWidth = kernels.narrowAttention.width;
  const int64_t mediumWidth = kernels.mediumAttention.width, wideWidth = kernels.attention.width;
  if (rows > narrowWidth) return kernels.attention;
  const int64_t headsPerPanel = narrowWidth / rows, panels = ceilDiv(groupSize, headsPerPanel);
  if (panels == 1 || panels * narrowWidth < mediumWidth) return kernels.narrowAttention;
  if (rows > mediumWidth / 2) return kernels.attention;
  const int64_t headsPerMediumPanel = mediumWidth / rows;
  if (groupSize > kMaxPanels * headsPerMediumPanel) return kernels.attention;
  const auto cost = [&](int64_t width) { return panelCost(kernels, width, rows, groupSize); };
  return cost(mediumWidth) <= cost(wideWidth) ? kernels.mediumAttention : kernels.attention;
}

/// Sets the splits: at least `minKeys` keys each, for samples of at most `keys` keys.
void splitKeys(ShortQueryGrid& grid, int64_t minKeys, int64_t keys, const AttentionKernels& kernels) {
  grid.keysPerSplit = roundUp(std::max(minKeys, kMinKeysPerSplit), kernels.keyBlock);
  grid.splits = ceilDiv(keys, grid.keysPerSplit);
}

ShortQueryGrid makeGrid(const AttendArguments& args, const AttentionKernels& kernels) {
  ShortQueryGrid grid{};
  grid.rows = args.q.shape[2];
  grid.keys = args.kv.k.shape[2];
  grid.numKvHeads = args.kv.k.shape[1];
  grid.groupSize = args.q.shape[1] / grid.numKvHeads;
  grid.headsPerPanel = static_cast<int32_t>(std::min(grid.groupSize, std::max<int64_t>(1, kernels.width / grid.rows)));
  grid.panels = static_cast<int32_t>(ceilDiv(grid.groupSize, grid.headsPerPanel));
  const int64_t minKeys = grid.keys * args.q.shape[0] * grid.numKvHeads / kTargetSplits;
  splitKeys(grid, minKeys, grid.keys, kernels);
  return grid;
}

/// Returns the segments of all queries, with bounds repeated for each head.
std::vector<Segment> makeSegments(const TileVisibility& visibility, const ShortQueryGrid& grid, int32_t width,
                                  Arena& arena) {
  const auto count = static_cast<int32_t>(grid.rows);
  std::vector<Segment> segments;
  visibility.addSegments({0, count, count}, arena, segments);
  for (Segment& s : segments) {
    int32_t* lo = arena.allocate<int32_t>(width);
    int32_t* hi = arena.allocate<int32_t>(width);
    for (int32_t r = 0; r < width; ++r) lo[r] = s.bounds.lo[r % count], hi[r] = s.bounds.hi[r % count];
    s.bounds = {lo, hi};
  }
  return segments;
}

/// Returns the range from the first to the last key visible to a sample, aligned to the begin of a block. Samples that
/// use different parts of one memory, as in a cache, are each split separately.
Range visibleKeys(const std::vector<Segment>& segments, const AttentionKernels& kernels) {
  Range visibleRange{INT64_MAX, 0};
  for (const Segment& s : segments) {
    visibleRange = {std::min<int64_t>(visibleRange.begin, s.begin), std::max<int64_t>(visibleRange.end, s.end)};
  }
  if (visibleRange.begin >= visibleRange.end) return {0, 0};
  return {visibleRange.begin / kernels.keyBlock * kernels.keyBlock, visibleRange.end};
}

/// Allocates a separate state for one split of the keys.
AttentionState makeSplitState(const AttendArguments& args, Arena& arena) {
  const int64_t* shape = args.q.shape;
  const int64_t depth = args.kv.v.shape[3], rows = shape[0] * shape[1] * shape[2];
  const auto view = [&](int64_t columns) {
    return TensorView{arena.allocate<float>(rows * columns), DType::Float32, {shape[0], shape[1], shape[2], columns},
                      {shape[1] * shape[2] * columns, shape[2] * columns, columns, 1}};
  };
  return {view(depth), view(1)};
}

}  // namespace

bool areQueriesShort(const AttendArguments& args, const MicroKernels& kernels) {
  const AttentionKernels& k = chooseKernels(args, kernels);
  if (args.q.shape[2] > k.width / 2) return false;
  const ShortQueryGrid grid = makeGrid(args, k);
  const int64_t rowBytes = 4 * args.kv.v.shape[3] + dtypeBytes(k.products) * args.q.shape[3];
  const int64_t bytes = grid.panels * k.width * rowBytes;
  return (grid.splits > 1 || grid.groupSize > 1 || k.width == kernels.narrowAttention.width) &&
         grid.panels <= kMaxPanels && bytes <= kMaxTaskBytes;
}

void attendShortQueries(const ForwardCall& call, Pool& pool) {
  const AttendArguments& args = call.args;
  const MicroKernels& kernels = call.kernels;
  const AttentionKernels& k = chooseKernels(args, kernels);
  ShortQueryGrid grid = makeGrid(args, k);
  const BatchVisibility visibility(args.tile, args.q.shape[0]);
  Arena& sharedArena = pool.sharedArena();
  std::vector<std::vector<Segment>> segments;
  for (size_t i = 0; i < visibility.count(); ++i) {
    segments.push_back(makeSegments(visibility[i], grid, k.width, sharedArena));
  }
  std::vector<Range> ranges(visibility.count(), Range{0, grid.keys});
  if (visibility.isPerSample()) {
    for (size_t i = 0; i < ranges.size(); ++i) ranges[i] = visibleKeys(segments[i], k);
    int64_t totalKeys = 0, maxKeys = 0;
    for (int64_t b = 0; b < args.q.shape[0]; ++b) {
      const Range& range = ranges[visibility.indexOf(b)];
      totalKeys += range.end - range.begin;
      maxKeys = std::max(maxKeys, range.end - range.begin);
    }
    if (maxKeys == 0) return;
    splitKeys(grid, totalKeys * grid.numKvHeads / kTargetSplits, maxKeys, k);
  }
  const bool isSplit = grid.splits > 1, usesRows = areRowsFaster(call);
  std::vector<AttentionState> states;
  for (int64_t split = 0; isSplit && split < grid.splits; ++split) states.push_back(makeSplitState(args, sharedArena));

  pool.parallelFor(args.q.shape[0] * grid.numKvHeads * grid.splits, [&](int64_t task, int worker) {
    const int64_t split = task % grid.splits, head = task / grid.splits, batch = head / grid.numKvHeads;
    const int64_t keyHead = head % grid.numKvHeads;
    const Range& range = ranges[visibility.indexOf(batch)];
    const int64_t begin = std::min(range.begin + split * grid.keysPerSplit, range.end);
    const Range keys{begin, std::min(range.end, begin + grid.keysPerSplit)};
    Arena& arena = pool.arena(worker);
    arena.reset();
    const AttentionState& state = isSplit ? states[static_cast<size_t>(split)] : args.state;
    const std::vector<Segment>& sampleSegments = segments[visibility.indexOf(batch)];
    if (usesRows) {
      QueryRows queries(call, batch, keyHead, arena);
      queries.fold(sampleSegments, keys);
      return queries.store(state, isSplit);
    }
    QueryPanels panels(call, static_cast<size_t>(grid.panels), &k != &kernels.attention, arena);
    for (int64_t first = 0; first < grid.groupSize; first += grid.headsPerPanel) {
      const auto heads = static_cast<int32_t>(std::min<int64_t>(grid.headsPerPanel, grid.groupSize - first));
      const PanelLocation location{batch, keyHead * grid.groupSize + first, heads, 0, static_cast<int32_t>(grid.rows)};
      panels.add(location, sampleSegments);
    }
    panels.fold(keyHead, keys);
    panels.store(state, keys, isSplit);
  });
  if (isSplit) mergeStates(args.state, states, pool);
}

}  // namespace mosaic
