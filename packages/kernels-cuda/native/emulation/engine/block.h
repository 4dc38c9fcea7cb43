// A thread block: its fibers, their scheduling, its barriers, its shared memory.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/fiber.h"

namespace emulated {

// Shared memory that records, for each word, which threads wrote and read it and when, in the clocks of warps.

constexpr int kMaxWarps = 32;
using Clocks = std::array<uint32_t, kMaxWarps>;

inline void join(Clocks& into, const Clocks& from) {
  for (int warp = 0; warp < kMaxWarps; warp++) into[warp] = std::max(into[warp], from[warp]);
}

/// A record holds the actor (upper bits) and the clock of its warp (lower bits); 0: none. A whole warp is an actor,
/// too.
constexpr uint32_t kClockBits = 21, kClockMask = (1u << kClockBits) - 1, kWarpActor = 1024;
/// Start of shared addresses, which is not zero, as on the device.
constexpr uint32_t kSharedBase = 1024;

/// Flags of a word: an asynchronous copy will write it; it is not yet visible to the asynchronous proxy.
constexpr uint32_t kCopyPending = 1, kNotFenced = 2;

/// The access records of 4 bytes.
struct Shadow {
  uint32_t writer = 0, read0 = 0, read1 = 0, pending = 0;
};

inline uint32_t warpOfRecord(uint32_t record) {
  const uint32_t actor = record >> kClockBits;
  return actor >= kWarpActor ? actor - kWarpActor : actor / 32;
}

inline std::string actorName(uint32_t record) {
  const uint32_t actor = record >> kClockBits;
  return actor >= kWarpActor ? "warp " + std::to_string(actor - kWarpActor) : "thread " + std::to_string(actor);
}

// Asynchronous operations of a block, for Hopper: TMA copies, and products of warpgroups.

struct AsyncUnit {
  virtual ~AsyncUnit() = default;
  /// Called when no thread can run. Completes a copy; returns false if there is none.
  virtual bool completeCopy() = 0;
  /// Called when the current thread exits; fails if any of its operations are incomplete.
  virtual void onThreadExit() = 0;
  /// Called when all threads have exited; describes incomplete operations, "" if there are none.
  virtual const char* describePending() = 0;
};

struct Warp {
  void* slot[32];
  int arrivedLaneCount = 0;
  const char* operation = nullptr;
  unsigned line = 0, column = 0;
  Clocks clocks;
};

struct Barrier {
  int arrivedThreadCount = 0, expectedThreadCount = 0;
  Clocks clocks{};
  std::vector<int> waitingThreads;
};

struct Block;
inline thread_local constinit Block* block = nullptr;
inline thread_local constinit Fiber* current = nullptr;

/// Fails the kernel with a message that names the thread and its source location.
[[noreturn]] inline void fail(const std::string& message) {
  const std::string file = current->site.file_name();
  throw KernelError(message + " [thread " + std::to_string(current->thread) + ", " + file.substr(file.rfind('/') + 1) +
                    ":" + std::to_string(current->site.line()) + "]");
}

struct Block {
  dim3 grid, shape, index;
  std::function<void()> body;
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::array<Barrier, 16> barriers;
  std::vector<char> sharedMemory;
  std::vector<Shadow> shadow;
  /// Set once a kernel uses a Hopper feature (hopper.h).
  std::unique_ptr<AsyncUnit> asyncUnit;
  std::deque<int> readyThreads;
  Stack mainStack;
  std::exception_ptr error;
  int liveThreadCount = 0;
  uint32_t randomState = 1;
  uint64_t switches = 0, globalBytes = 0, sharedBytes = 0;

  uint32_t random() {
    randomState ^= randomState << 13;
    randomState ^= randomState >> 17;
    return randomState ^= randomState << 5;
  }

  // ── scheduling

  void switchTo(int thread) {
    switches++;
    Fiber* from = current;
    current = &fibers[thread];
    switchStacks(&from->stack, &current->stack);
  }

  /// Parks the current fiber until another fiber wakes it.
  void wait(const char* state) {
    current->state = state;
    const int next = popReadyThread();
    if (next != current->thread) switchTo(next);
    current->state = "ready";
  }

  /// Threads queued at the front run ahead; those at the back interleave.
  void wake(const int* threads, size_t count) {
    const bool isQueuedFirst = config.seed == 0 || (random() & 1);
    readyThreads.insert(isQueuedFirst ? readyThreads.begin() : readyThreads.end(), threads, threads + count);
  }

