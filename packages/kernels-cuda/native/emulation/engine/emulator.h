// Settings and counters of the emulation.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <source_location>
#include <stdexcept>
#include <string>

#include "kernels/tensor_map.h"

namespace emulated {

using CallSite = std::source_location;

/// A kernel performed an invalid operation; the message names the thread and location.
struct KernelError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Settings, fixed before a launch and constant while a kernel runs.
struct Config {
  /// 0: each warp runs ahead to its next barrier. Otherwise the seed for interleaving warps at random.
  unsigned seed = 0;
  /// Number of host threads, each of which runs one block at a time.
  int workers = 1;
  /// Whether to detect races on shared memory; costs about a tenth of the time.
  bool detectsRaces = true;
};
inline Config config;

/// Totals over all kernels so far: warp instructions (wgmma: of a warpgroup), and bytes that threads requested.
struct Stats {
  std::atomic<uint64_t> mma{0}, wgmma{0}, ldmatrix{0}, conflicts{0}, switches{0};
  std::atomic<uint64_t> globalBytes{0}, sharedBytes{0};
};
inline Stats stats;

// The kernels compiled for the host, by name. They correspond to a module's functions on a device.

struct Dimensions {
  unsigned x, y, z;
};

/// One launch of a grid. `parameters` is the address of the kernel's only argument, a struct.
struct Launch {
  Dimensions grid, block;
  size_t sharedBytes;
  const void* parameters;
};

struct Kernel {
  /// Copies the argument, because a driver reads it during the call and the grid runs later.
  std::shared_ptr<const void> (*copyParameters)(const void* parameters);
  /// Runs the whole grid; throws std::exception with the location of the first invalid operation.
  void (*run)(const Launch& launch);
};

inline std::map<std::string, Kernel>& kernels() {
  static std::map<std::string, Kernel> registry;
  return registry;
}

struct Registration {
  Registration(const char* name, Kernel kernel) { kernels()[name] = kernel; }
};

template <class Parameters>
std::shared_ptr<const void> copyParameters(const void* parameters) {
  static_assert(sizeof(Parameters) <= 4096, "drivers before CUDA 12.1 limit kernel arguments to 4 KiB");
  return std::make_shared<const Parameters>(*static_cast<const Parameters*>(parameters));
}

// The contents of a TensorMap, encoded by the emulated driver and decoded by TMA.

/// Axes start with the fastest. Lengths count 16-bit elements, strides count bytes.
struct EncodedTensorMap {
  const char* base;
  int64_t length[4], stride[4];
  int boxRows;
};
static_assert(sizeof(EncodedTensorMap) <= sizeof(mosaic::cuda::TensorMap));

}  // namespace emulated
