#include "binding/hopper.h"

#include <algorithm>

#include "binding/grid.h"
#include "binding/tensor_map.h"
#include "kernels/hopper.h"

namespace mosaic::cuda {

namespace {

constexpr int kHeadSizes[] = {64, 128, 256};
/// By head size: bfloat16, float16.
constexpr const char* kForward[][2] = {{"attendHopper_bfloat16_64", "attendHopper_float16_64"},
                                       {"attendHopper_bfloat16_128", "attendHopper_float16_128"},
                                       {"attendHopper_bfloat16_256", "attendHopper_float16_256"}};
constexpr const char* kKeys[][2] = {{"attendKeysHopper_bfloat16_64", "attendKeysHopper_float16_64"},
                                    {"attendKeysHopper_bfloat16_128", "attendKeysHopper_float16_128"}};
constexpr const char* kQueries[][2] = {{"attendQueriesHopper_bfloat16_64", "attendQueriesHopper_float16_64"},
                                       {"attendQueriesHopper_bfloat16_128", "attendQueriesHopper_float16_128"}};

int sizeOf(int headDim) {
  int size = 0;
  while (kHeadSizes[size] < headDim) size++;
  return size;
}

int columnOf(DType dtype) { return dtype == DType::BFloat16 ? 0 : 1; }

}  // namespace

bool onHopper(const Device& device, std::initializer_list<const TensorView*> inputs) {
  const DType first = (*inputs.begin())->dtype;
  return device.hasHopperKernels() && std::all_of(inputs.begin(), inputs.end(), [&](const TensorView* x) {
           return x->dtype == first && suitsTma(*x);
         });
}

void attendOnHopper(Device& device, const Inputs& inputs, const std::vector<Part>& parts, const AttendParameters& p) {
  const auto& [q, k, v] = inputs;
  const int size = sizeOf(p.headDim), padded = kHeadSizes[size];
  const HopperShape shape = forwardHopperShape(padded);
  AttendHopperParameters all{mapOf(q, shape.own), mapOf(k, shape.other), mapOf(v, shape.other), p};
  all.rest.heads = headsOf(q);
  for (const auto& [some, blocks] : launchesOf(parts, Owner::Rows, shape.own)) {
    all.rest.parts = some;
    const Grid grid = gridOf(device, blocks, all.rest.heads, {shape.threads(), forwardHopperBytes(padded)});
    device.launch(kForward[size][columnOf(q.dtype)], grid, all);
  }
}

void attendBackwardOnHopper(Device& device, const GradientInputs& inputs, const std::vector<Part>& parts,
                            const AttendBackwardParameters& p) {
  const auto& [q, k, v, dOut] = inputs;
  const int size = sizeOf(p.headDim), padded = kHeadSizes[size], column = columnOf(q.dtype);
  const HopperShape byKeys = keysHopperShape(padded), byRows = queriesHopperShape(padded);
  AttendBackwardHopperParameters all{mapOf(q, byKeys.other), mapOf(k, byKeys.own), mapOf(v, byKeys.own),
                                     mapOf(dOut, byKeys.other), p};
  all.rest.heads = headsOf(k);
  for (const auto& [some, blocks] : launchesOf(parts, Owner::Keys, byKeys.own)) {
    all.rest.parts = some;
    const Grid grid = gridOf(device, blocks, all.rest.heads, {byKeys.threads(), keysHopperBytes(padded)});
    device.launch(kKeys[size][column], grid, all);
  }
  all = {mapOf(q, byRows.own), mapOf(k, byRows.other), mapOf(v, byRows.other), mapOf(dOut, byRows.own), p};
  all.rest.heads = headsOf(q);
  for (const auto& [some, blocks] : launchesOf(parts, Owner::Rows, byRows.own)) {
    all.rest.parts = some;
    const Grid grid = gridOf(device, blocks, all.rest.heads, {byRows.threads(), queriesHopperBytes(padded)});
    device.launch(kQueries[size][column], grid, all);
  }
}

}  // namespace mosaic::cuda
