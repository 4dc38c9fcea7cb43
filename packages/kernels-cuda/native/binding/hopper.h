// Launches the attention kernels that are specific to Hopper.
#pragma once

#include <initializer_list>

#include "binding/part.h"
#include "device/device.h"
#include "kernels/attend.h"

namespace mosaic::cuda {

/// The inputs that are checked for TMA and described to it: q, k, v, and dOut for gradients.
struct Inputs {
  const TensorView &q, &k, &v;
};
struct GradientInputs {
  const TensorView &q, &k, &v, &dOut;
};

/// Whether Hopper's kernels support a call: the device has them, and the inputs have one 16-bit dtype and suit TMA.
bool supportsHopper(const Device& device, std::initializer_list<const TensorView*> inputs);

void attendOnHopper(Device& device, const Inputs& inputs, const TileParts& parts, const AttendParameters& p);

/// Largest head size of the gradient kernels. For larger heads, the accumulators do not fit the registers.
constexpr int kMaxHopperGradientHeadDim = 128;
void attendBackwardOnHopper(Device& device, const GradientInputs& inputs, const TileParts& parts,
                            const AttendBackwardParameters& p);

}  // namespace mosaic::cuda
