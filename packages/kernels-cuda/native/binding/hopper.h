// Starts the attention kernels that are for Hopper alone.
#pragma once

#include <initializer_list>

#include "binding/part.h"
#include "device/device.h"
#include "kernels/attend.h"

namespace mosaic::cuda {

/// q, k, v as they are checked for and described to TMA; dOut for gradients.
struct Inputs {
  const TensorView &q, &k, &v;
};
struct GradientInputs {
  const TensorView &q, &k, &v, &dOut;
};

/// Whether Hopper's kernels take them: the device has these kernels, inputs have one 16-bit dtype and suit TMA.
bool supportsHopper(const Device& device, std::initializer_list<const TensorView*> inputs);

void attendOnHopper(Device& device, const Inputs& inputs, const TileParts& parts, const AttendParameters& p);

/// Of heads of up to kMaxHopperGradientHeadDim; beyond, sums take more registers than there are.
constexpr int kMaxHopperGradientHeadDim = 128;
void attendBackwardOnHopper(Device& device, const GradientInputs& inputs, const TileParts& parts,
                            const AttendBackwardParameters& p);

}  // namespace mosaic::cuda
