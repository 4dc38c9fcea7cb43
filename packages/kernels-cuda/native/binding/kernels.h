// Kernels whose launch takes more than a row of the table in kernels.cc.
#pragma once

#include "device/device.h"
#include "mosaic/kernel_arguments.h"

namespace mosaic::cuda {

/// Through cuBLASLt where it is installed and supports the strides, else by a kernel of ours.
void matmulOp(Device& device, const MatmulArguments& args);
/// out ← a · b + bias, added before sums are rounded. False where cuBLASLt does not do so.
bool matmulWithBias(Device& device, const MatmulArguments& args, const View& bias);

void copyOp(Device& device, const CopyArguments& args);
void binaryOp(Device& device, const BinaryArguments& args);

void attendOp(Device& device, const AttendArguments& args);
void attendBackwardOp(Device& device, const AttendBackwardArguments& args);
void mergeOp(Device& device, const MergeArguments& args);

}  // namespace mosaic::cuda
