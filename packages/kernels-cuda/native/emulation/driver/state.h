// What the entry points of the stand-in driver share.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <string>

#include "driver/api.h"
#include "stream.h"

namespace emulated {

// What tests may set of the pretended GPU, by environment variables.

inline long setting(const char* name, long defaultValue) {
  const char* text = std::getenv(name);
  return text && *text ? std::strtol(text, nullptr, 10) : defaultValue;
}

/// How many GPUs there are; 0: cuInit finds none.
inline int devices() { return static_cast<int>(setting("MOSAIC_EMULATED_DEVICES", 1)); }
/// As cuDriverGetVersion gives it.
inline int driverVersion() { return static_cast<int>(setting("MOSAIC_EMULATED_DRIVER", 13000)); }
/// 80 for 8.0.
inline int capability() { return static_cast<int>(setting("MOSAIC_EMULATED_CAPABILITY", 80)); }
/// How far a grid may reach along y and along z.
inline int maxGridDim() { return static_cast<int>(setting("MOSAIC_EMULATED_GRID", 65535)); }
/// Bytes of device memory.
inline size_t memoryBytes() { return static_cast<size_t>(setting("MOSAIC_EMULATED_MEMORY", 4L << 30)); }
/// What cuInit returns.
inline int initResult() { return static_cast<int>(setting("MOSAIC_EMULATED_INIT", 0)); }
/// Whether the driver brings kernels along; 0: the addon must have its own, as with NVIDIA's.
inline bool hasKernels() { return setting("MOSAIC_EMULATED_KERNELS", 1) != 0; }
/// What loading kernels returns.
inline int moduleLoadResult() { return static_cast<int>(setting("MOSAIC_EMULATED_MODULE", 0)); }
/// The number, from 1, of the launch that fails, as an illegal access would make it; 0: none.
inline long failingLaunchNumber() { return setting("MOSAIC_EMULATED_FAILING_LAUNCH", 0); }
/// The number, from 1, of the launch that is refused by the driver; 0: none.
inline long rejectedLaunch() { return setting("MOSAIC_EMULATED_REFUSED_LAUNCH", 0); }
/// The number, from 1, of the launch that never ends; 0: none.
inline long endlessLaunchNumber() { return setting("MOSAIC_EMULATED_ENDLESS_LAUNCH", 0); }
/// Whether to report on stderr what was not given back when the last context goes.
inline bool reportsLeaks() { return setting("MOSAIC_EMULATED_LEAKS", 0) != 0; }

/// How many there are of what must be given back.
struct LiveResourceCounts {
  std::atomic<long> contexts{0}, streams{0}, events{0}, modules{0}, pools{0}, allocations{0}, pinned{0};
};
LiveResourceCounts& liveResources();

/// Whether cuInit was called.
bool& isInitialized();

/// Whether the calling thread has set a context, as NVIDIA's driver requires of every thread.
bool& hasContext();

/// The first reason for which a call is to be refused: a thread without a context, a callback of the driver's (which
/// must not call it), a context that has failed. Else success.
CUresult checkReady();

/// Fails the context as something did on the device, and reports so on stderr.
void setStickyError(CUresult code, const std::string& message);

/// Poison of fresh memory and of memory that was given back: NaN in every floating-point type.
constexpr int kPoisonByte = 0xff;

template <class T>
T* pointer(CUdeviceptr address) {
  return reinterpret_cast<T*>(static_cast<uintptr_t>(address));
}

}  // namespace emulated
