// Tests the engine over the emulated NCCL without Node: collectives over threads, and faults, also under
// ThreadSanitizer. See CMakeLists.txt, targets nccl-test and nccl-tsan. The argument is the library of the emulated
// NCCL; MOSAIC_CUDA_LIBRARY names that of the device.
#include <test/engine_world.h>

#include "device.h"
#include "nccl/transport.h"

namespace mosaic::test {

/// A device with a port.
struct Gpu : Device {
  ComputeStream compute() { return {nullptr, this, &stream}; }
  static const MosaicTransport* openTransport() { return nccl::openTransport({}, true); }
};

using GpuWorld = World<Gpu>;

/// Many small and large operations in flight, with a trace, while the host thread reads the traffic counters.
void testOperations(uint32_t n) {
  GpuWorld world(n);
  std::vector<std::vector<Floats>> xs(n);
  world.onThreads([&](uint32_t r, Rank<Gpu>& rank) {
    rank.engine->startTrace();
    for (uint64_t count : {1ull, 7ull, 2048ull, 2049ull, 20'003ull}) {
      xs[r].emplace_back(count);
      for (uint64_t i = 0; i < count; i++) xs[r].back()[i] = value(r, i);
    }
    for (Floats& x : xs[r]) rank.postAndWait(allReduce(x));
    for (int i = 0; i < 40; i++) rank.post(barrier());
    rank.engine->getPayload(0);
    std::atomic<bool> isTraced{false};
    rank.engine->stopTrace([&](std::vector<TraceRecord> records) {
      check(records.size() == 45, "each operation is traced");
      isTraced = true;
    });
    while (!isTraced) rank.engine->getPayload(0);
    check(rank.engine->completedNumber() == 45, "all are over");
  });
  check(!world.synchronize(), "operations do not fail");
  for (const auto& ofRank : xs) {
    for (const Floats& x : ofRank) {
      for (uint64_t i = 0; i < x.size(); i++) {
        float sum = 0;
        for (uint32_t s = 0; s < n; s++) sum += value(s, i);
        if (x[i] != sum) return check(false, "allReduce of " + std::to_string(x.size()));
      }
    }
  }
  world.onThreads([&](uint32_t, Rank<Gpu>& rank) { check(!rank.close(), "closing does not fail"); });
}

/// A failure occurs while host threads post and wait.
void testFailureWhilePosting(uint32_t n) {
  // Declared before the world, because a failed device may use its memory until its rank has closed.
  std::vector<std::vector<Floats>> xs(n, std::vector<Floats>(200, Floats(100, 1)));
  GpuWorld world(n);
  world.onThreads([&](uint32_t r, Rank<Gpu>& rank) {
    size_t waited = 0;
    try {
      for (; waited < xs[r].size(); waited++) {
        rank.postAndWait(allReduce(xs[r][waited]));
        if (r == 1 && waited == 50) rank.engine->abort();
      }
    } catch (const Failure&) {
    }
    const bool isFailed = rank.device->synchronize().has_value();
    check(isFailed || waited < xs[r].size() || r != 1, "an aborted rank fails");
    if (isFailed) return;
    for (size_t i = 0; i < waited; i++) {
      check(xs[r][i][99] == static_cast<float>(n), "no rank reads what has not arrived");
    }
  });
}

}  // namespace mosaic::test

int main(int count, char** arguments) {
  using namespace mosaic::test;
  if (count != 2) return std::puts("usage: nccl-test libnccl_emulated.so"), 2;
  mosaic::nccl::load({arguments[1]});
  for (uint32_t n : {1u, 2u, 3u, 5u}) testOperations(n);
  for (uint32_t n : {1u, 2u, 5u}) testSplits<Gpu>(n);
  testMismatch<Gpu>();
  testTimeout<Gpu>(2'000'000'000);
  testExit<Gpu>();
  testAbort<Gpu>();
  for (const bool differ : {false, true}) testRecordedCalls<Gpu>(differ);
  for (int i = 0; i < 5; i++) testFailureWhilePosting(3);
  return result();
}
