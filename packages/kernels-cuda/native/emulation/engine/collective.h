// What threads do together: warp collectives, barriers.
#pragma once

#include "engine/block.h"

namespace emulated {

/// Every lane of a warp has its `laneOperands`; the last of the 32 executes the operation for all, in `combine(lanes)`.
template <class Lane, class Body>
inline void collective(const char* operation, CallSite site, Lane& laneOperands, Body&& combine) {
  Block& all = *block;
  Fiber& fiber = *current;
  Warp& warp = all.warps[static_cast<size_t>(fiber.warp)];
  fiber.site = site;
  if (warp.arrived == 0) {
    warp.operation = operation;
    warp.line = site.line();
    warp.column = site.column();
  } else if (warp.operation != operation || warp.line != site.line() || warp.column != site.column()) {
    fail(std::string("divergent collective: this lane is at ") + operation + ", others of its warp at " +
         warp.operation + ":" + std::to_string(warp.line));
  }
  warp.slot[fiber.lane] = &laneOperands;
  if (++warp.arrived < 32) return all.wait(operation);
  warp.arrived = 0;
  combine(reinterpret_cast<Lane**>(warp.slot));
  int others[31], count = 0;
  for (int lane = 0; lane < 32; lane++) {
    if (lane != fiber.lane) others[count++] = fiber.warp * 32 + lane;
  }
  all.wake(others, 31);
}

/// bar.sync (`wait`) and bar.arrive; `expected` threads complete it.
inline void barrier(int id, int expected, bool wait, CallSite site) {
  Block& all = *block;
  current->site = site;
  if (id < 0 || id >= 16 || expected <= 0 || expected % 32)
    fail("a barrier requires an index below 16 and whole warps");
  Barrier& bar = all.barriers[static_cast<size_t>(id)];
  const auto me = static_cast<size_t>(current->warp);
  Clocks& clocks = all.warps[me].clocks;
  if (bar.arrived && bar.expected != expected) fail("barrier used with different thread counts");
  bar.expected = expected;
  join(bar.clocks, clocks);
  if (wait) bar.waiting.push_back(current->thread);
  else clocks[me]++;  // what follows an arrive is not covered by it
  if (++bar.arrived < expected) {
    if (wait) all.wait("__syncthreads/bar.sync");
    return;
  }
  std::vector<int> waiting = std::move(bar.waiting);
  const Clocks reached = bar.clocks;
  bar = Barrier{};
  std::vector<bool> visited(all.warps.size());
  for (const int thread : waiting) {
    const auto warp = static_cast<size_t>(thread / 32);
    if (visited[warp]) continue;
    visited[warp] = true;
    join(all.warps[warp].clocks, reached);
    all.warps[warp].clocks[warp]++;
  }
  std::erase(waiting, current->thread);
  all.wake(waiting.data(), waiting.size());
  if (!wait || !config.seed || !(all.random() & 1)) return;
  all.ready.push_back(current->thread);  // lets the others run first
  all.wait("ready");
}

}  // namespace emulated
