// Starts products of matrices: through cuBLASLt where it is there and takes the strides, else by a kernel of ours.
#pragma once

#include "device/device.h"
#include "mosaic/kernels.h"

namespace mosaic::cuda {

void matmulOp(Device& device, const MatmulArguments& args);

}  // namespace mosaic::cuda
