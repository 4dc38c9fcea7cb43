#include "device/module.h"

#include "mosaic/failure.h"

namespace mosaic::cuda {

namespace {

/// Whether the driver reports that an image is for other GPUs, or contains PTX of a newer toolkit.
bool isIncompatible(CUresult code) {
  return code == CUDA_ERROR_NO_BINARY_FOR_GPU || code == CUDA_ERROR_INVALID_IMAGE || code == CUDA_ERROR_INVALID_PTX ||
         code == CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
}

[[noreturn]] void throwIncompatibleImage(const Context& context, CUresult code) {
  const char* name = nullptr;
  driver().getErrorName(code, &name);
  throw Failure(MOSAIC_FAILURE_DEVICE, "cuda(): expected kernels that the driver for CUDA " +
                                           versionText(driverVersion()) + " can load on " + context.name() +
                                           ", received kernels compiled by nvcc " + kernelCompiler() + " (" +
                                           (name ? name : "unknown error") +
                                           "); update the NVIDIA driver, or build with a CUDA Toolkit no newer than "
                                           "the driver");
}

}  // namespace

Module::Module(const Context& context) {
  const void* image = emulatedKernelImage() ? emulatedKernelImage() : kernelImage();
  if (!image) {
    throw Failure(MOSAIC_FAILURE_DEVICE,
                  "cuda(): expected CUDA kernels in the addon of @mosaic/kernels-cuda, received none because nvcc was "
                  "not found during the build; install the CUDA Toolkit 12 or newer, put nvcc on the PATH, and run "
                  "`npm run build:native` in packages/kernels-cuda");
  }
  const CUresult code = driver().moduleLoadData(&module_, image);
  if (isIncompatible(code)) throwIncompatibleImage(context, code);
  check(code, "loading kernels");
}

Module::~Module() { driver().moduleUnload(module_); }

CUfunction Module::function(const char* kernel, unsigned sharedBytes) {
  LoadedFunction& loadedFunction = functions_[kernel];
  if (!loadedFunction.function) check(driver().moduleGetFunction(&loadedFunction.function, module_, kernel), kernel);
  if (sharedBytes > loadedFunction.sharedBytes) {
    const auto bytes = static_cast<int>(sharedBytes);
    check(driver().funcSetAttribute(loadedFunction.function, MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes), kernel);
    loadedFunction.sharedBytes = sharedBytes;
  }
  return loadedFunction.function;
}

}  // namespace mosaic::cuda
