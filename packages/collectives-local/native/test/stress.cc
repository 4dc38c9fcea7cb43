// The engine over shared memory under real concurrency, for ThreadSanitizer: each rank runs on its own thread, with
// random collectives, traces, and ranks that abort in the middle. See CMakeLists.txt, target collectives-stress;
// `npm run check:native` runs it.
//
//   collectives-stress [seconds]
#include <test/engine_world.h>

#include <cstdlib>
#include <random>

#include "polling_transport.h"
#include "shared_memory/transport.h"
#include "stream.h"

namespace mosaic::test {
namespace {

struct Cpu : Stream {
  ComputeStream compute() { return {this, nullptr, nullptr}; }
  static inline bool polls = false;
  static const MosaicTransport* openTransport() { return polls ? openPolling() : openSharedMemory(); }
};

/// The collectives of one rank; every rank draws the same ones. Their memory is kept, because operations may still be
/// in progress when the rank stops.
class Calls {
 public:
  Calls(Rank<Cpu>& rank, uint32_t index, uint32_t size, uint32_t seed)
      : rank_(rank), index_(index), size_(size), random_(seed) {}

  /// Throws Failure once the engine has failed.
  void next() {
    const uint64_t count = random_() % 4 == 0 ? random_() % 60'000 : random_() % 50;
    switch (random_() % 5) {
      case 0: return sum(count);
      case 1: return gather(count);
      case 2: return shift(count);
      case 3: return broadcast(count, random_() % size_);
      default: return rank_.postAndWait(barrier());
    }
  }
  /// Whether all results are right. Reads memory that work on the stream has written, so that work must be done.
  bool areRight() const {
    for (const auto& [values, expected] : results_) {
      for (const float value : *values) {
        if (value != expected) return false;
      }
    }
    return true;
  }

 private:
  std::shared_ptr<Floats> keep(uint64_t count, float value) {
    return kept_.emplace_back(std::make_shared<Floats>(count, value));
  }
  void sum(uint64_t count) {
    const auto x = keep(count, static_cast<float>(index_ + 1));
    results_.push_back({x, static_cast<float>(size_ * (size_ + 1) / 2)});
    // The stream writes the operand, like a kernel, before the collective reads it.
    rank_.device->run([x] { for (float& value : *x) value += 0; });
    rank_.postAndWait(allReduce(*x));
  }
  void gather(uint64_t count) {
    const auto in = keep(count, 3), out = keep(count * size_, -1);
    results_.push_back({out, 3});
    CollectiveCall call = collective(OpKind::AllGather, count);
    call.in = bytes(*in);
    call.out = bytes(*out);
    call.sendCounts.assign(size_, count);
    rank_.postAndWait(call);
  }
  void broadcast(uint64_t count, uint32_t root) {
    const auto x = keep(count, index_ == root ? 5 : -1);
    results_.push_back({x, 5});
    CollectiveCall call = collective(OpKind::Broadcast, count);
    call.out = bytes(*x);
    call.root = root;
    rank_.postAndWait(call);
  }
  /// A ring step: sends to the next rank and receives from the previous one.
  void shift(uint64_t count) {
    const uint32_t before = (index_ + size_ - 1) % size_;
    const auto out = keep(count, static_cast<float>(index_)), in = keep(count, -1);
    results_.push_back({in, static_cast<float>(before)});
    CollectiveCall call = message(true, (index_ + 1) % size_, *out);
    call.transfers.push_back({false, before, bytes(*in), static_cast<uint8_t>(DType::Float32), {count}});
    rank_.postAndWait(call);
  }

  Rank<Cpu>& rank_;
  const uint32_t index_, size_;
  std::mt19937 random_;
  std::vector<std::shared_ptr<Floats>> kept_;
  std::vector<std::pair<std::shared_ptr<Floats>, float>> results_;
};

/// Runs 60 collectives in a world. In three of four worlds a rank aborts in the middle. Ranks that
/// sleep in `poll` are on up to three simulated hosts.
void useWorld(uint32_t seed) {
  const uint32_t size = 2 + seed % 4, aborts = seed % 4 == 0 ? size : seed % size;
  std::vector<std::unique_ptr<Calls>> calls(size);
  std::vector<uint32_t> hosts(Cpu::polls ? size : 0);
  std::mt19937 random(seed);
  for (uint32_t& host : hosts) host = random() % 3;
  World<Cpu> world(size, 60'000'000'000, hosts);
  world.onThreads([&](uint32_t index, Rank<Cpu>& rank) {
    calls[index] = std::make_unique<Calls>(rank, index, size, seed);
    std::mt19937 own(seed * 31 + index);
    const uint32_t abortAt = own() % 60;
    std::atomic<int> traces{0};
    int wanted = 0;
    try {
      for (uint32_t i = 0; i < 60; i++) {
        if (index == aborts && i == abortAt) rank.engine->abort();
        calls[index]->next();
        if (own() % 8 == 0) rank.engine->startTrace();
        if (own() % 8 == 0) {
          wanted++;
          rank.engine->stopTrace([&](std::vector<TraceRecord>) { traces++; });
        }
        if (own() % 8 == 0) rank.engine->getPayload(0);
        if (own() % 16 == 0) rank.device->synchronize();
      }
    } catch (const Failure&) {
      check(aborts < size, "a world of which no rank aborts does not fail");
    }
    const auto failure = rank.device->synchronize();
    check(!failure || aborts < size, failure ? failure->message : "");
    if (!failure && aborts == size) check(calls[index]->areRight(), "collectives have the right results");
    // Waits, because callbacks refer to this stack frame.
    rank.close();
    while (traces < wanted) std::this_thread::yield();
  });
  for (const Rank<Cpu>& rank : world.ranks) rank.engine->abort();
}

}  // namespace
}  // namespace mosaic::test

int main(int argc, char** argv) {
  using namespace mosaic::test;
  const int64_t end = mosaic::monotonicNs() + static_cast<int64_t>((argc > 1 ? std::atof(argv[1]) : 10) * 1e9);
  uint32_t worlds = 0;
  for (; mosaic::monotonicNs() < end; worlds++) {
    Cpu::polls = worlds % 2 == 1;
    useWorld(worlds);
  }
  std::printf("%u worlds\n", worlds);
  return result();
}
