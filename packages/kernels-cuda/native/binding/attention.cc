#include "binding/kernels.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "binding/hopper.h"
#include "binding/loop.h"
#include "binding/modifiers.h"
#include "binding/part.h"
#include "kernels/rows.h"

namespace mosaic::cuda {

namespace {

// ── operands

Matrix matrixOf(const TensorView& x) {
  Matrix matrix{x.data, x.stride[0], x.stride[1], x.stride[2], x.dtype, false};
  const int64_t bytes = dtypeBytes(x.dtype);
  bool aligned = reinterpret_cast<uintptr_t>(matrix.data) % 16 == 0 && x.shape[3] * bytes % 16 == 0;
  for (int axis = 0; axis < 3; axis++) aligned = aligned && x.stride[axis] * bytes % 16 == 0;
  matrix.aligned = aligned;
  return matrix;
}

Accumulator accumulatorOf(const TensorView& x) {
  Accumulator sum{static_cast<float*>(x.data), x.stride[0], x.stride[1], x.stride[2], x.stride[3], false};
  bool isFloat2Aligned = reinterpret_cast<uintptr_t>(sum.data) % 8 == 0 && x.shape[3] % 2 == 0 && x.stride[3] == 1;
  for (int axis = 0; axis < 3; axis++) isFloat2Aligned = isFloat2Aligned && x.stride[axis] % 2 == 0;
  sum.isFloat2Aligned = isFloat2Aligned;
  return sum;
}

PerRow perRowOf(const TensorView& x) {
  return {static_cast<float*>(x.data), x.stride[0], x.stride[1], x.stride[2]};
}

// ── which kernel

constexpr int kHeadSizes[] = {32, 64, 128, 256};
/// Kernels that modify scores are there from this one on.
constexpr int kFirstModifiedSize = 1;
/// A kernel for plain calls, and the one for those that modify scores. Names stay, for traces keep them.
struct Kernel {
  const char *plain, *modified;
};
/// By head size: float32, bfloat16, float16.
using Kernels = const Kernel[4][3];
#define KERNEL(name, suffix) {name suffix, name "Modified" suffix}
#define OF_SIZE(name, D) {KERNEL(name, "_float32_" D), KERNEL(name, "_bfloat16_" D), KERNEL(name, "_float16_" D)}
#define KERNELS(name) {OF_SIZE(name, "32"), OF_SIZE(name, "64"), OF_SIZE(name, "128"), OF_SIZE(name, "256")}
constexpr Kernels kForward = KERNELS("attend");
constexpr Kernels kKeys = KERNELS("attendKeys");
constexpr Kernels kQueries = KERNELS("attendQueries");
#undef KERNELS
#undef OF_SIZE
#undef KERNEL

/// The first head size that the heads fit, by its index.
int headSizeIndex(int64_t headDim, bool modified) {
  int size = modified ? kFirstModifiedSize : 0;
  while (kHeadSizes[size] < headDim) size++;
  return size;
}

/// Tensor cores take one 16-bit dtype, in as much shared memory as the kernel needs; all else is float32's way.
bool supportsTensorCores(const Device& device, std::initializer_list<DType> dtypes, unsigned sharedBytes) {
  const DType first = *dtypes.begin();
  return first != DType::Float32 && sharedBytes <= device.maxSharedBytes() &&
         std::all_of(dtypes.begin(), dtypes.end(), [&](DType dtype) { return dtype == first; });
}

template <class Parameters>
void launchParts(Device& device, const Kernel& kernel, const Grid& grid, const PartLaunch& launch, Parameters& p,
                 const std::optional<ScoreModifiers>& modifiers) {
  p.parts = launch.parts;
  if (!modifiers) return device.launch(kernel.plain, grid, p);
  Modified<Parameters> all{p, *modifiers, {}};
  std::copy(std::begin(launch.positions), std::end(launch.positions), all.positions);
  device.launch(kernel.modified, grid, all);
}

// ── as many heads and batches as a grid holds

bool fits(const Device& device, const TensorView& q) {
  return q.shape[0] <= device.maxGridDim() && q.shape[1] <= device.maxGridDim();
}

/// Of the batch elements and heads from `origin` on of the whole call.
void attendSubgrid(Device& device, const AttendArguments& args, const GridOrigin& origin) {
  const auto& [state, q, kv, tile] = args;
  const auto& [k, v] = kv;
  const float scale = tile.scale;
  const int64_t headDim = std::max(q.shape[3], v.shape[3]);
  AttendParameters p{};
  p.q = matrixOf(q);
  p.k = matrixOf(k);
  p.v = matrixOf(v);
  p.out = accumulatorOf(state.out);
  p.lse = perRowOf(state.lse);
  p.headDim = static_cast<int32_t>(q.shape[3]);
  p.valueHeadDim = static_cast<int32_t>(v.shape[3]);
  p.group = static_cast<int32_t>(q.shape[1] / k.shape[1]);
  p.scale = scale;

  const TileParts all = makeParts(tile, {origin.batch, q.shape[0]});
  if (all.isEmpty()) return;
  const std::optional<ScoreModifiers> modifiers = scoreModifiersOf(tile, origin);
  if (scale > 0 && !modifiers && supportsHopper(device, {&q, &k, &v})) return attendOnHopper(device, {q, k, v}, all, p);

  const int size = headSizeIndex(headDim, modifiers.has_value()), padded = kHeadSizes[size];
  const bool fast = scale > 0 && supportsTensorCores(device, {q.dtype, k.dtype, v.dtype}, forwardBytes(padded));
  const BlockShape shape = fast ? forwardShape(padded) : floatShape(padded);
  const unsigned shared = fast ? forwardBytes(padded) : floatBytes(padded, 3, 1);
  const Kernel& kernel = kForward[size][fast ? static_cast<int>(q.dtype) : 0];
  for (const PartLaunch& launch : makeLaunches(all, Owner::Rows, shape.own)) {
    launchParts(device, kernel, gridOf(launch, q, shape.threads(), shared), launch, p, modifiers);
  }
}

void attendBackwardSubgrid(Device& device, const AttendBackwardArguments& args, const GridOrigin& origin) {
  const auto& [grads, q, saved, kv, tile] = args;
  const auto& [k, v] = kv;
  const auto& [dOut, lse, delta] = saved;
  const float scale = tile.scale;
  const int64_t headDim = std::max(q.shape[3], v.shape[3]);
  AttendBackwardParameters p{};
  p.q = matrixOf(q);
  p.k = matrixOf(k);
  p.v = matrixOf(v);
  p.dOut = matrixOf(dOut);
  p.lse = perRowOf(lse);
  p.delta = perRowOf(delta);
  p.dq = accumulatorOf(grads.dq);
  p.dk = accumulatorOf(grads.dk);
  p.dv = accumulatorOf(grads.dv);
  p.headDim = static_cast<int32_t>(q.shape[3]);
  p.valueHeadDim = static_cast<int32_t>(v.shape[3]);
  p.group = static_cast<int32_t>(q.shape[1] / k.shape[1]);
  p.scale = scale;

  const TileParts all = makeParts(tile, {origin.batch, q.shape[0]});
  if (all.isEmpty()) return;
  const std::optional<ScoreModifiers> modifiers = scoreModifiersOf(tile, origin);
  const bool suitsHopper = scale > 0 && !modifiers && headDim <= kMaxHopperGradientHeadDim;
  if (suitsHopper && supportsHopper(device, {&q, &k, &v, &dOut})) {
    return attendBackwardOnHopper(device, {q, k, v, dOut}, all, p);
  }

  const int size = headSizeIndex(headDim, modifiers.has_value()), padded = kHeadSizes[size];
  const unsigned most = std::max(keysBytes(padded), queriesBytes(padded));
  const bool fast = scale > 0 && supportsTensorCores(device, {q.dtype, k.dtype, v.dtype, dOut.dtype}, most);
  const int column = fast ? static_cast<int>(q.dtype) : 0;
  const BlockShape byKeys = fast ? keysShape(padded) : floatShape(padded);
  const BlockShape byRows = fast ? queriesShape(padded) : floatShape(padded);
  const unsigned keysShared = fast ? keysBytes(padded) : floatBytes(padded, 4, 2);
  const unsigned rowsShared = fast ? queriesBytes(padded) : floatBytes(padded, 4, 1);
  for (PartLaunch& launch : makeLaunches(all, Owner::Keys, byKeys.own)) {
    launch.blocks *= static_cast<unsigned>(byKeys.parts);
    const Grid grid = gridOf(launch, k, byKeys.threads(), keysShared);
    launchParts(device, kKeys[size][column], grid, launch, p, modifiers);
  }
  for (const PartLaunch& launch : makeLaunches(all, Owner::Rows, byRows.own)) {
    const Grid grid = gridOf(launch, q, byRows.threads(), rowsShared);
    launchParts(device, kQueries[size][column], grid, launch, p, modifiers);
  }
}

}  // namespace

void attendOp(Device& device, const AttendArguments& args) {
  const auto& [state, q, kv, tile] = args;
  if (q.shape[0] * q.shape[1] * q.shape[3] == 0) return;
  if (fits(device, q)) return attendSubgrid(device, args, {0, 0});
  forEachSubgrid(q, kv.k, device.maxGridDim(), [&](const Range& batches, const Range& heads, const Range& kvHeads) {
    const AttentionState some{selectHeads(state.out, batches, heads), selectHeads(state.lse, batches, heads)};
    const KvBlock keys{selectHeads(kv.k, batches, kvHeads), selectHeads(kv.v, batches, kvHeads)};
    attendSubgrid(device, {some, selectHeads(q, batches, heads), keys, tile}, {batches.first, heads.first});
  });
}

void attendBackwardOp(Device& device, const AttendBackwardArguments& args) {
  const auto& [grads, q, saved, kv, tile] = args;
  if (q.shape[0] * q.shape[1] * q.shape[3] == 0) return;
  if (fits(device, q)) return attendBackwardSubgrid(device, args, {0, 0});
  forEachSubgrid(q, kv.k, device.maxGridDim(), [&](const Range& batches, const Range& heads, const Range& kvHeads) {
    const QkvGrads some{selectHeads(grads.dq, batches, heads), selectHeads(grads.dk, batches, kvHeads),
                        selectHeads(grads.dv, batches, kvHeads)};
    const SavedRows rows{selectHeads(saved.dOut, batches, heads), selectHeads(saved.lse, batches, heads),
                         selectHeads(saved.delta, batches, heads)};
    const KvBlock keys{selectHeads(kv.k, batches, kvHeads), selectHeads(kv.v, batches, kvHeads)};
    const AttendBackwardArguments part{some, selectHeads(q, batches, heads), rows, keys, tile};
    attendBackwardSubgrid(device, part, {batches.first, heads.first});
  });
}

void mergeOp(Device& device, const MergeArguments& args) {
  const View out = makeView(args.into.out), lse = makeView(args.into.lse);
  const View otherOut = makeView(args.from.out), otherLse = makeView(args.from.lse);
  const MergeParameters p{rowsOf<4>({&out, &lse, &otherOut, &otherLse})};
  device.launch("merge", gridForRows(device, p.layout.rows.extent.count), p);
}

}  // namespace mosaic::cuda
