#include "binding/hopper.h"

#include <algorithm>

#include "binding/part.h"
#include "driver/driver.h"
#include "kernels/hopper.h"
#include "kernels/tensor_map.h"
#include "mosaic/view.h"

namespace mosaic::cuda {

namespace {

constexpr int kTmaAlignment = 16;
constexpr int64_t kMaxTmaStrideBytes = int64_t{1} << 40;

/// Whether TMA can address a tensor: the driver can encode descriptors, elements have 16 bits, all addresses are
/// multiples of 16 bytes, and no axis is broadcast, overlapping or reversed.
bool supportsTma(const TensorView& x) {
  if (!tensorMapEncodeTiled() || x.dtype == DType::Float32 || x.stride[3] != 1) return false;
  if (reinterpret_cast<uintptr_t>(x.data) % kTmaAlignment) return false;
  if (x.shape[2] > 1 && x.stride[2] < x.shape[3]) return false;  // rows that overlap
  for (int axis = 0; axis < 3; axis++) {
    const int64_t stride = x.stride[axis] * dtypeBytes(x.dtype);
    const bool isValidStride = stride > 0 && stride < kMaxTmaStrideBytes && stride % kTmaAlignment == 0;
    if (x.shape[axis] > 1 && !isValidStride) return false;
  }
  return true;
}

/// Returns the descriptor of [B,H,S,D] with boxes of 64 columns and `boxRows` rows. Throws CallError.
TensorMap encodeTensorMap(const TensorView& x, int boxRows) {
  uint64_t lengths[4], strides[3];
  for (int i = 0; i < 4; i++) lengths[i] = static_cast<uint64_t>(x.shape[3 - i]);
  const auto bytes = static_cast<uint64_t>(dtypeBytes(x.dtype));
  const uint64_t row = (lengths[0] * bytes + kTmaAlignment - 1) / kTmaAlignment * kTmaAlignment;
  for (int i = 0; i < 3; i++) {
    // The stride of an axis of length 1 is validated but not used. It must be at least a row, by the driver's
    // reference.
    strides[i] = x.shape[2 - i] > 1 ? static_cast<uint64_t>(x.stride[2 - i]) * bytes : row;
  }
  const uint32_t box[4] = {kPanelColumns, static_cast<uint32_t>(boxRows), 1, 1}, elementStrides[4] = {1, 1, 1, 1};
  const int type = x.dtype == DType::BFloat16 ? TENSOR_MAP_BFLOAT16 : TENSOR_MAP_FLOAT16;
  TensorMap map;
  check(tensorMapEncodeTiled()(&map, type, 4, x.data, lengths, strides, box, elementStrides, TENSOR_MAP_INTERLEAVE_NONE,
                               TENSOR_MAP_SWIZZLE_128B, TENSOR_MAP_L2_PROMOTION_256B, TENSOR_MAP_FILL_ZEROS),
        "encoding a tensor map");
  return map;
}

constexpr int kHeadDims[] = {64, 128, 256};
/// By head size, then bfloat16, float16.
constexpr const char* kForwardKernels[][2] = {{"attendHopper_bfloat16_64", "attendHopper_float16_64"},
                                              {"attendHopper_bfloat16_128", "attendHopper_float16_128"},
                                              {"attendHopper_bfloat16_256", "attendHopper_float16_256"}};
constexpr const char* kKeyGradientKernels[][2] = {{"attendKeysHopper_bfloat16_64", "attendKeysHopper_float16_64"},
                                                  {"attendKeysHopper_bfloat16_128", "attendKeysHopper_float16_128"}};
constexpr const char* kQueryGradientKernels[][2] = {
    {"attendQueriesHopper_bfloat16_64", "attendQueriesHopper_float16_64"},
    {"attendQueriesHopper_bfloat16_128", "attendQueriesHopper_float16_128"}};

int headDimIndex(int headDim) {
  int size = 0;
  while (kHeadDims[size] < headDim) size++;
  return size;
}

int dtypeColumn(DType dtype) { return dtype == DType::BFloat16 ? 0 : 1; }

}  // namespace

bool supportsHopper(const Device& device, std::initializer_list<const TensorView*> inputs) {
  const DType firstDType = (*inputs.begin())->dtype;
  return device.hasHopperKernels() && std::all_of(inputs.begin(), inputs.end(), [&](const TensorView* x) {
           return x->dtype == firstDType && supportsTma(*x);
         });
}

void attendOnHopper(Device& device, const Inputs& inputs, const TileParts& parts, const AttendParameters& p) {
  const auto& [q, k, v] = inputs;
  const int size = headDimIndex(std::max(p.headDim, p.valueHeadDim)), paddedHeadDim = kHeadDims[size];
  const HopperShape shape = forwardHopperShape(paddedHeadDim);
  AttendHopperParameters parameters{encodeTensorMap(q, shape.ownTileLength), encodeTensorMap(k, shape.stepTileLength),
                                    encodeTensorMap(v, shape.stepTileLength), p};
  for (const PartLaunch& launch : makeLaunches(parts, Owner::Rows, shape.ownTileLength)) {
    parameters.base.parts = launch.parts;
    const Grid grid = makePartGrid(launch, q, shape.threads(), forwardHopperBytes(paddedHeadDim));
    device.launch(kForwardKernels[size][dtypeColumn(q.dtype)], grid, parameters);
  }
}

void attendBackwardOnHopper(Device& device, const GradientInputs& inputs, const TileParts& parts,
                            const AttendBackwardParameters& p) {
  const auto& [q, k, v, dOut] = inputs;
  const int size = headDimIndex(std::max(p.headDim, p.valueHeadDim)), paddedHeadDim = kHeadDims[size];
  const int column = dtypeColumn(q.dtype);
  const HopperShape keyShape = keysHopperShape(paddedHeadDim), queryShape = queriesHopperShape(paddedHeadDim);
  AttendBackwardHopperParameters parameters{
      encodeTensorMap(q, keyShape.stepTileLength), encodeTensorMap(k, keyShape.ownTileLength),
      encodeTensorMap(v, keyShape.ownTileLength), encodeTensorMap(dOut, keyShape.stepTileLength), p};
  for (const PartLaunch& launch : makeLaunches(parts, Owner::Keys, keyShape.ownTileLength)) {
    parameters.base.parts = launch.parts;
    device.launch(kKeyGradientKernels[size][column],
                  makePartGrid(launch, k, keyShape.threads(), keysHopperBytes(paddedHeadDim)), parameters);
  }
  parameters = {encodeTensorMap(q, queryShape.ownTileLength), encodeTensorMap(k, queryShape.stepTileLength),
                encodeTensorMap(v, queryShape.stepTileLength), encodeTensorMap(dOut, queryShape.ownTileLength), p};
  for (const PartLaunch& launch : makeLaunches(parts, Owner::Rows, queryShape.ownTileLength)) {
    parameters.base.parts = launch.parts;
    device.launch(kQueryGradientKernels[size][column],
                  makePartGrid(launch, q, queryShape.threads(), queriesHopperBytes(paddedHeadDim)), parameters);
  }
}

}  // namespace mosaic::cuda
