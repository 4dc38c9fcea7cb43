// Finds cuBLASLt at run time: it is half a gigabyte, and belongs to the CUDA Toolkit, not to the driver.
#pragma once

#include <string>

#include "blas/api.h"

namespace mosaic::cuda {

struct BlasLibrary {
  BlasFunctions functions;
  std::string name;
  /// "13.1.1"
  std::string version;
};

/// The process's cuBLASLt, or null if there is none: MOSAIC_CUBLASLT_LIBRARY ("none" for none), else that of the usual
/// names, the toolkit's or Python's, which goes with the driver. Throws Failure if the variable names what cannot be
/// loaded.
const BlasLibrary* blasLibrary();

}  // namespace mosaic::cuda
