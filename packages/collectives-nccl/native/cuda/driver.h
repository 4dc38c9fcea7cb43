// The CUDA driver that the device uses too, found at run time.
#pragma once

#include <string>

#include "mosaic/cuda_driver.h"

namespace mosaic::nccl {

/// The library is $MOSAIC_CUDA_LIBRARY, else libcuda.so.1; a device has loaded it already. Throws Failure.
const cuda::Driver& driver();

/// Throws Failure with what was tried and what the driver says of it, unless `code` is success.
void check(CUresult code, const char* what);

}  // namespace mosaic::nccl