  int popReadyThread() {
    while (readyThreads.empty()) {
      if (!asyncUnit || !asyncUnit->completeCopy()) failWithDeadlock();
    }
    const int next = readyThreads.front();
    readyThreads.pop_front();
    return next;
  }

  [[noreturn]] void failWithDeadlock() {
    std::map<std::string, int> threadCounts;
    for (const Fiber& fiber : fibers) {
      const bool hasExited = fiber.state[0] == 'e';
      threadCounts[std::string(fiber.state) + ":" + std::to_string(hasExited ? 0 : fiber.site.line())]++;
    }
    std::string report = "deadlock, possibly at a divergent barrier or collective:";
    for (const auto& [place, count] : threadCounts) report += " " + std::to_string(count) + " threads " + place + ";";
    fail(report);
  }

  static void entry() {
    Block& self = *block;
    try {
      self.body();
      if (!current->uncommittedCopies.empty()) fail("cp.async was not committed before exit");
      if (self.asyncUnit) self.asyncUnit->onThreadExit();
      current->state = "exited";
      if (--self.liveThreadCount) self.readyThreads.push_front(self.popReadyThread());
    } catch (...) {
      self.error = std::current_exception();
    }
    if (self.error || !self.liveThreadCount) switchStacks(&current->stack, &self.mainStack);  // does not return
    const int next = self.readyThreads.front();
    self.readyThreads.pop_front();
    self.switchTo(next);
  }

  void run(dim3 at) {
    index = at;
    reset();
    block = this;
    current = &fibers[static_cast<size_t>(popReadyThread())];
    switchStacks(&mainStack, &current->stack);
    if (error) std::rethrow_exception(error);
    const char* pendingReport = asyncUnit ? asyncUnit->describePending() : "";
    if (*pendingReport) throw KernelError(pendingReport);
  }

  void reset() {
    const auto threads = static_cast<int>(shape.x * shape.y * shape.z);
    fibers.resize(static_cast<size_t>(threads));
    warps.assign(static_cast<size_t>(threads / 32), {});
    barriers = {};
    readyThreads.clear();
    error = nullptr;
    liveThreadCount = threads;
    asyncUnit.reset();
    randomState = config.seed * 2654435761u + index.x * 97 + index.y * 89 + index.z * 83 + 1;
    std::fill(sharedMemory.begin(), sharedMemory.end(), char(0xff));  // NaN in every floating-point type
    std::fill(shadow.begin(), shadow.end(), Shadow{});
    for (int warp = 0; warp < threads / 32; warp++) {
      warps[warp].clocks.fill(0);
      warps[warp].clocks[warp] = 1;
    }
    for (int thread = 0; thread < threads; thread++) start(thread);
    if (config.seed)
      std::rotate(readyThreads.begin(), readyThreads.begin() + 32 * (random() % (threads / 32)), readyThreads.end());
  }

  void start(int thread) {
    Fiber& fiber = fibers[thread];
    if (!fiber.memory) fiber.memory.reset(new char[kStackBytes]);
    fiber.thread = thread;
    fiber.warp = thread / 32;
    fiber.lane = thread % 32;
    fiber.state = "ready";
    fiber.uncommittedCopies.clear();
    fiber.groups.clear();
    fiber.unfencedRange = {};
    const auto linearIndex = static_cast<unsigned>(thread);
    fiber.index = dim3(linearIndex % shape.x, linearIndex / shape.x % shape.y, linearIndex / (shape.x * shape.y));
    makeStack(&fiber.stack, fiber.memory.get(), kStackBytes, &entry);
    readyThreads.push_back(thread);
  }

  // ── shared memory

  char* at(uint32_t address, uint32_t bytes, uint32_t alignment) {
    const bool isInside = address >= kSharedBase && address + bytes <= kSharedBase + sharedMemory.size();
    if (address % alignment || !isInside) failAddress(address, bytes, alignment);
    return sharedMemory.data() + (address - kSharedBase);
  }

