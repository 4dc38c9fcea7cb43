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

/// A kernel did what no kernel may; reports which thread, and where.
struct KernelError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Set before a launch; never changed while a kernel runs.
struct Config {
  /// 0: a warp runs ahead to its next barrier. Else warps are interleaved at random, by this seed.
  unsigned seed = 0;
  /// Threads of the host, each with a block of its own.
  int workers = 1;
  /// Whether races on shared memory are looked for; about a tenth of the time.
  bool detectsRaces = true;
};
inline Config config;

/// What kernels did so far: instructions of a warp (wgmma: of a warpgroup), bytes that their threads requested.
struct Stats {
  std::atomic<uint64_t> mma{0}, wgmma{0}, ldmatrix{0}, conflicts{0}, switches{0};
  std::atomic<uint64_t> globalBytes{0}, sharedBytes{0};
};
inline Stats stats;

// The kernels that were compiled for the host, by name: what a module's functions are on a device.

struct Dimensions {
  unsigned x, y, z;
};

/// One launch of a grid. `parameters` points to the kernel's only argument, a struct.
struct Launch {
  Dimensions grid, block;
  size_t sharedBytes;
  const void* parameters;
};

struct Kernel {
  /// Copies the argument: a driver takes it at the call, the grid runs later.
  std::shared_ptr<const void> (*copyParameters)(const void* parameters);
  /// Runs the whole grid; throws std::exception with the place of the first misuse.
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

// What the stand-in driver puts into a TensorMap, and TMA takes out.

/// Axes from the fastest on; lengths count elements of 16 bits, strides bytes.
struct EncodedTensorMap {
  const char* base;
  int64_t length[4], stride[4];
  int boxRows;
};
static_assert(sizeof(EncodedTensorMap) <= sizeof(mosaic::cuda::TensorMap));

}  // namespace emulated
