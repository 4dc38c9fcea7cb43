// Barriers in shared memory and TMA.
//   - A barrier counts arrivals and bytes, has the parity of its phase, and carries clocks like other barriers. Its
//     initialization must be visible to its users, and to TMA by a fence.
//   - TMA poisons its destination on start. Copies complete as late as possible, when no thread can run, the youngest
//     first; with a seed, in random order.
#pragma once

#include "engine/block.h"
#include "engine/collective.h"
#include "engine/emulator.h"
#include "engine/memory.h"
#include "engine/warpgroup.h"

namespace emulated {

/// Maximum number of pending arrivals of an mbarrier, and of pending bytes.
constexpr int kMaxPendingArrivals = (1 << 20) - 1;

struct Mbarrier {
  int count = 0, pending = 0, bytes = 0;
  unsigned phase = 0;
  size_t initWarp = 0;       // the warp that initialized it
  uint32_t initClock = 0;      // that warp's clock at the time
  bool isVisibleToTma = false;  // visible after a fence
  Clocks clocks{}, completedClocks{};
  std::vector<int> waitingThreads;
};

struct TmaCopy {
  EncodedTensorMap map;
  SharedAddress to, bar;
  std::array<int, 4> at;
  Clocks clocks;

  int bytes() const { return map.boxRows * kPanelRowBytes; }
};

class HopperUnit : public AsyncUnit {
 public:
  HopperUnit(size_t threads) : groups(threads) {}

  static HopperUnit& getCurrent() {
    if (!block->asyncUnit) block->asyncUnit = std::make_unique<HopperUnit>(block->fibers.size());
    return static_cast<HopperUnit&>(*block->asyncUnit);
  }

  void init(SharedAddress bar, int count) {
    block->at(bar, 8, 8);
    if (count < 1 || count > kMaxPendingArrivals)
      fail("mbarrier.init: expected a count from 1 to " + std::to_string(kMaxPendingArrivals) + ", received " +
           std::to_string(count));
    Mbarrier newBarrier;
    newBarrier.count = newBarrier.pending = count;
    newBarrier.initWarp = static_cast<size_t>(current->warp);
    newBarrier.initClock = block->warps[newBarrier.initWarp].clocks[newBarrier.initWarp];
    barriers_[bar] = newBarrier;
  }

  void fenceInit() {
    for (auto& [at, bar] : barriers_)
      bar.isVisibleToTma = bar.isVisibleToTma || bar.initWarp == static_cast<size_t>(current->warp);
  }

  void arrive(SharedAddress at, int bytes) {
    Mbarrier& bar = barrierAt(at);
    Clocks& clocks = block->warps[static_cast<size_t>(current->warp)].clocks;
    if (bar.pending == 0) fail("mbarrier: expected at most " + std::to_string(bar.count) + " arrivals, received more");
    bar.bytes += bytes;
    if (bytes < 0 || bar.bytes > kMaxPendingArrivals)
      fail("mbarrier: expected 0 or more bytes and a total of at most " + std::to_string(kMaxPendingArrivals) +
           " bytes, received " + std::to_string(bytes) + " and a total of " + std::to_string(bar.bytes));
    bar.pending--;
    join(bar.clocks, clocks);
    clocks[static_cast<size_t>(current->warp)]++;
    completePhase(bar);
  }

  void waitForPhase(SharedAddress at, unsigned parity) {
    Mbarrier& bar = barrierAt(at);
    while (bar.phase == parity) {
      bar.waitingThreads.push_back(current->thread);
      block->wait("mbarrier.try_wait");
    }
    join(block->warps[static_cast<size_t>(current->warp)].clocks, bar.completedClocks);
  }

  void copy(const TmaCopy& box) {
    if (!barrierAt(box.bar).isVisibleToTma) fail("the mbarrier is not visible to TMA: fence.mbarrier_init is missing");
    const auto bytes = static_cast<uint32_t>(box.bytes());
    char* to = block->at(box.to, bytes, kSwizzleAtomBytes);
    block->onWrite(box.to, bytes, static_cast<uint32_t>(current->thread), true);
    std::memset(to, 0xff, bytes);
    copies_.push_back(box);
    Clocks& clocks = block->warps[static_cast<size_t>(current->warp)].clocks;
    copies_.back().clocks = clocks;
    clocks[static_cast<size_t>(current->warp)]++;
  }

  bool completeCopy() override {
    if (copies_.empty()) return false;
    const size_t copyIndex = config.seed ? block->random() % copies_.size() : copies_.size() - 1;
    const TmaCopy box = copies_[copyIndex];
    copies_.erase(copies_.begin() + static_cast<long>(copyIndex));
    for (int row = 0; row < box.map.boxRows; row++) completeRow(box, row);
    Mbarrier& bar = barriers_.at(box.bar);
    bar.bytes -= box.bytes();
    join(bar.clocks, box.clocks);
    completePhase(bar);
    return true;
  }

  void onThreadExit() override { groups.onThreadExit(); }
  const char* describePending() override {
    if (!copies_.empty()) return "a block exited with pending TMA copies";
    return groups.describePending();
  }

  Warpgroups groups;

 private:
  Mbarrier& barrierAt(SharedAddress at) {
    const auto entry = barriers_.find(at);
    if (entry == barriers_.end()) fail("mbarrier used before mbarrier.init");
    Mbarrier& bar = entry->second;
    const auto warp = static_cast<size_t>(current->warp);
    const bool isVisible = warp == bar.initWarp || block->warps[warp].clocks[bar.initWarp] >= bar.initClock;
    if (!isVisible) fail("data race: mbarrier used by a warp to which its mbarrier.init is not visible");
    return bar;
  }

  void completePhase(Mbarrier& bar) {
    if (bar.pending || bar.bytes) return;
    bar.phase ^= 1;
    bar.pending = bar.count;
    bar.completedClocks = bar.clocks;
    block->wake(bar.waitingThreads.data(), bar.waitingThreads.size());
    bar.waitingThreads.clear();
  }

  /// Completes one row of a box: 128 bytes, in units of 16, which the row permutation does not split.
  void completeRow(const TmaCopy& box, int row) {
    const EncodedTensorMap& map = box.map;
    char rowData[kPanelRowBytes] = {};
    const int64_t at[4] = {box.at[0], box.at[1] + row, box.at[2], box.at[3]};
    bool isInside = at[0] >= 0 && at[0] < map.length[0];
    int64_t offset = at[0] * 2;
    for (int axis = 1; axis < 4; axis++) {
      isInside = isInside && at[axis] >= 0 && at[axis] < map.length[axis];
      offset += at[axis] * map.stride[axis];
    }
    if (isInside) {
      const auto bytes = static_cast<size_t>(std::min<int64_t>(kPanelRowBytes, (map.length[0] - at[0]) * 2));
      checkGlobal(map.base + offset, bytes, 16, "TMA read");
      std::memcpy(rowData, map.base + offset, bytes);
    }
    for (uint32_t chunk = 0; chunk < kPanelRowBytes; chunk += 16) {
      const SharedAddress to = swizzle128B(box.to + static_cast<uint32_t>(row) * kPanelRowBytes + chunk);
      std::memcpy(block->at(to, 16, 16), rowData + chunk, 16);
      for (int word = 0; word < 4; word++) block->shadow[(to - kSharedBase) / 4 + word].pending = 0;
    }
  }

  std::map<SharedAddress, Mbarrier> barriers_;
  std::vector<TmaCopy> copies_;
};

}  // namespace emulated
