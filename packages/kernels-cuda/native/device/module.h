// The kernels loaded into one context.
#pragma once

#include <string_view>
#include <unordered_map>

#include "device/context.h"

namespace mosaic::cuda {

// The kernels as compiled by nvcc.

/// Returns a fat binary for all supported GPUs, or null if the addon was built without nvcc.
const void* kernelImage();

/// Returns the version of nvcc that compiled the image: "13.0".
const char* kernelCompiler();

class Module {
 public:
  /// Throws Failure if the addon contains no kernels, or none that this driver can load for this GPU.
  explicit Module(const Context& context);
  ~Module();
  Module(const Module&) = delete;

  /// Returns a kernel, ready to launch with `sharedBytes` of shared memory. `kernel` has static lifetime. Throws
  /// CallError.
  CUfunction function(const char* kernel, unsigned sharedBytes);

 private:
  struct LoadedFunction {
    CUfunction function = nullptr;
    unsigned sharedBytes = 48 * 1024;  // more needs the opt-in attribute
  };
  CUmodule module_ = nullptr;
  std::unordered_map<std::string_view, LoadedFunction> functions_;
};

}  // namespace mosaic::cuda
