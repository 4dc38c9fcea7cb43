// The kernels, as nvcc compiled them.
#pragma once

namespace mosaic::cuda {

/// A fat binary for all GPUs that are built for, or null if the addon was built without nvcc.
const void* kernelImage();

/// The version of nvcc that compiled it: "13.0".
const char* kernelCompiler();

}  // namespace mosaic::cuda
