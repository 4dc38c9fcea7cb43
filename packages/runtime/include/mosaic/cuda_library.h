// Finds the CUDA driver's functions in a library that is loaded at run time.
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "mosaic/cuda_driver.h"

namespace mosaic::cuda {

/// $MOSAIC_CUDA_LIBRARY, else libcuda.so.1.
inline std::string driverLibraryName() {
  const char* named = std::getenv("MOSAIC_CUDA_LIBRARY");
  return named && *named ? named : "libcuda.so.1";
}

/// Fills the table from a loaded library: the first symbol that is not there, or null.
inline const char* findFunctions(void* library, Driver& found) {
  const char* missing = nullptr;
#define MOSAIC_CUDA_FIND(name, symbol, parameters)                                \
  found.name = reinterpret_cast<CUresult(*) parameters>(dlsym(library, #symbol)); \
  if (!found.name && !missing) missing = #symbol;
  MOSAIC_CUDA_DRIVER(MOSAIC_CUDA_FIND)
#undef MOSAIC_CUDA_FIND
  return missing;
}

/// What was tried, and what the driver says of it.
inline std::string messageOf(const Driver& driver, CUresult code, const char* what) {
  const char *name = nullptr, *text = nullptr;
  driver.getErrorName(code, &name);
  driver.getErrorString(code, &text);
  return std::string(what) + ": " + (text ? text : "unknown error") + " (" + (name ? name : "?") + ")";
}

}  // namespace mosaic::cuda
