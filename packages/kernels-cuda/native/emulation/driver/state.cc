#include "state.h"

#include <cstdio>

namespace emulated {

// Nothing here is destroyed at the end of the process, for threads may still run then.

LiveResourceCounts& liveResources() {
  static auto& all = *new LiveResourceCounts;
  return all;
}

bool& isInitialized() {
  static bool initialized = false;
  return initialized;
}

bool& hasContext() {
  static thread_local bool current = false;
  return current;
}

CUresult ready() {
  using namespace mosaic::cuda;
  if (!isInitialized()) return CUDA_ERROR_NOT_INITIALIZED;
  if (isInCallback()) return CUDA_ERROR_NOT_PERMITTED;
  if (!hasContext()) return CUDA_ERROR_INVALID_CONTEXT;
  return contextStatus().get();
}

void setStickyError(CUresult code, const std::string& what) {
  std::fprintf(stderr, "emulated GPU: %s\n", what.c_str());
  contextStatus().fail(code);
}

}  // namespace emulated
