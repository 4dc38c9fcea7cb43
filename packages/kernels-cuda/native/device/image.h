// The kernels, as nvcc compiled them.
#pragma once

namespace mosaic::cuda {

/// A fat binary for all GPUs that are built for, or null if the addon was built without nvcc.
const void* kernelImage();

}  // namespace mosaic::cuda
