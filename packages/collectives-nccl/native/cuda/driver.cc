#include "cuda/driver.h"

#include <dlfcn.h>

#include "mosaic/cuda_library.h"
#include "mosaic/failure.h"

namespace mosaic::nccl {

namespace {

cuda::Driver load() {
  const std::string library = cuda::driverLibraryName();
  void* handle = dlopen(library.c_str(), RTLD_NOW);
  if (!handle) throw Failure(MOSAIC_FAILURE_DEVICE, "nccl: no CUDA driver: " + std::string(dlerror()));
  cuda::Driver found;
  const char* missing = cuda::findFunctions(handle, found);
  if (missing) throw Failure(MOSAIC_FAILURE_DEVICE, "nccl: " + library + " has no " + missing + "; update the driver");
  return found;
}

}  // namespace

const cuda::Driver& driver() {
  static const cuda::Driver known = load();
  return known;
}

void check(CUresult code, const char* what) {
  if (code != cuda::CUDA_SUCCESS) throw Failure(MOSAIC_FAILURE_DEVICE, cuda::messageOf(driver(), code, what));
}

}  // namespace mosaic::nccl
