#include "short_sequences/short_sequences.h"

#include <algorithm>
#include <vector>

#include "attention/tile_visibility.h"
#include "short_sequences/kernels.h"
#include "simd/integers.h"

namespace mosaic {
namespace {

/// Maximum length; longer sequences fill the panels of `attend`.
constexpr int64_t kMaxSequenceLength = 16;
/// Limit for the scratch memory of a group of sequences, which should fit the L2 cache.
constexpr int64_t kMaxScratchBytes = 512 << 10;
/// Maximum number of groups per task.
constexpr int64_t kMaxGroupsPerTask = 32;

const ShortSequenceKernels &shortSequenceKernels(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::Scalar) return shortSequenceKernelsScalar();
  return isa == Isa::Avx2 ? shortSequenceKernelsAvx2() : shortSequenceKernelsAvx512();
#elif defined(__aarch64__)
  return isa == Isa::Scalar ? shortSequenceKernelsScalar() : shortSequenceKernelsNeon();
#else
  (void)isa;
  return shortSequenceKernelsScalar();
#endif
}

bool hasDenseRows(const TensorView& x) { return x.stride[3] == 1 || x.shape[3] == 1; }

struct ShortSequencePlan {
  ShortSequenceShape shape;
  std::vector<uint8_t> visible;
  bool isEmpty;  // no key is visible to any row
};

/// Computes the visible keys of each row, the same for every sequence.
void findVisibleKeys(ShortSequencePlan &plan, const Tile &tile, Arena &arena) {
  ShortSequenceShape &shape = plan.shape;
  const PanelSegments segments(TileVisibility(tile), shape.rows, kMaxSequenceLength, arena);
  plan.visible.assign(static_cast<size_t>(shape.rows * shape.keys), 0);
  for (const Segment& segment : segments.segments(0)) {
    for (int32_t i = 0; i < shape.rows; ++i) {
      for (int32_t j = segment.bounds.lo[i]; j < segment.bounds.hi[i]; ++j) {
        plan.visible[static_cast<size_t>(i * shape.keys + j)] = 1;
      }
    }
  }
  const auto pairs = std::count(plan.visible.begin(), plan.visible.end(), 1);
  plan.isEmpty = pairs == 0;
  shape.visible = pairs == shape.rows * shape.keys ? nullptr : plan.visible.data();
}

/// Whether the kernels support a call. Sample masks, score modifiers, and values with another head size require panels.
bool canUseKernels(const Tile &tile, const TensorView &q, const KvBlock &kv, const ShortSequenceKernels &kernels) {
  const TensorView& k = kv.k;
  const int64_t sequences = k.shape[0] * k.shape[1];
  if (kv.v.shape[3] != k.shape[3]) return false;
  return !tile.modifiers && q.shape[2] <= kMaxSequenceLength && k.shape[2] <= kMaxSequenceLength &&
         sequences >= 2 * kernels.lanes;
}

ShortSequenceShape makeShape(const TensorView &q, const TensorView &k, const ShortSequenceKernels &kernels) {
  const int32_t depth = static_cast<int32_t>(q.shape[3]), lanes = kernels.lanes;
  return {static_cast<int32_t>(q.shape[2]),
          static_cast<int32_t>(k.shape[2]),
          depth,
          static_cast<int32_t>(roundUp(depth, lanes)),
          static_cast<int32_t>(k.shape[1]),
          static_cast<int32_t>(q.shape[1] / k.shape[1]),
          nullptr};
}

template <class Fn>
void forEachRange(int64_t sequences, const ShortSequenceKernels &kernels, int64_t scratch, Pool &pool, Fn fn) {
  const int64_t groups = ceilDiv(sequences, kernels.lanes);
  const int64_t groupsPerTask = std::clamp<int64_t>(groups / (4 * pool.threads()), 1, kMaxGroupsPerTask);
  pool.parallelFor(ceilDiv(groups, groupsPerTask), [&](int64_t task, int worker) {
    Arena& arena = pool.arena(worker);
    arena.reset();
    float* memory = arena.allocate<float>(scratch);
    for (int64_t group = task * groupsPerTask; group < std::min(groups, (task + 1) * groupsPerTask); ++group) {
      const int64_t first = group * kernels.lanes;
      fn(ShortSequenceRange{first, static_cast<int32_t>(std::min<int64_t>(kernels.lanes, sequences - first))}, memory);
    }
  });
}

}  // namespace

bool tryAttendShortSequences(const AttendArguments& args, Isa isa, Pool& pool) {
  const ShortSequenceKernels &kernels = shortSequenceKernels(isa);
  const TensorView &q = args.q, &k = args.kv.k, &v = args.kv.v;
  if (!canUseKernels(args.tile, q, args.kv, kernels)) return false;
  for (const TensorView* x : {&q, &k, &v, &args.state.out}) {
    if (!hasDenseRows(*x)) return false;
  }
  ShortSequencePlan plan{makeShape(q, k, kernels), {}, false};
  const int64_t scratch = kernels.forwardScratchFloats(plan.shape);
  if (scratch * 4 > kMaxScratchBytes) return false;
  pool.sharedArena().reset();
  findVisibleKeys(plan, args.tile, pool.sharedArena());
  if (plan.isEmpty) return true;
  forEachRange(k.shape[0] * k.shape[1], kernels, scratch, pool, [&](const ShortSequenceRange &range, float *memory) {
    kernels.forward(args, plan.shape, range, memory);
  });
  return true;
}

bool tryBackwardShortSequences(const AttendBackwardArguments& args, Isa isa, Pool& pool) {
  const ShortSequenceKernels &kernels = shortSequenceKernels(isa);
  const TensorView &q = args.q, &k = args.kv.k, &v = args.kv.v;
  if (!canUseKernels(args.tile, q, args.kv, kernels)) return false;
  for (const TensorView* x : {&q, &k, &v, &args.saved.dOut, &args.grads.dq, &args.grads.dk, &args.grads.dv}) {
    if (!hasDenseRows(*x)) return false;
  }
  ShortSequencePlan plan{makeShape(q, k, kernels), {}, false};
  const int64_t scratch = kernels.backwardScratchFloats(plan.shape);
  if (scratch * 4 > kMaxScratchBytes) return false;
  pool.sharedArena().reset();
  findVisibleKeys(plan, args.tile, pool.sharedArena());
  if (plan.isEmpty) return true;
  forEachRange(k.shape[0] * k.shape[1], kernels, scratch, pool, [&](const ShortSequenceRange &range, float *memory) {
    kernels.backward(args, plan.shape, range, memory);
  });
  return true;
}

}  // namespace mosaic
