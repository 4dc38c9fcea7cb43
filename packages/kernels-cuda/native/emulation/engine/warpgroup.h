// wgmma and setmaxnreg.
//   - Accumulators are NaN from the start of a product until the wait for it. Shared memory is read at that wait, so
//     that overwriting an operand too early is detected.
//   - Stores of threads to shared memory may be read only after fence.proxy.async.
//   - Registers that a product uses must not have been written since wgmma.fence. A wait lists the accumulators that it
//     completes.
//   - The four warps of a warpgroup must issue the same products.
//   - A block has the registers that it started with: an allocation waits until another warpgroup has released
//     registers.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>

#include "engine/collective.h"

namespace emulated {

using SharedAddress = uint32_t;
constexpr int kPanelRowBytes = 128, kSwizzleAtomBytes = 1024;

/// XORs bits 4-6 of an address with bits 7-9: the 128-byte swizzle of TMA and wgmma.
inline SharedAddress swizzle128B(SharedAddress a) { return a ^ (a >> 7 & 7) << 4; }

using Widen = float (*)(uint16_t);

/// One wgmma of a thread. A is read from `registers` if these are not null, else by descriptor.
struct WgmmaOperation {
  int columns;
  uint64_t a, b;
  const uint32_t* registers;
  uint32_t heldRegisters[4];  // contents of the registers at the start
  bool isTransposed, add;
  float* accumulators;
  Widen widen;
};

struct WgmmaLane {
  std::vector<std::vector<WgmmaOperation>> committedGroups;
  std::vector<WgmmaOperation> uncommittedOperations;
  std::map<float*, std::vector<float>> results;  // values of accumulators of pending products
  bool isFenced = false;
  /// Contents, at the fence, of the registers that products have used so far.
  std::map<const void*, std::vector<uint32_t>> registersAtFence;
};

class Warpgroups {
 public:
  Warpgroups(size_t threads)
      : lanes_(threads),
        issuedCounts_(threads / 32),
        registerCounts_(threads / 32, initialRegisterCount(threads)),
        issueLog_(threads / 128) {}

  void fence() {
    currentLane().isFenced = true;
    for (auto& [registers, heldRegisters] : currentLane().registersAtFence)
      std::memcpy(heldRegisters.data(), registers, heldRegisters.size() * 4);
  }

  void commit() {
    currentLane().committedGroups.push_back(std::move(currentLane().uncommittedOperations));
    currentLane().uncommittedOperations.clear();
  }

  void start(WgmmaOperation product, CallSite site) {
    combineLanes("wgmma.mma_async", site, product, [this](WgmmaOperation** lanes) {
      for (int i = 1; i < 32; i++) {
        if (lanes[i]->a != lanes[0]->a || lanes[i]->b != lanes[0]->b) fail("wgmma: descriptor mismatch between lanes");
      }
      failIfOperandsDiffer(lanes[0]->a, lanes[0]->b);
      if (current->warp % 4 == 0) stats.wgmma.fetch_add(1, std::memory_order_relaxed);
    });
    WgmmaLane& lane = currentLane();
    if (!lane.isFenced) fail("wgmma without wgmma.fence since the last wait");
    float* accumulators = product.accumulators;
    const int count = product.columns / 2;
    if (product.registers) failIfUnfenced(lane, product.registers, 4);
    if (!lane.results.count(accumulators)) {
      if (product.add) failIfUnfenced(lane, accumulators, static_cast<size_t>(count));
      lane.results[accumulators].assign(accumulators, accumulators + count);
    }
    std::fill(accumulators, accumulators + count, NAN);
    if (product.registers) std::copy(product.registers, product.registers + 4, product.heldRegisters);
    lane.uncommittedOperations.push_back(product);
  }

  /// Waits until at most `maxPendingGroups` groups are pending. `completed` lists the accumulators that are completed,
  /// which the compiler may use again.
  void wait(size_t maxPendingGroups, std::initializer_list<const float*> completed, CallSite site) {
    WgmmaLane& lane = currentLane();
    lane.isFenced = false;
    for (const float* accumulators : completed) {
      if (!lane.results.count(const_cast<float*>(accumulators))) {
        fail("wgmma.wait_group lists accumulators that no wgmma writes");
      }
    }
    const size_t oldResultCount = lane.results.size();
    combineLanes("wgmma.wait_group", site, lane, [this, maxPendingGroups](WgmmaLane** lanes) {
      for (int i = 1; i < 32; i++) {
        if (lanes[i]->committedGroups.size() != lanes[0]->committedGroups.size())
          fail("wgmma: lanes committed different numbers of groups");
      }
      const size_t total = lanes[0]->committedGroups.size(),
                   doneGroupCount = total > maxPendingGroups ? total - maxPendingGroups : 0;
      for (size_t group = 0; group < doneGroupCount; group++) {
        for (size_t i = 0; i < lanes[0]->committedGroups[group].size(); i++) run(lanes, group, i);
      }
      for (int i = 0; i < 32; i++) retireGroups(*lanes[i], doneGroupCount);
    });
    for (const float* accumulators : completed) {
      if (lane.results.count(const_cast<float*>(accumulators))) {
        fail("wgmma.wait_group lists accumulators that are still pending");
      }
    }
    if (oldResultCount - lane.results.size() != completed.size()) {
      fail("wgmma.wait_group does not list all accumulators that it completes");
    }
  }

