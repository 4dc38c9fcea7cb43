// What tests set of the stand-in for NCCL, by environment variables.
#pragma once

#include <cstdlib>
#include <cstring>
#include <string>

namespace standin {

inline std::string setting(const char* name) {
  const char* text = std::getenv(name);
  return text ? text : "";
}

/// As ncclGetVersion gives it.
inline int version() {
  const std::string text = setting("MOSAIC_STANDIN_NCCL_VERSION");
  return text.empty() ? 22703 : std::atoi(text.c_str());
}
/// "init" or "split": that never completes.
inline bool hangs(const char* what) { return setting("MOSAIC_STANDIN_NCCL_HANG") == what; }
/// The n-th launch of a communicator never completes; 0: none.
inline int hangingLaunch() { return std::atoi(setting("MOSAIC_STANDIN_NCCL_HANG").c_str()); }
/// The n-th launch of a communicator ends in an asynchronous error; 0: none.
inline int failingLaunch() { return std::atoi(setting("MOSAIC_STANDIN_NCCL_ERROR").c_str()); }

}  // namespace standin
