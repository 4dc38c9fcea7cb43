#include "binding/attention.h"

#include <algorithm>

#include "binding/loop.h"
#include "binding/part.h"
#include "binding/rows.h"
#include "kernels/attend.h"
#include "kernels/state.h"

namespace mosaic::cuda {

namespace {

// ── operands, from the first row of a part on

void* shifted(const TensorView& x, int64_t row) {
  return static_cast<char*>(x.data) + row * x.stride[2] * dtypeBytes(x.dtype);
}

Matrix matrixOf(const TensorView& x, int64_t row) {
  Matrix matrix{shifted(x, row), x.stride[0], x.stride[1], x.stride[2], x.dtype, false};
  const int64_t bytes = dtypeBytes(x.dtype);
  bool aligned = reinterpret_cast<uintptr_t>(matrix.data) % 16 == 0 && x.shape[3] * bytes % 16 == 0;
  for (int axis = 0; axis < 3; axis++) aligned = aligned && x.stride[axis] * bytes % 16 == 0;
  matrix.aligned = aligned;
  return matrix;
}

Sum sumOf(const TensorView& x, int64_t row) {
  Sum sum{static_cast<float*>(shifted(x, row)), x.stride[0], x.stride[1], x.stride[2], x.stride[3], false};
  bool paired = reinterpret_cast<uintptr_t>(sum.data) % 8 == 0 && x.shape[3] % 2 == 0 && x.stride[3] == 1;
  for (int axis = 0; axis < 3; axis++) paired = paired && x.stride[axis] % 2 == 0;
  sum.paired = paired;
  return sum;
}

PerRow perRowOf(const TensorView& x, int64_t row) {
  return {static_cast<float*>(shifted(x, row)), x.stride[0], x.stride[1], x.stride[2]};
}

// ── which kernel

constexpr int kHeadSizes[] = {32, 64, 128, 256};
/// By head size: float32, bfloat16, float16. Names stay, for traces keep them.
constexpr const char* kForward[][3] = {{"attend_float32_32", "attend_bfloat16_32", "attend_float16_32"},
                                       {"attend_float32_64", "attend_bfloat16_64", "attend_float16_64"},
                                       {"attend_float32_128", "attend_bfloat16_128", "attend_float16_128"},
                                       {"attend_float32_256", "attend_bfloat16_256", "attend_float16_256"}};
constexpr const char* kKeys[][3] = {{"attendKeys_float32_32", "attendKeys_bfloat16_32", "attendKeys_float16_32"},
                                    {"attendKeys_float32_64", "attendKeys_bfloat16_64", "attendKeys_float16_64"},
                                    {"attendKeys_float32_128", "attendKeys_bfloat16_128", "attendKeys_float16_128"},
                                    {"attendKeys_float32_256", "attendKeys_bfloat16_256", "attendKeys_float16_256"}};
constexpr const char* kQueries[][3] = {
    {"attendQueries_float32_32", "attendQueries_bfloat16_32", "attendQueries_float16_32"},
    {"attendQueries_float32_64", "attendQueries_bfloat16_64", "attendQueries_float16_64"},
    {"attendQueries_float32_128", "attendQueries_bfloat16_128", "attendQueries_float16_128"},
    {"attendQueries_float32_256", "attendQueries_bfloat16_256", "attendQueries_float16_256"}};

/// The first head size that the heads fit, by its index.
int sizeOf(int64_t headDim) {
  int size = 0;
  while (kHeadSizes[size] < headDim) size++;
  return size;
}

/// Tensor cores take one 16-bit dtype, in as much shared memory as the kernel wants; all else is float32's way.
bool onTensorCores(const Device& device, std::initializer_list<DType> dtypes, unsigned sharedBytes) {
  const DType first = *dtypes.begin();
  return first != DType::Float32 && sharedBytes <= device.mostSharedBytes() &&
         std::all_of(dtypes.begin(), dtypes.end(), [&](DType dtype) { return dtype == first; });
}

Dimensions gridOf(const BlockShape& shape, int32_t length, int64_t heads, int64_t batch) {
  const auto tiles = static_cast<unsigned>((length + shape.own - 1) / shape.own * shape.parts);
  return {tiles, static_cast<unsigned>(heads), static_cast<unsigned>(batch)};
}

Dimensions threadsOf(const BlockShape& shape) { return {static_cast<unsigned>(shape.threads())}; }

}  // namespace

void attendOp(Device& device, Reader args) {
  const TensorView out = args.tensor(), lse = args.tensor(), q = args.tensor(), k = args.tensor(), v = args.tensor();
  const std::vector<Span> rows = args.spans(), keys = args.spans();
  const std::vector<Slice> mask = args.slices();
  const auto scale = static_cast<float>(args.number());
  const int64_t batch = q.shape[0], heads = q.shape[1], headDim = q.shape[3];
  if (batch * heads * headDim == 0) return;
  const int size = sizeOf(headDim), padded = kHeadSizes[size];
  const bool fast = onTensorCores(device, {q.dtype, k.dtype, v.dtype}, forwardBytes(padded));
  const BlockShape shape = fast ? forwardShape(padded) : floatShape(padded);
  const unsigned shared = fast ? forwardBytes(padded) : floatBytes(padded, 3, 1);
  forEachPart(rows, keys, mask, [&](const Part& part) {
    AttendParameters p{};
    p.q = matrixOf(q, part.row);
    p.k = matrixOf(k, part.key);
    p.v = matrixOf(v, part.key);
    p.out = sumOf(out, part.row);
    p.lse = perRowOf(lse, part.row);
    p.visible = part.visible;
    p.headDim = static_cast<int32_t>(headDim);
    p.group = static_cast<int32_t>(heads / k.shape[1]);
    p.scale = scale;
    const Dimensions blocks = gridOf(shape, part.visible.rows, heads, batch);
    device.launch(kForward[size][fast ? static_cast<int>(q.dtype) : 0], {blocks, threadsOf(shape), shared}, p);
  });
}

void attendBackwardOp(Device& device, Reader args) {
  const TensorView dq = args.tensor(), dk = args.tensor(), dv = args.tensor(), q = args.tensor(), k = args.tensor();
  const TensorView v = args.tensor(), dOut = args.tensor(), lse = args.tensor(), delta = args.tensor();
  const std::vector<Span> rows = args.spans(), keys = args.spans();
  const std::vector<Slice> mask = args.slices();
  const auto scale = static_cast<float>(args.number());
  const int64_t batch = q.shape[0], heads = q.shape[1], headDim = q.shape[3], headsK = k.shape[1];
  if (batch * heads * headDim == 0) return;
  const int size = sizeOf(headDim), padded = kHeadSizes[size];
  const unsigned most = std::max(keysBytes(padded), queriesBytes(padded));
  const bool fast = onTensorCores(device, {q.dtype, k.dtype, v.dtype, dOut.dtype}, most);
  const int column = fast ? static_cast<int>(q.dtype) : 0;
  const BlockShape byKeys = fast ? keysShape(padded) : floatShape(padded);
  const BlockShape byQueries = fast ? queriesShape(padded) : floatShape(padded);
  const unsigned keysShared = fast ? keysBytes(padded) : floatBytes(padded, 4, 2);
  const unsigned queriesShared = fast ? queriesBytes(padded) : floatBytes(padded, 4, 1);
  forEachPart(rows, keys, mask, [&](const Part& part) {
    AttendBackwardParameters p{};
    p.q = matrixOf(q, part.row);
    p.k = matrixOf(k, part.key);
    p.v = matrixOf(v, part.key);
    p.dOut = matrixOf(dOut, part.row);
    p.lse = perRowOf(lse, part.row);
    p.delta = perRowOf(delta, part.row);
    p.dq = sumOf(dq, part.row);
    p.dk = sumOf(dk, part.key);
    p.dv = sumOf(dv, part.key);
    p.visible = part.visible;
    p.headDim = static_cast<int32_t>(headDim);
    p.group = static_cast<int32_t>(heads / headsK);
    p.scale = scale;
    const Dimensions keyBlocks = gridOf(byKeys, part.visible.keys, headsK, batch);
    device.launch(kKeys[size][column], {keyBlocks, threadsOf(byKeys), keysShared}, p);
    const Dimensions queryBlocks = gridOf(byQueries, part.visible.rows, heads, batch);
    device.launch(kQueries[size][column], {queryBlocks, threadsOf(byQueries), queriesShared}, p);
  });
}

void mergeOp(Device& device, Reader args) {
  const View out = args.view(), lse = perRow(args.view()), otherOut = args.view(), otherLse = perRow(args.view());
  const MergeParameters p{rowsOf<4>({&out, &lse, &otherOut, &otherLse})};
  device.launch("merge", gridForRows(device, p.over.rows.extent.count), p);
}

}  // namespace mosaic::cuda