  /// setmaxnreg.inc: waits until the block's pool has enough registers.
  void allocateRegisters(int registerCount, CallSite site) {
    struct NoOperand {
    } nothing;
    combineLanes("setmaxnreg.inc", site, nothing, [this, registerCount](NoOperand**) {
      int& currentCount = registerCounts_[static_cast<size_t>(current->warp)];
      if (registerCount < currentCount)
        fail("setmaxnreg.inc: expected at least the current " + std::to_string(currentCount) + " registers, received " +
             std::to_string(registerCount));
      while (freeRegisterCount_ < (registerCount - currentCount) * 32) {
        waitingThreads_.push_back(current->thread);
        block->wait("setmaxnreg.inc");
      }
      freeRegisterCount_ -= (registerCount - currentCount) * 32;
      currentCount = registerCount;
    });
  }

  /// setmaxnreg.dec: returns the excess registers to the block's pool.
  void releaseRegisters(int registerCount, CallSite site) {
    struct NoOperand {
    } nothing;
    combineLanes("setmaxnreg.dec", site, nothing, [this, registerCount](NoOperand**) {
      int& currentCount = registerCounts_[static_cast<size_t>(current->warp)];
      if (registerCount > currentCount)
        fail("setmaxnreg.dec: expected at most the current " + std::to_string(currentCount) + " registers, received " +
             std::to_string(registerCount));
      freeRegisterCount_ += (currentCount - registerCount) * 32;
      currentCount = registerCount;
      block->wake(waitingThreads_.data(), waitingThreads_.size());
      waitingThreads_.clear();
    });
  }

  void onThreadExit() {
    if (!currentLane().uncommittedOperations.empty()) fail("wgmma was never committed");
    if (!currentLane().committedGroups.empty()) fail("wgmma was never waited for");
  }

  const char* describePending() {
    for (size_t warp = 0; warp < issuedCounts_.size(); warp++) {
      if (issuedCounts_[warp] != issuedCounts_[warp / 4 * 4])
        return "wgmma: a warp issued fewer products than its warpgroup";
      if (registerCounts_[warp] != registerCounts_[warp / 4 * 4]) return "setmaxnreg in only some warps of a warpgroup";
    }
    return "";
  }

 private:
  /// Registers that ptxas assigns to a thread if the launch bounds are (threads, 1): a share of the multiprocessor's
  /// registers, in multiples of eight.
  static int initialRegisterCount(size_t threads) { return std::min(65536 / static_cast<int>(threads) / 8 * 8, 255); }

  /// Fails if registers changed since the fence. For registers that no product has used before, the contents at the
  /// fence are unknown.
  static void failIfUnfenced(WgmmaLane& lane, const void* registers, size_t words) {
    const auto [entry, isNew] = lane.registersAtFence.try_emplace(registers, words);
    if (isNew) std::memcpy(entry->second.data(), registers, words * 4);
    if (std::memcmp(entry->second.data(), registers, words * 4) == 0) return;
    fail("wgmma uses registers that were written since wgmma.fence");
  }

  WgmmaLane& currentLane() { return lanes_[static_cast<size_t>(current->thread)]; }

  /// Fails unless the current warp's next product has the same operands as that of the other warps of its warpgroup.
  void failIfOperandsDiffer(uint64_t a, uint64_t b) {
    const auto warp = static_cast<size_t>(current->warp);
    auto& issueOrder = issueLog_[warp / 4];
    const size_t issueIndex = issuedCounts_[warp]++;
    if (issueIndex == issueOrder.size()) issueOrder.push_back({a, b});
    else if (issueOrder[issueIndex] != std::pair{a, b}) fail("wgmma: warps of a warpgroup pass different operands");
  }

  /// Reads eight contiguous elements, the first of which is (i, k): i is a row of A or a column of B.
  static void read8(uint64_t descriptor, int i, int k, bool isTransposed, uint16_t (&x)[8]) {
    const auto field = [&](int bit) { return static_cast<uint32_t>(descriptor >> bit & 0x3fff) << 4; };
    if (descriptor >> 62 != 1) fail("wgmma: only the 128-byte swizzle is emulated");
    if (descriptor >> 49 & 7) fail("wgmma: base offsets are not emulated");
    const uint32_t panel = field(16), stride = field(32);
    const auto row = static_cast<uint32_t>(i), column = static_cast<uint32_t>(k);
    const uint32_t offset = isTransposed ? row / 64 * panel + column / 8 * stride + column % 8 * 128 + row % 64 * 2
                                         : row / 8 * stride + row % 8 * 128 + column * 2;
    const SharedAddress at = swizzle128B(field(0) + offset);
    std::memcpy(x, block->at(at, 16, 16), 16);
    for (uint32_t word = 0; config.detectsRaces && word < 4; word++) {
      if (block->shadow[(at - kSharedBase) / 4 + word].pending & kNotFenced) {
        fail("wgmma reads data stored by threads: fence.proxy.async is missing");
      }
    }
    block->onRead(at, 16, kWarpActor + static_cast<uint32_t>(current->warp));
  }