  void onRead(uint32_t address, uint32_t bytes, uint32_t actor) {
    sharedBytes += bytes;
    if (!config.detectsRaces) return;
    const auto warp = static_cast<uint32_t>(current->warp);
    const Clocks& clocks = warps[warp].clocks;
    const uint32_t record = actor << kClockBits | clocks[warp];
    const uint32_t first = (address - kSharedBase) / 4, end = (address - kSharedBase + bytes + 3) / 4;
    Shadow* const words = shadow.data();
    for (uint32_t word = first; word < end; word++) {
      Shadow& shadowWord = words[word];
      if (shadowWord.pending & kCopyPending || !shadowWord.writer ||
          !isOrderedBefore(shadowWord.writer, actor, warp, clocks))
        failRead(word);
      if (warpOfRecord(shadowWord.read0) != warp) shadowWord.read1 = shadowWord.read0;  // keep the other warp's record
      shadowWord.read0 = record;
    }
  }

  void onWrite(uint32_t address, uint32_t bytes, uint32_t actor, bool isInFlight = false) {
    sharedBytes += bytes;
    if (!config.detectsRaces) return;
    const auto warp = static_cast<uint32_t>(current->warp);
    const Clocks& clocks = warps[warp].clocks;
    const Shadow newShadow{actor << kClockBits | clocks[warp], 0, 0, isInFlight ? kCopyPending : kNotFenced};
    const uint32_t first = (address - kSharedBase) / 4, end = (address - kSharedBase + bytes + 3) / 4;
    Shadow* const words = shadow.data();
    for (uint32_t word = first; word < end; word++) {
      Shadow& shadowWord = words[word];
      if (shadowWord.writer && !isOrderedBefore(shadowWord.writer, actor, warp, clocks))
        failWrite(word, "overwrites data written by", shadowWord.writer);
      for (const uint32_t read : {shadowWord.read0, shadowWord.read1}) {
        // Reads of the whole warp precede later writes of its lanes.
        if (!read || read >> kClockBits == kWarpActor + warp || isOrderedBefore(read, actor, warp, clocks)) continue;
        failWrite(word, "overwrites data still being read by", read);
      }
      shadowWord = newShadow;
    }
    if (!isInFlight) current->unfencedRange.include(first, end);
  }

  /// fence.proxy.async: makes the current thread's stores visible to the asynchronous proxy.
  void fenceAsyncProxy() {
    auto& [first, end] = current->unfencedRange;
    for (uint32_t word = first; word < end; word++) {
      Shadow& shadowWord = shadow[word];
      if (shadowWord.writer >> kClockBits == static_cast<uint32_t>(current->thread)) shadowWord.pending &= ~kNotFenced;
    }
    current->unfencedRange = {};
  }

 private:
  /// Whether the access in `record` happened before the current access of `actor`, which is in `warp` with these
  /// `clocks`.
  static bool isOrderedBefore(uint32_t record, uint32_t actor, uint32_t warp, const Clocks& clocks) {
    const uint32_t clock = record & kClockMask, otherWarp = warpOfRecord(record);
    if (otherWarp != warp) return clocks[otherWarp] >= clock;
    return record >> kClockBits == actor || clock < clocks[warp];
  }

  // Out of line, to keep the frequent accesses small.

  [[noreturn, gnu::noinline]] void failAddress(uint32_t address, uint32_t bytes, uint32_t alignment) {
    if (address % alignment) fail("misaligned shared address");
    fail("shared address out of bounds: " + std::to_string(bytes) + " bytes at offset " +
         std::to_string(int64_t{address} - kSharedBase) + " of " + std::to_string(sharedMemory.size()) + " bytes");
  }

  [[noreturn, gnu::noinline]] void failRead(uint32_t word) {
    const std::string place = " at shared-memory offset " + std::to_string(word * 4);
    const Shadow& shadowWord = shadow[word];
    if (shadowWord.pending & kCopyPending) fail("read of shared memory with a copy in flight" + place);
    if (!shadowWord.writer) fail("read of uninitialized shared memory" + place);
    fail("data race: read" + place + " of data written by " + actorName(shadowWord.writer));
  }

  [[noreturn, gnu::noinline]] void failWrite(uint32_t word, const char* relation, uint32_t record) {
    fail("data race: write at shared-memory offset " + std::to_string(word * 4) + " " + relation + " " +
         actorName(record));
  }
};

}  // namespace emulated

#define threadIdx (emulated::current->index)
#define blockIdx (emulated::block->index)
#define blockDim (emulated::block->shape)
#define gridDim (emulated::block->grid)
