// What tests may ask of the pretended NCCL, by environment variables.
#pragma once

#include <cstdlib>
#include <cstring>
#include <string>

namespace standin {

inline std::string knob(const char* name) {
  const char* text = std::getenv(name);
  return text ? text : "";
}

/// As ncclGetVersion gives it.
inline int version() {
  const std::string text = knob("MOSAIC_STANDIN_NCCL_VERSION");
  return text.empty() ? 22703 : std::atoi(text.c_str());
}
/// "init" or "split": that never ends.
inline bool hangs(const char* what) { return knob("MOSAIC_STANDIN_NCCL_HANG") == what; }
/// The how manyeth launch of a communicator never ends; 0: none.
inline int hangingLaunch() { return std::atoi(knob("MOSAIC_STANDIN_NCCL_HANG").c_str()); }
/// The how manyeth launch of a communicator ends in an asynchronous error; 0: none.
inline int failingLaunch() { return std::atoi(knob("MOSAIC_STANDIN_NCCL_ERROR").c_str()); }

}  // namespace standin
