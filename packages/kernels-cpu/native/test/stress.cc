// Pool, stream, allocator and device under real concurrency, for ThreadSanitizer: an ordering error appears as a data
// race on plain memory. No kernels, no Node. See CMakeLists.txt, target kernels-stress; `npm run check:native` runs it.
//
//   kernels-stress [seconds per part]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>

#include "device/device.h"
#include "mosaic/clock.h"

namespace mosaic {

// The device of this program has kernels that are never called.
#define MOSAIC_NO_KERNELS(name) \
  extern const Kernels name;    \
  const Kernels name{};
MOSAIC_NO_KERNELS(kKernelsScalar)
#if defined(__x86_64__)
MOSAIC_NO_KERNELS(kKernelsAvx2)
MOSAIC_NO_KERNELS(kKernelsAvx512)
// The device's tables refer to the products of every instruction set.
void attend(const AttendArguments&, Isa, Pool&) {}
void attendBackward(const AttendBackwardArguments&, Isa, Pool&) {}
void matmul(const MatmulArguments&, Isa, Pool&) {}
void linear(const LinearArguments&, Isa, Pool&) {}
#elif defined(__aarch64__)
MOSAIC_NO_KERNELS(kKernelsNeon)
MOSAIC_NO_KERNELS(kKernelsNeonBf16)
#endif

namespace {

std::atomic<int> failures{0};
int64_t partNs = 2'000'000'000;

void check(bool ok, const char* what) {
  if (ok) return;
  failures++;
  std::printf("FAILED: %s\n", what);
}

/// Calls `round(number)` repeatedly for the duration of a part, and prints how often.
template <class Round>
void forPart(const char* name, Round round) {
  const int64_t end = monotonicNs() + partNs;
  int rounds = 0;
  do round(rounds++);
  while (monotonicNs() < end);
  std::printf("%-22s %d rounds\n", name, rounds);
}

template <class Body>
void onThreads(int count, Body body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; i++) threads.emplace_back([&body, i] { body(i); });
  for (std::thread& thread : threads) thread.join();
}

// ── the pool

/// Runs loops of every length. Tasks write plain memory, including their worker's arena, and the caller reads it.
void useLoops(Pool& pool, std::mt19937& random, int loops) {
  std::vector<int64_t> values(300);
  for (int loop = 0; loop < loops; loop++) {
    const auto tasks = static_cast<int64_t>(random() % values.size());
    pool.parallelFor(tasks, [&](int64_t task, int worker) {
      Arena& arena = pool.arena(worker);
      arena.reset();
      auto* scratch = arena.allocate<int64_t>(100);
      for (int i = 0; i < 100; i++) scratch[i] = task + loop;
      values[static_cast<size_t>(task)] = scratch[task % 100];
    });
    bool right = true;
    for (int64_t task = 0; task < tasks; task++) right &= values[static_cast<size_t>(task)] == task + loop;
    check(right, "the caller reads what tasks wrote");
    // Longer than the workers' spin time, so that they park.
    if (random() % 64 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

void failInLoop(Pool& pool) {
  std::string caught;
  try {
    pool.parallelFor(50, [](int64_t task, int) {
      if (task % 7 == 3) throw std::runtime_error("three");
    });
  } catch (const std::runtime_error& error) {
    caught = error.what();
  }
  check(caught == "three", "an exception propagates to the caller");
}

void stressPool() {
  forPart("pool", [](int round) {
    onThreads(2, [round](int thread) {
      std::mt19937 random(static_cast<uint32_t>(2 * round + thread));
      std::atomic<size_t> scratch{0};
      {
        Pool pool(1 + round % 5, &scratch);
        useLoops(pool, random, 100);
        failInLoop(pool);
        useLoops(pool, random, 20);
      }
      check(scratch == 0, "a pool gives back what its arenas held");
    });
  });
}

// ── the stream

/// Memory that a producer's works write on the stream's thread, and that the producer reads after waiting for them.
struct Slot {
  int64_t written = 0;
};

/// Counts works that ran, and works that were dropped, on any thread.
struct Counts {
  std::atomic<int> ran{0}, dropped{0};
};

struct CountedWork {
  Counts& counts;
  Slot& slot;
  int64_t value;
};

MosaicWork countedWork(Counts& counts, Slot& slot, int64_t value, bool fails) {
  const auto run = [](void* arg, const MosaicFailure* upstream, MosaicFailure*) -> int {
    auto& work = *static_cast<CountedWork*>(arg);
    work.counts.ran++;
    // On a closed stream the work may run on another thread, but then it has an upstream failure.
    if (!upstream) work.slot.written = work.value;
    return 0;
  };
  const auto fail = [](void* arg, const MosaicFailure* upstream, MosaicFailure* failure) -> int {
    static_cast<CountedWork*>(arg)->counts.ran++;
    if (!upstream) *failure = failureRecord(MOSAIC_FAILURE_DEVICE, "stress");
    return 1;
  };
  const auto drop = [](void* arg) {
    auto* work = static_cast<CountedWork*>(arg);
    work->counts.dropped++;
    delete work;
  };
  return {"work", fails ? +fail : +run, drop, new CountedWork{counts, slot, value}};
}

/// Several threads submit and wait, and one makes the stream fail. Meanwhile the stream is closed, or its pending work
/// is failed.
void useStream(uint32_t seed) {
  constexpr int kProducers = 3, kWorks = 200;
  Stream stream;
  Counts counts;
  std::thread runner([&] { stream.run(); });
  std::atomic<int> appended{0};
  std::atomic<bool> isClosing{false};
  onThreads(kProducers + 1, [&](int producer) {
    std::mt19937 random(seed * 7 + static_cast<uint32_t>(producer));
    if (producer == kProducers) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
      isClosing = true;
      if (seed % 3 == 0) stream.close();
      if (seed % 3 == 1) stream.closeAndFailPending();
      return;
    }
    Slot slot;
    for (int64_t i = 1; i <= kWorks; i++) {
      stream.append(countedWork(counts, slot, i, seed % 4 == 3 && producer == 0 && i == kWorks / 2));
      appended++;
      if (random() % 8 == 0) {
        stream.waitFor(stream.position());
        const bool isLost = isClosing || stream.failure();
        check(slot.written == i || isLost, "a thread that awaited a work reads what it wrote");
      }
      if (random() % 32 == 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    stream.waitFor(stream.position());
  });
  stream.close();
  runner.join();
  check(counts.ran == appended && counts.dropped == appended, "every work runs once and is dropped once");
}

void stressStream() {
  forPart("stream", [](int round) { useStream(static_cast<uint32_t>(round)); });
}

// ── devices

/// Writes to a block on the stream's pool, and checks that no other owner wrote to it in the meantime.
void enqueueUse(Device& device, Block* block, size_t bytes, uint8_t tag) {
  enqueue(device.stream, "use", [&device, data = reinterpret_cast<uint8_t*>(block->data), bytes, tag] {
    constexpr int64_t kPieces = 8;
    device.pool().parallelFor(kPieces, [&](int64_t piece, int) {
      for (size_t i = static_cast<size_t>(piece) * 64; i < bytes; i += kPieces * 64) data[i] = tag;
    });
    bool own = true;
    for (size_t i = 0; i < bytes; i += 4096) own &= data[i] == tag;
    check(own, "a block is one owner's, in the order of the stream");
  });
}

/// Frees blocks while works that use them are queued, and reuses them. Memory is returned to the system in stream
/// order.
void useMemory(Device& device, std::mt19937& random, int steps) {
  std::vector<std::pair<Block*, size_t>> held;
  for (int step = 0; step < steps; step++) {
    Release release;
    const size_t bytes = 1 + random() % (random() % 8 == 0 ? size_t{3} << 20 : size_t{1} << 15);
    Block* block = device.memory().allocate(bytes, release);
    device.releaseInOrder(std::move(release));
    if (block) {
      enqueueUse(device, block, bytes, static_cast<uint8_t>(step));
      held.push_back({block, bytes});
    }
    while (held.size() > 6 || (!held.empty() && random() % 3 == 0)) {
      std::swap(held[random() % held.size()], held.back());
      enqueueUse(device, held.back().first, held.back().second, static_cast<uint8_t>(step + 1));
      device.memory().free(held.back().first);
      held.pop_back();
    }
    if (random() % 16 == 0) {
      Release trimmed;
      device.memory().trim(trimmed);
      device.releaseInOrder(std::move(trimmed));
    }
    if (random() % 8 == 0) device.scratchBytes();
  }
  for (const auto& [block, bytes] : held) device.memory().free(block);
}

/// Each device writes what the other reads, ordered only by fences.
void exchange(const std::shared_ptr<Device>& one, const std::shared_ptr<Device>& two, int turns) {
  auto shared = std::make_shared<std::vector<int>>(1000, 0);
  const auto await = [](Device& device, const std::shared_ptr<Device>& other) {
    enqueue(device.stream, "wait", [other, position = other->stream.position()] {
      if (const MosaicFailure* failure = other->stream.waitFor(position)) throw Failure(*failure);
    });
  };
  for (int turn = 0; turn < turns; turn++) {
    const auto& device = turn % 2 == 0 ? one : two;
    enqueue(device->stream, "turn", [shared, turn] {
      bool inOrder = true;
      for (int& value : *shared) inOrder &= value++ == turn;
      check(inOrder, "works run in the order of fences");
    });
    await(turn % 2 == 0 ? *two : *one, device);
  }
}

void useDevices(int round, int thread) {
  std::mt19937 random(static_cast<uint32_t>(3 * round + thread));
  const DeviceOptions options{1 + round % 3, round % 2 == 0 ? 0 : size_t{64} << 20, Isa::Scalar};
  const auto one = Device::open(options), two = Device::open(options);
  useMemory(*one, random, 40);
  exchange(one, two, 20);
  useMemory(*two, random, 40);
  if (round % 4 == 3) {
    two->stream.closeAndFailPending();
  } else {
    two->close();
  }
  one->close();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  // In every other round, the devices' own threads hold the last references to them.
  if (round % 2 == 0) check(one->waitForExit(deadline) && two->waitForExit(deadline), "devices end");
}

void stressDevices() {
  forPart("device and allocator", [](int round) {
    onThreads(2, [round](int thread) { useDevices(round, thread); });
  });
}

}  // namespace
}  // namespace mosaic

int main(int argc, char** argv) {
  using namespace mosaic;
  if (argc > 1) partNs = static_cast<int64_t>(std::atof(argv[1]) * 1e9);
  stressPool();
  stressStream();
  stressDevices();
  std::printf(failures ? "%d checks failed\n" : "all good\n", failures.load());
  return failures != 0;
}