  struct Operands {
    float a[16][16], b[16][256];
  };

  static void readOperands(WgmmaLane** lanes, size_t group, size_t index, Operands& x) {
    const WgmmaOperation& op = lanes[0]->committedGroups[group][index];
    const int row0 = current->warp % 4 * 16;
    uint16_t bits[8];
    for (int i = 0; i < 16 && !op.registers; i++) {
      for (int k = 0; k < 16; k += 8) {
        read8(op.a, row0 + i, k, false, bits);
        for (int e = 0; e < 8; e++) x.a[i][k + e] = op.widen(bits[e]);
      }
    }
    for (int t = 0; t < 32 && op.registers; t++) {
      const WgmmaOperation& laneOp = lanes[t]->committedGroups[group][index];
      if (!std::equal(laneOp.heldRegisters, laneOp.heldRegisters + 4, laneOp.registers))
        fail("registers of A changed while wgmma was pending");
      for (int i = 0; i < 4; i++) {
        float* to = &x.a[t / 4 + i % 2 * 8][t % 4 * 2 + i / 2 * 8];
        to[0] = op.widen(static_cast<uint16_t>(laneOp.heldRegisters[i]));
        to[1] = op.widen(static_cast<uint16_t>(laneOp.heldRegisters[i] >> 16));
      }
    }
    for (int j = 0; j < op.columns; j += op.isTransposed ? 8 : 1) {
      for (int k = 0; k < 16; k += op.isTransposed ? 1 : 8) {
        read8(op.b, j, k, op.isTransposed, bits);
        if (current->warp % 4) block->sharedBytes -= sizeof bits;  // the four warps read it once in total
        for (int e = 0; e < 8; e++) x.b[op.isTransposed ? k : k + e][op.isTransposed ? j + e : j] = op.widen(bits[e]);
      }
    }
  }

  /// Computes a warp's 16 rows of one product.
  void run(WgmmaLane** lanes, size_t group, size_t index) {
    readOperands(lanes, group, index, operands_);
    const WgmmaOperation& op = lanes[0]->committedGroups[group][index];
    float sums[16][256] = {};
    for (int r = 0; r < 16; r++) {
      for (int k = 0; k < 16; k++) {
        for (int j = 0; j < op.columns; j++) sums[r][j] += operands_.a[r][k] * operands_.b[k][j];
      }
    }
    for (int t = 0; t < 32; t++) {
      std::vector<float>& results = lanes[t]->results.at(lanes[t]->committedGroups[group][index].accumulators);
      for (int i = 0; i < op.columns / 2; i++) {
        const float sum = sums[t / 4 + i / 2 % 2 * 8][i / 4 * 8 + t % 4 * 2 + i % 2];
        results[static_cast<size_t>(i)] = op.add ? results[static_cast<size_t>(i)] + sum : sum;
      }
    }
  }

  /// Removes the first `doneGroupCount` groups, and stores the results of accumulators that no later group uses.
  static void retireGroups(WgmmaLane& lane, size_t doneGroupCount) {
    lane.committedGroups.erase(lane.committedGroups.begin(),
                               lane.committedGroups.begin() + static_cast<long>(doneGroupCount));
    const auto isInUse = [&](const float* accumulators) {
      const auto usesAccumulators = [&](const auto& group) {
        const auto writesAccumulators = [&](const WgmmaOperation& op) { return op.accumulators == accumulators; };
        return std::any_of(group.begin(), group.end(), writesAccumulators);
      };
      return usesAccumulators(lane.uncommittedOperations) ||
             std::any_of(lane.committedGroups.begin(), lane.committedGroups.end(), usesAccumulators);
    };
    std::erase_if(lane.results, [&](const auto& entry) {
      const auto& [accumulators, values] = entry;
      if (isInUse(accumulators)) return false;
      for (size_t i = 0; i < values.size(); i++) {
        if (!std::isnan(accumulators[i])) fail("accumulators were written while wgmma was pending");
      }
      std::copy(values.begin(), values.end(), accumulators);
      return true;
    });
  }

  std::vector<WgmmaLane> lanes_;
  std::vector<size_t> issuedCounts_;
  std::vector<int> registerCounts_;
  int freeRegisterCount_ = 0;
  std::vector<int> waitingThreads_;
  std::vector<std::vector<std::pair<uint64_t, uint64_t>>> issueLog_;
  Operands operands_;  // of the current product; too large for a fiber's stack
};

}  // namespace emulated
