// What the emulation is asked for, and what it counts.
#pragma once

#include <atomic>
#include <cstdint>
#include <source_location>
#include <stdexcept>

namespace emulated {

using Site = std::source_location;

/// A kernel did what no kernel may; reports which thread, and where.
struct Misuse : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Set before a launch; never changed while a kernel runs.
struct Config {
  /// 0: a warp runs ahead to its next barrier. Else warps are interleaved at random, by this seed.
  unsigned seed = 0;
  /// Threads of the host, each with a block of its own.
  int workers = 1;
  /// Whether races on shared memory are looked for; about a tenth of the time.
  bool races = true;
};
inline Config config;

/// What kernels did so far: instructions of a warp (wgmma: of a warpgroup), bytes that their threads asked for.
struct Stats {
  std::atomic<uint64_t> mma{0}, wgmma{0}, ldmatrix{0}, conflicts{0}, switches{0};
  std::atomic<uint64_t> globalBytes{0}, sharedBytes{0};
};
inline Stats stats;

}  // namespace emulated
