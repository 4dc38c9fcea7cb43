// Kernels whose launch takes more than a row of the table in kernels.cc.
#pragma once

#include "device/device.h"
#include "mosaic/kernel_arguments.h"

namespace mosaic::cuda {

/// Through cuBLASLt where it is installed and supports the strides, else by a kernel of ours.
void matmulOp(Device& device, const MatmulArguments& args);

void attendOp(Device& device, const AttendArguments& args);
void attendBackwardOp(Device& device, const AttendBackwardArguments& args);
void mergeOp(Device& device, const MergeArguments& args);

}  // namespace mosaic::cuda
