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

Matrix makeMatrix(const TensorView& x) {
  Matrix matrix{x.data, x.stride[0], x.stride[1], x.stride[2], x.dtype, false};
  const int64_t bytes = dtypeBytes(x.dtype);
  bool isAligned = reinterpret_cast<uintptr_t>(matrix.data) % 16 == 0 && x.shape[3] * bytes % 16 == 0;
  for (int axis = 0; axis < 3; axis++) isAligned = isAligned && x.stride[axis] * bytes % 16 == 0;
  matrix.isAligned = isAligned;
  return matrix;
}

Accumulator makeAccumulator(const TensorView& x) {
  Accumulator sum{static_cast<float*>(x.data), x.stride[0], x.stride[1], x.stride[2], x.stride[3], false};
  bool isFloat2Aligned = reinterpret_cast<uintptr_t>(sum.data) % 8 == 0 && x.shape[3] % 2 == 0 && x.stride[3] == 1;
  for (int axis = 0; axis < 3; axis++) isFloat2Aligned = isFloat2Aligned && x.stride[axis] % 2 == 0;
  sum.isFloat2Aligned = isFloat2Aligned;
  return sum;
}

RowValues makeRowValues(const TensorView& x) {
  return {static_cast<float*>(x.data), x.stride[0], x.stride[1], x.stride[2]};
}

// ── which kernel

constexpr int kHeadDims[] = {32, 64, 128, 256};
/// Index of the first head size that has kernels for modified scores.
constexpr int kFirstModifiedDimIndex = 1;
/// A kernel for plain calls, and the one for calls that modify scores. Names have static lifetime, because traces keep
/// them.
struct Kernel {
  const char *plainName, *modifiedName;
};
/// By head size, then float32, bfloat16, float16.
using Kernels = const Kernel[4][3];
#define KERNEL(name, suffix) {name suffix, name "Modified" suffix}
#define OF_SIZE(name, D) {KERNEL(name, "_float32_" D), KERNEL(name, "_bfloat16_" D), KERNEL(name, "_float16_" D)}
#define KERNELS(name) {OF_SIZE(name, "32"), OF_SIZE(name, "64"), OF_SIZE(name, "128"), OF_SIZE(name, "256")}
constexpr Kernels kForwardKernels = KERNELS("attend");
constexpr Kernels kKeyGradientKernels = KERNELS("attendKeys");
constexpr Kernels kQueryGradientKernels = KERNELS("attendQueries");
#undef KERNELS
#undef OF_SIZE
#undef KERNEL

/// Returns the index of the smallest head size that fits the heads.
int headDimIndex(int64_t headDim, bool isModified) {
  int size = isModified ? kFirstModifiedDimIndex : 0;
  while (kHeadDims[size] < headDim) size++;
  return size;
}

/// Whether the tensor core kernels support a call: one 16-bit dtype for all tensors, and enough shared memory. All
/// other calls use the float32 kernels.
bool supportsTensorCores(const Device& device, std::initializer_list<DType> dtypes, unsigned sharedBytes) {
  const DType firstDType = *dtypes.begin();
  return firstDType != DType::Float32 && sharedBytes <= device.maxSharedBytes() &&
         std::all_of(dtypes.begin(), dtypes.end(), [&](DType dtype) { return dtype == firstDType; });
}

template <class Parameters>
void launchParts(Device& device, const Kernel& kernel, const Grid& grid, const PartLaunch& launch, Parameters& p,
                 const std::optional<ScoreModifiers>& modifiers) {
  p.parts = launch.parts;
  if (!modifiers) return device.launch(kernel.plainName, grid, p);
  WithModifiers<Parameters> modifiedParameters{p, *modifiers, {}};
  std::copy(std::begin(launch.positions), std::end(launch.positions), modifiedParameters.positions);
  device.launch(kernel.modifiedName, grid, modifiedParameters);
}

// ── splitting over heads and batches that exceed a grid

bool fitsGrid(const Device& device, const TensorView& q) {
  return q.shape[0] <= device.maxGridDim() && q.shape[1] <= device.maxGridDim();
}

