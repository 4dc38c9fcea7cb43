// State shared by the entry points of the emulated driver.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <string>

#include "driver/api.h"
#include "stream.h"

namespace emulated {

// Settings of the emulated GPU, which tests set by environment variables.

inline long setting(const char* name, long defaultValue) {
  const char* text = std::getenv(name);
  return text && *text ? std::strtol(text, nullptr, 10) : defaultValue;
}

/// Number of GPUs; with 0, cuInit finds none.
inline int devices() { return static_cast<int>(setting("MOSAIC_EMULATED_DEVICES", 1)); }
/// In the format of cuDriverGetVersion.
inline int driverVersion() { return static_cast<int>(setting("MOSAIC_EMULATED_DRIVER", 13000)); }
/// Compute capability: 80 for 8.0.
inline int capability() { return static_cast<int>(setting("MOSAIC_EMULATED_CAPABILITY", 80)); }
/// Maximum grid size along y and z.
inline int maxGridDim() { return static_cast<int>(setting("MOSAIC_EMULATED_GRID", 65535)); }
/// Bytes of device memory.
inline size_t memoryBytes() { return static_cast<size_t>(setting("MOSAIC_EMULATED_MEMORY", 4L << 30)); }
/// Result of cuInit.
inline int initResult() { return static_cast<int>(setting("MOSAIC_EMULATED_INIT", 0)); }
/// Whether the driver provides kernels. With 0 the addon must have its own, as with NVIDIA's driver.
inline bool hasKernels() { return setting("MOSAIC_EMULATED_KERNELS", 1) != 0; }
/// Result of loading kernels.
inline int moduleLoadResult() { return static_cast<int>(setting("MOSAIC_EMULATED_MODULE", 0)); }
/// Number, from 1, of the launch that fails like an illegal access; 0: none.
inline long failingLaunchNumber() { return setting("MOSAIC_EMULATED_FAILING_LAUNCH", 0); }
/// Number, from 1, of the launch that the driver rejects; 0: none.
inline long rejectedLaunch() { return setting("MOSAIC_EMULATED_REFUSED_LAUNCH", 0); }
/// Number, from 1, of the launch that never ends; 0: none.
inline long endlessLaunchNumber() { return setting("MOSAIC_EMULATED_ENDLESS_LAUNCH", 0); }
/// Number, from 1, of the allocation of pinned memory that fails; 0: none.
inline long failingPinnedAllocation() { return setting("MOSAIC_EMULATED_FAILING_PINNED", 0); }
/// Whether to report unreleased resources on stderr when the last context is released.
inline bool reportsLeaks() { return setting("MOSAIC_EMULATED_LEAKS", 0) != 0; }

/// Number of live resources that must be released.
struct LiveResourceCounts {
  std::atomic<long> contexts{0}, streams{0}, events{0}, modules{0}, pools{0}, allocations{0}, pinned{0};
};
LiveResourceCounts& liveResources();

/// Whether cuInit was called.
bool& isInitialized();

/// Whether the calling thread has set a context, as NVIDIA's driver requires of every thread.
bool& hasContext();

/// Returns the first reason to reject a call: a thread without a context, a callback of the driver (which must not call
/// it), or a context that has failed. Otherwise success.
CUresult checkReady();

/// Fails the context, as an error on the device does, and reports it on stderr.
void setStickyError(CUresult code, const std::string& message);

/// Poison of fresh and of freed memory: NaN in every floating-point type.
constexpr int kPoisonByte = 0xff;

template <class T>
T* pointer(CUdeviceptr address) {
  return reinterpret_cast<T*>(static_cast<uintptr_t>(address));
}

}  // namespace emulated
