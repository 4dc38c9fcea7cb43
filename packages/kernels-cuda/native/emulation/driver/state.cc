#include "state.h"

#include <cstdio>

namespace emulated {

// Nothing here is destroyed at process exit, because threads may still run then.

LiveResourceCounts& liveResources() {
  static auto& counts = *new LiveResourceCounts;
  return counts;
}

bool& isInitialized() {
  static bool wasInitialized = false;
  return wasInitialized;
}

bool& hasContext() {
  static thread_local bool hasCurrentContext = false;
  return hasCurrentContext;
}

CUresult checkReady() {
  using namespace mosaic::cuda;
  if (!isInitialized()) return CUDA_ERROR_NOT_INITIALIZED;
  if (isInCallback()) return CUDA_ERROR_NOT_PERMITTED;
  if (!hasContext()) return CUDA_ERROR_INVALID_CONTEXT;
  return contextStatus().get();
}

void setStickyError(CUresult code, const std::string& message) {
  std::fprintf(stderr, "emulated GPU: %s\n", message.c_str());
  contextStatus().fail(code);
}

}  // namespace emulated