/// Processes the batch elements and heads from `origin` on of the whole call.
void attendSubgrid(Device& device, const AttendArguments& args, const GridOrigin& origin) {
  const auto& [state, q, kv, tile] = args;
  const auto& [k, v] = kv;
  const float scale = tile.scale;
  const int64_t headDim = std::max(q.shape[3], v.shape[3]);
  AttendParameters p{};
  p.q = makeMatrix(q);
  p.k = makeMatrix(k);
  p.v = makeMatrix(v);
  p.out = makeAccumulator(state.out);
  p.lse = makeRowValues(state.lse);
  p.headDim = static_cast<int32_t>(q.shape[3]);
  p.valueHeadDim = static_cast<int32_t>(v.shape[3]);
  p.group = static_cast<int32_t>(q.shape[1] / k.shape[1]);
  p.scale = scale;

  const TileParts tileParts = makeParts(tile, {origin.batch, q.shape[0]});
  if (tileParts.isEmpty()) return;
  const std::optional<ScoreModifiers> modifiers = makeScoreModifiers(tile, origin);
  if (scale > 0 && !modifiers && supportsHopper(device, {&q, &k, &v}))
    return attendOnHopper(device, {q, k, v}, tileParts, p);

  const int size = headDimIndex(headDim, modifiers.has_value()), paddedHeadDim = kHeadDims[size];
  const bool usesTensorCores =
      scale > 0 && supportsTensorCores(device, {q.dtype, k.dtype, v.dtype}, forwardBytes(paddedHeadDim));
  const BlockShape shape = usesTensorCores ? forwardShape(paddedHeadDim) : floatShape(paddedHeadDim);
  const unsigned sharedBytes = usesTensorCores ? forwardBytes(paddedHeadDim) : floatBytes(paddedHeadDim, 3, 1);
  const Kernel& kernel = kForwardKernels[size][usesTensorCores ? static_cast<int>(q.dtype) : 0];
  for (const PartLaunch& launch : makeLaunches(tileParts, Owner::Rows, shape.ownTileLength)) {
    launchParts(device, kernel, makePartGrid(launch, q, shape.threads(), sharedBytes), launch, p, modifiers);
  }
}

void attendBackwardSubgrid(Device& device, const AttendBackwardArguments& args, const GridOrigin& origin) {
  const auto& [grads, q, saved, kv, tile] = args;
  const auto& [k, v] = kv;
  const auto& [dOut, lse, delta] = saved;
  const float scale = tile.scale;
  const int64_t headDim = std::max(q.shape[3], v.shape[3]);
  AttendBackwardParameters p{};
  p.q = makeMatrix(q);
  p.k = makeMatrix(k);
  p.v = makeMatrix(v);
  p.dOut = makeMatrix(dOut);
  p.lse = makeRowValues(lse);
  p.delta = makeRowValues(delta);
  p.dq = makeAccumulator(grads.dq);
  p.dk = makeAccumulator(grads.dk);
  p.dv = makeAccumulator(grads.dv);
  p.headDim = static_cast<int32_t>(q.shape[3]);
  p.valueHeadDim = static_cast<int32_t>(v.shape[3]);
  p.group = static_cast<int32_t>(q.shape[1] / k.shape[1]);
  p.scale = scale;

  const TileParts tileParts = makeParts(tile, {origin.batch, q.shape[0]});
  if (tileParts.isEmpty()) return;
  const std::optional<ScoreModifiers> modifiers = makeScoreModifiers(tile, origin);
  const bool isHopperEligible = scale > 0 && !modifiers && headDim <= kMaxHopperGradientHeadDim;
  if (isHopperEligible && supportsHopper(device, {&q, &k, &v, &dOut})) {
    return attendBackwardOnHopper(device, {q, k, v, dOut}, tileParts, p);
  }

  const int size = headDimIndex(headDim, modifiers.has_value()), paddedHeadDim = kHeadDims[size];
  const unsigned maxSharedBytes = std::max(keysBytes(paddedHeadDim), queriesBytes(paddedHeadDim));
  const bool usesTensorCores =
      scale > 0 && supportsTensorCores(device, {q.dtype, k.dtype, v.dtype, dOut.dtype}, maxSharedBytes);
  const int column = usesTensorCores ? static_cast<int>(q.dtype) : 0;
  const BlockShape keyShape = usesTensorCores ? keysShape(paddedHeadDim) : floatShape(paddedHeadDim);
  const BlockShape queryShape = usesTensorCores ? queriesShape(paddedHeadDim) : floatShape(paddedHeadDim);
  const unsigned keySharedBytes = usesTensorCores ? keysBytes(paddedHeadDim) : floatBytes(paddedHeadDim, 4, 2);
  const unsigned querySharedBytes = usesTensorCores ? queriesBytes(paddedHeadDim) : floatBytes(paddedHeadDim, 4, 1);
  for (PartLaunch& launch : makeLaunches(tileParts, Owner::Keys, keyShape.ownTileLength)) {
    launch.blocks *= static_cast<unsigned>(keyShape.parts);
    const Grid grid = makePartGrid(launch, k, keyShape.threads(), keySharedBytes);
    launchParts(device, kKeyGradientKernels[size][column], grid, launch, p, modifiers);
  }
  for (const PartLaunch& launch : makeLaunches(tileParts, Owner::Rows, queryShape.ownTileLength)) {
    const Grid grid = makePartGrid(launch, q, queryShape.threads(), querySharedBytes);
    launchParts(device, kQueryGradientKernels[size][column], grid, launch, p, modifiers);
  }
}

}  // namespace

