// Shared memory that records who wrote and read each word, and when, by the clocks of warps.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace emulated {

constexpr int kMaxWarps = 32;
using Clocks = std::array<uint32_t, kMaxWarps>;

inline void join(Clocks& into, const Clocks& from) {
  for (int warp = 0; warp < kMaxWarps; warp++) into[warp] = std::max(into[warp], from[warp]);
}

/// Who (upper bits) at which time of its warp (lower bits); 0: nobody. A warp as a whole is an actor too.
constexpr uint32_t kClockBits = 21, kClockMask = (1u << kClockBits) - 1, kWarpActor = 1024;
/// Where shared addresses begin: as on the device, not at zero.
constexpr uint32_t kSharedBase = 1024;

/// Of a word that an asynchronous copy will write; of one that the asynchronous proxy does not see yet.
constexpr uint32_t kInFlight = 1, kUnfenced = 2;

/// What is remembered of 4 bytes.
struct Shadow {
  uint32_t writer = 0, read0 = 0, read1 = 0, pending = 0;
};

inline uint32_t warpOf(uint32_t record) {
  const uint32_t actor = record >> kClockBits;
  return actor >= kWarpActor ? actor - kWarpActor : actor / 32;
}

inline std::string nameOf(uint32_t record) {
  const uint32_t actor = record >> kClockBits;
  return actor >= kWarpActor ? "warp " + std::to_string(actor - kWarpActor) : "thread " + std::to_string(actor);
}

}  // namespace emulated
