// Starts attention: folding keys into a state, its gradients, merging of states.
#pragma once

#include "device/device.h"
#include "mosaic/reader.h"

namespace mosaic::cuda {

void attendOp(Device& device, Reader args);
void attendBackwardOp(Device& device, Reader args);
void mergeOp(Device& device, Reader args);

}  // namespace mosaic::cuda
