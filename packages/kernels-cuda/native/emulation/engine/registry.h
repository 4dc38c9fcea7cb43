// The kernels that were compiled for the host, by name: what a module's functions are on a device.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>

namespace emulated {

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
  std::shared_ptr<const void> (*take)(const void* parameters);
  /// Runs the whole grid; throws std::exception with the place of the first misuse.
  void (*run)(const Launch& launch);
};

inline std::map<std::string, Kernel>& kernels() {
  static std::map<std::string, Kernel> known;
  return known;
}

struct Registration {
  Registration(const char* name, Kernel kernel) { kernels()[name] = kernel; }
};

template <class Parameters>
std::shared_ptr<const void> takeParameters(const void* parameters) {
  static_assert(sizeof(Parameters) <= 4096, "drivers before CUDA 12.1 take no more as a kernel's arguments");
  return std::make_shared<const Parameters>(*static_cast<const Parameters*>(parameters));
}

}  // namespace emulated
