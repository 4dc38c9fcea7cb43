// Barriers in shared memory and TMA.
//   - A barrier counts arrivals and bytes, has the parity of its phase, and carries clocks, as other barriers do. Who
//     uses it must have learned of its making, TMA by a fence.
//   - TMA poisons its destination when it is started, and lands when no thread can run any more, as late as can be, the
//     youngest copy first; with a seed, in any order.
#pragma once

#include "engine/block.h"
#include "engine/collective.h"
#include "engine/emulator.h"
#include "engine/memory.h"
#include "engine/warpgroup.h"

namespace emulated {

/// What an mbarrier can count of arrivals, and of bytes.
constexpr int kMostPending = (1 << 20) - 1;

struct PhasedBarrier {
  int count = 0, pending = 0, bytes = 0;
  unsigned phase = 0;
  size_t maker = 0;       // the warp that made it
  uint32_t made = 0;      // by its clock
  bool announced = false;  // to TMA
  Clocks clocks{}, done{};
  std::vector<int> waiting;
};

struct BoxCopy {
  EncodedMap map;
  SharedAddress to, bar;
  std::array<int, 4> at;
  Clocks clocks;

  int bytes() const { return map.boxRows * kPanelBytes; }
};

class Hopper : public Asynchronous {
 public:
  Hopper(size_t threads) : groups(threads) {}

  static Hopper& ofBlock() {
    if (!block->asynchronous) block->asynchronous = std::make_unique<Hopper>(block->fibers.size());
    return static_cast<Hopper&>(*block->asynchronous);
  }

  void init(SharedAddress bar, int count) {
    block->at(bar, 8, 8);
    if (count < 1 || count > kMostPending) fail("mbarrier.init with a count out of range");
    PhasedBarrier fresh;
    fresh.count = fresh.pending = count;
    fresh.maker = static_cast<size_t>(current->warp);
    fresh.made = block->warps[fresh.maker].clocks[fresh.maker];
    barriers_[bar] = fresh;
  }

  void announce() {
    for (auto& [at, bar] : barriers_) bar.announced = bar.announced || bar.maker == static_cast<size_t>(current->warp);
  }

  void arrive(SharedAddress at, int bytes) {
    PhasedBarrier& bar = barrierAt(at);
    Clocks& clocks = block->warps[static_cast<size_t>(current->warp)].clocks;
    if (bar.pending == 0) fail("more arrivals than the mbarrier's count");
    bar.bytes += bytes;
    if (bytes < 0 || bar.bytes > kMostPending) fail("mbarrier expects more bytes than it can count");
    bar.pending--;
    join(bar.clocks, clocks);
    clocks[static_cast<size_t>(current->warp)]++;
    endPhase(bar);
  }

  void await(SharedAddress at, unsigned parity) {
    PhasedBarrier& bar = barrierAt(at);
    while (bar.phase == parity) {
      bar.waiting.push_back(current->thread);
      block->wait("mbarrier.try_wait");
    }
    join(block->warps[static_cast<size_t>(current->warp)].clocks, bar.done);
  }

  void copy(const BoxCopy& box) {
    if (!barrierAt(box.bar).announced) fail("the mbarrier is not visible to TMA: fence.mbarrier_init is missing");
    const auto bytes = static_cast<uint32_t>(box.bytes());
    char* to = block->at(box.to, bytes, kPermutationBytes);
    block->onWrite(box.to, bytes, static_cast<uint32_t>(current->thread), true);
    std::memset(to, 0xff, bytes);
    copies_.push_back(box);
    Clocks& clocks = block->warps[static_cast<size_t>(current->warp)].clocks;
    copies_.back().clocks = clocks;
    clocks[static_cast<size_t>(current->warp)]++;
  }

  bool land() override {
    if (copies_.empty()) return false;
    const size_t which = config.seed ? block->random() % copies_.size() : copies_.size() - 1;
    const BoxCopy box = copies_[which];
    copies_.erase(copies_.begin() + static_cast<long>(which));
    for (int row = 0; row < box.map.boxRows; row++) landRow(box, row);
    PhasedBarrier& bar = barriers_.at(box.bar);
    bar.bytes -= box.bytes();
    join(bar.clocks, box.clocks);
    endPhase(bar);
    return true;
  }

  void leave() override { groups.leave(); }
  const char* unfinished() override {
    if (!copies_.empty()) return "a block ended with TMA's copies under way";
    return groups.unfinished();
  }

  Warpgroups groups;

 private:
  PhasedBarrier& barrierAt(SharedAddress at) {
    const auto found = barriers_.find(at);
    if (found == barriers_.end()) fail("mbarrier used before mbarrier.init");
    PhasedBarrier& bar = found->second;
    const auto warp = static_cast<size_t>(current->warp);
    const bool known = warp == bar.maker || block->warps[warp].clocks[bar.maker] >= bar.made;
    if (!known) fail("race: mbarrier used by a warp to which its mbarrier.init is not visible");
    return bar;
  }

  void endPhase(PhasedBarrier& bar) {
    if (bar.pending || bar.bytes) return;
    bar.phase ^= 1;
    bar.pending = bar.count;
    bar.done = bar.clocks;
    block->wake(bar.waiting.data(), bar.waiting.size());
    bar.waiting.clear();
  }

  /// One row of a box: 128 bytes, 16 at a time, for these stay together when rows are permuted.
  void landRow(const BoxCopy& box, int row) {
    const EncodedMap& map = box.map;
    char line[kPanelBytes] = {};
    const int64_t at[4] = {box.at[0], box.at[1] + row, box.at[2], box.at[3]};
    bool inside = at[0] >= 0 && at[0] < map.length[0];
    int64_t offset = at[0] * 2;
    for (int axis = 1; axis < 4; axis++) {
      inside = inside && at[axis] >= 0 && at[axis] < map.length[axis];
      offset += at[axis] * map.stride[axis];
    }
    if (inside) {
      const auto bytes = static_cast<size_t>(std::min<int64_t>(kPanelBytes, (map.length[0] - at[0]) * 2));
      checkGlobal(map.base + offset, bytes, 16, "TMA read");
      std::memcpy(line, map.base + offset, bytes);
    }
    for (uint32_t chunk = 0; chunk < kPanelBytes; chunk += 16) {
      const SharedAddress to = permuted128(box.to + static_cast<uint32_t>(row) * kPanelBytes + chunk);
      std::memcpy(block->at(to, 16, 16), line + chunk, 16);
      for (int word = 0; word < 4; word++) block->shadow[(to - kSharedBase) / 4 + word].pending = 0;
    }
  }

  std::map<SharedAddress, PhasedBarrier> barriers_;
  std::vector<BoxCopy> copies_;
};

}  // namespace emulated
