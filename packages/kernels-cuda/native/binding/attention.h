// Starts attention: folding keys into a state, its gradients, merging of states.
#pragma once

#include "device/device.h"
#include "mosaic/kernels.h"

namespace mosaic::cuda {

void attendOp(Device& device, const AttendArguments& args);
void attendBackwardOp(Device& device, const AttendBackwardArguments& args);
void mergeOp(Device& device, const MergeArguments& args);

}  // namespace mosaic::cuda
