// Operations of several threads: warp collectives, barriers.
#pragma once

#include "engine/block.h"

namespace emulated {

/// Each lane of a warp provides its `laneOperands`. The last of the 32 executes the operation for all, in
/// `combine(lanes)`.
template <class Lane, class Body>
inline void combineLanes(const char* operation, CallSite site, Lane& laneOperands, Body&& combine) {
  Block& thisBlock = *block;
  Fiber& fiber = *current;
  Warp& warp = thisBlock.warps[static_cast<size_t>(fiber.warp)];
  fiber.site = site;
  if (warp.arrivedLaneCount == 0) {
    warp.operation = operation;
    warp.line = site.line();
    warp.column = site.column();
  } else if (warp.operation != operation || warp.line != site.line() || warp.column != site.column()) {
    fail(std::string("divergent collective: this lane is at ") + operation + ", others of its warp at " +
         warp.operation + ":" + std::to_string(warp.line));
  }
  warp.slot[fiber.lane] = &laneOperands;
  if (++warp.arrivedLaneCount < 32) return thisBlock.wait(operation);
  warp.arrivedLaneCount = 0;
  combine(reinterpret_cast<Lane**>(warp.slot));
  int otherThreads[31], count = 0;
  for (int lane = 0; lane < 32; lane++) {
    if (lane != fiber.lane) otherThreads[count++] = fiber.warp * 32 + lane;
  }
  thisBlock.wake(otherThreads, 31);
}

/// Implements bar.sync (`isBlocking`) and bar.arrive; the barrier completes after `expectedThreadCount` arrivals.
inline void barrier(int id, int expectedThreadCount, bool isBlocking, CallSite site) {
  Block& thisBlock = *block;
  current->site = site;
  if (id < 0 || id >= 16 || expectedThreadCount <= 0 || expectedThreadCount % 32)
    fail("barrier: expected an index from 0 to 15 and a positive multiple of 32 threads, received index " +
         std::to_string(id) + " and " + std::to_string(expectedThreadCount) + " threads");
  Barrier& bar = thisBlock.barriers[static_cast<size_t>(id)];
  const auto me = static_cast<size_t>(current->warp);
  Clocks& clocks = thisBlock.warps[me].clocks;
  if (bar.arrivedThreadCount && bar.expectedThreadCount != expectedThreadCount)
    fail("barrier " + std::to_string(id) + ": expected " + std::to_string(bar.expectedThreadCount) +
         " threads, as in its first arrival, received " + std::to_string(expectedThreadCount));
  bar.expectedThreadCount = expectedThreadCount;
  join(bar.clocks, clocks);
  if (isBlocking) bar.waitingThreads.push_back(current->thread);
  else clocks[me]++;  // the arrival does not cover later accesses
  if (++bar.arrivedThreadCount < expectedThreadCount) {
    if (isBlocking) thisBlock.wait("__syncthreads/bar.sync");
    return;
  }
  std::vector<int> waitingThreads = std::move(bar.waitingThreads);
  const Clocks reachedClocks = bar.clocks;
  bar = Barrier{};
  std::vector<bool> visitedWarps(thisBlock.warps.size());
  for (const int thread : waitingThreads) {
    const auto warp = static_cast<size_t>(thread / 32);
    if (visitedWarps[warp]) continue;
    visitedWarps[warp] = true;
    join(thisBlock.warps[warp].clocks, reachedClocks);
    thisBlock.warps[warp].clocks[warp]++;
  }
  std::erase(waitingThreads, current->thread);
  thisBlock.wake(waitingThreads.data(), waitingThreads.size());
  if (!isBlocking || !config.seed || !(thisBlock.random() & 1)) return;
  thisBlock.readyThreads.push_back(current->thread);  // lets the other threads run first
  thisBlock.wait("ready");
}

}  // namespace emulated