void attendOp(Device& device, const AttendArguments& args) {
  const auto& [state, q, kv, tile] = args;
  if (q.shape[0] * q.shape[1] * q.shape[3] == 0) return;
  if (fitsGrid(device, q)) return attendSubgrid(device, args, {0, 0});
  forEachSubgrid(q, kv.k, device.maxGridDim(), [&](const Range& batches, const Range& heads, const Range& kvHeads) {
    const AttentionState subState{selectHeads(state.out, batches, heads), selectHeads(state.lse, batches, heads)};
    const KvBlock subKv{selectHeads(kv.k, batches, kvHeads), selectHeads(kv.v, batches, kvHeads)};
    attendSubgrid(device, {subState, selectHeads(q, batches, heads), subKv, tile}, {batches.first, heads.first});
  });
}

void attendBackwardOp(Device& device, const AttendBackwardArguments& args) {
  const auto& [grads, q, saved, kv, tile] = args;
  if (q.shape[0] * q.shape[1] * q.shape[3] == 0) return;
  if (fitsGrid(device, q)) return attendBackwardSubgrid(device, args, {0, 0});
  forEachSubgrid(q, kv.k, device.maxGridDim(), [&](const Range& batches, const Range& heads, const Range& kvHeads) {
    const QkvGrads subGrads{selectHeads(grads.dq, batches, heads), selectHeads(grads.dk, batches, kvHeads),
                            selectHeads(grads.dv, batches, kvHeads)};
    const SavedRows subSaved{selectHeads(saved.dOut, batches, heads), selectHeads(saved.lse, batches, heads),
                             selectHeads(saved.delta, batches, heads)};
    const KvBlock subKv{selectHeads(kv.k, batches, kvHeads), selectHeads(kv.v, batches, kvHeads)};
    const AttendBackwardArguments subArgs{subGrads, selectHeads(q, batches, heads), subSaved, subKv, tile};
    attendBackwardSubgrid(device, subArgs, {batches.first, heads.first});
  });
}

void mergeOp(Device& device, const MergeArguments& args) {
  const View out = makeView(args.into.out), lse = makeView(args.into.lse);
  const View otherOut = makeView(args.from.out), otherLse = makeView(args.from.lse);
  const MergeParameters p{rowsOf<4>({&out, &lse, &otherOut, &otherLse})};
  device.launch("merge", makeRowGrid(device, p.layout.rows.extent.count), p);
}

}  // namespace mosaic::cuda
