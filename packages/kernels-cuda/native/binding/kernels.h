// Kernels whose launch requires more than a row of the table in kernels.cc.
#pragma once

#include "device/device.h"
#include "mosaic/kernel_arguments.h"

namespace mosaic::cuda {

/// Computes the product with cuBLASLt if it is installed and supports the strides, else with the fallback kernel.
void matmulOp(Device& device, const MatmulArguments& args);
/// out ← a · b + bias, added before sums are rounded. Returns false if cuBLASLt does not support this and the caller
/// can add the product to a copy of the bias.
bool matmulWithBias(Device& device, const MatmulArguments& args, const View& bias);

void copyOp(Device& device, const CopyArguments& args);
void binaryOp(Device& device, const BinaryArguments& args);

void attendOp(Device& device, const AttendArguments& args);
void attendBackwardOp(Device& device, const AttendBackwardArguments& args);
void mergeOp(Device& device, const MergeArguments& args);

}  // namespace mosaic::cuda
