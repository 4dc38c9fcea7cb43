#include "cuda/driver.h"

#include <dlfcn.h>

#include <cstdlib>

#include "failure.h"

namespace mosaic::nccl {

namespace {

cuda::Driver load() {
  const char* named = std::getenv("MOSAIC_CUDA_LIBRARY");
  const std::string library = named && *named ? named : "libcuda.so.1";
  void* handle = dlopen(library.c_str(), RTLD_NOW);
  if (!handle) throw Failure(MOSAIC_FAILURE_DEVICE, "nccl: no CUDA driver: " + std::string(dlerror()));
  cuda::Driver found;
  const char* missing = nullptr;
#define MOSAIC_CUDA_FIND(name, symbol, parameters)                               \
  found.name = reinterpret_cast<CUresult(*) parameters>(dlsym(handle, #symbol)); \
  if (!found.name) missing = #symbol;
  MOSAIC_CUDA_DRIVER(MOSAIC_CUDA_FIND)
#undef MOSAIC_CUDA_FIND
  if (missing) throw Failure(MOSAIC_FAILURE_DEVICE, "nccl: " + library + " has no " + missing + "; update the driver");
  return found;
}

}  // namespace

const cuda::Driver& driver() {
  static const cuda::Driver known = load();
  return known;
}

void check(CUresult code, const char* what) {
  if (code == cuda::CUDA_SUCCESS) return;
  const char *name = nullptr, *text = nullptr;
  driver().getErrorName(code, &name);
  driver().getErrorString(code, &text);
  throw Failure(MOSAIC_FAILURE_DEVICE,
                std::string(what) + ": " + (text ? text : "unknown error") + " (" + (name ? name : "?") + ")");
}

}  // namespace mosaic::nccl
