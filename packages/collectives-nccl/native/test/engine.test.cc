// The engine over NCCL's stand-in without Node: collectives over threads, faults, and what ThreadSanitizer finds. See
// CMakeLists.txt, targets nccl-test and nccl-tsan. The library of the stand-in is the argument; MOSAIC_CUDA_LIBRARY
// names that of the device.
#include <collectives/engine.h>
#include <control/in_process.h>

#include <cmath>
#include <cstdio>
#include <cstring>

#include "device.h"
#include "nccl/transport.h"

namespace mosaic::test {

std::atomic<int> failures{0};

void check(bool condition, const std::string& what) {
  if (condition) return;
  failures++;
  std::printf("FAILED: %s\n", what.c_str());
}

bool contains(const std::optional<MosaicFailure>& failure, const char* text) {
  if (failure && std::strstr(failure->message, text)) return true;
  std::printf("message: %s\n", failure ? failure->message : "none");
  return false;
}

struct Rank {
  std::unique_ptr<Device> device = std::make_unique<Device>();
  std::shared_ptr<Engine> engine;

  uint64_t post(const Call& call, uint32_t group = 0) { return engine->post(group, call, "test"); }
  void postAndWait(const Call& call, uint32_t group = 0) { engine->wait(post(call, group)); }
};

struct World {
  explicit World(uint32_t n, int64_t timeoutNs = 60'000'000'000) : ranks(n) {
    const auto world = std::make_shared<InProcessWorld>(n, timeoutNs);
    std::atomic<uint32_t> connected{0};
    for (uint32_t r = 0; r < n; r++) {
      Compute compute;
      compute.port = ranks[r].device.get();
      compute.handle = &ranks[r].device->compute;
      auto control = std::make_unique<InProcessControl>(world, r);
      const EngineOptions options{r, n, timeoutNs, -1, timeoutNs};
      ranks[r].engine = Engine::open(*nccl::openTransport({}, true), compute, std::move(control), options,
                                     [&](const MosaicFailure* failure) {
                                       check(!failure, failure ? failure->message : "");
                                       connected++;
                                     });
    }
    while (connected < n) std::this_thread::yield();
  }
  std::optional<MosaicFailure> synchronize() {
    std::optional<MosaicFailure> first;
    for (Rank& rank : ranks) {
      if (auto failure = rank.device->synchronize(); failure && !first) first = failure;
    }
    return first;
  }
  void close(Rank& rank) {
    std::atomic<bool> closed{false};
    rank.engine->close([&] { closed = true; });
    while (!closed) std::this_thread::yield();
  }
  /// Each rank's part on a thread of its own.
  void onThreads(const std::function<void(uint32_t, Rank&)>& part) {
    std::vector<std::thread> threads;
    for (uint32_t r = 0; r < ranks.size(); r++) threads.emplace_back([&, r] { part(r, ranks[r]); });
    for (std::thread& thread : threads) thread.join();
  }
  std::vector<Rank> ranks;
};

using Floats = std::vector<float>;
uint8_t* bytes(Floats& x) { return reinterpret_cast<uint8_t*>(x.data()); }

float value(uint32_t rank, uint64_t i) { return static_cast<float>(rank + 1) + 0.25f * static_cast<float>(i % 97); }

Call allReduce(Floats& x) {
  Call call;
  call.op = OpKind::AllReduce;
  call.dtype = static_cast<uint8_t>(DType::Float32);
  call.shape = {x.size()};
  call.out = bytes(x);
  return call;
}

Call barrier() {
  Call call;
  call.op = OpKind::Barrier;
  return call;
}

Call message(bool isSend, uint32_t peer, Floats& x) {
  Call call;
  call.op = OpKind::SendRecv;
  call.transfers = {{isSend, peer, bytes(x), static_cast<uint8_t>(DType::Float32), {x.size()}}};
  return call;
}

/// Many operations in flight, small and large, while another thread reads what has moved; traced.
void testOperations(uint32_t n) {
  World world(n);
  std::vector<std::vector<Floats>> xs(n);
  world.onThreads([&](uint32_t r, Rank& rank) {
    rank.engine->startTrace();
    for (uint64_t count : {1ull, 7ull, 2048ull, 2049ull, 20'003ull}) {
      xs[r].emplace_back(count);
      for (uint64_t i = 0; i < count; i++) xs[r].back()[i] = value(r, i);
    }
    for (Floats& x : xs[r]) rank.postAndWait(allReduce(x));
    for (int i = 0; i < 40; i++) rank.post(barrier());
    rank.engine->payloadOf(0);
    std::atomic<bool> isTraced{false};
    rank.engine->stopTrace([&](std::vector<TraceRecord> records) {
      check(records.size() == 45, "each operation is traced");
      isTraced = true;
    });
    while (!isTraced) rank.engine->payloadOf(0);
    check(rank.engine->completed() == 45, "all are over");
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
  world.onThreads([&](uint32_t, Rank& rank) { world.close(rank); });
}

void testSplits(uint32_t n) {
  World world(n);
  world.onThreads([&](uint32_t r, Rank& rank) {
    Floats x(100, static_cast<float>(r));
    rank.postAndWait(allReduce(x));
    std::atomic<bool> over{false};
    const uint64_t number = rank.engine->split(0, r % 2, "part", [&](const MosaicFailure* failure) {
      check(!failure, "split does not fail");
      over = true;
    });
    while (!over) std::this_thread::yield();
    const uint32_t part = rank.engine->partOf(number);
    check(rank.engine->groupOf(part)->size() == (n + 1 - r % 2) / 2, "the part has the ranks of one color");
    Floats ones(3000, 1);
    rank.postAndWait(allReduce(ones), part);
    check(!rank.device->synchronize(), "a part does not fail");
    check(ones[2999] == static_cast<float>((n + 1 - r % 2) / 2), "a sum over the part");
  });
}

void testMismatch() {
  World world(3);
  std::vector<Floats> xs(3);
  for (uint32_t r = 0; r < 3; r++) {
    xs[r].resize(r == 2 ? 19'999 : 20'000);
    world.ranks[r].postAndWait(allReduce(xs[r]));
  }
  const auto failure = world.synchronize();
  check(failure && failure->code == MOSAIC_FAILURE_MISMATCH, "shapes differ: mismatch");
  check(contains(failure, "rank 2 at allReduce #1 (world) sum float32 [19999]"), "names rank 2");
}

void testTimeout() {
  World world(3, 2'000'000'000);
  for (uint32_t r = 0; r < 2; r++) world.ranks[r].postAndWait(barrier());
  const auto failure = world.synchronize();
  check(failure && failure->code == MOSAIC_FAILURE_TIMEOUT, "late rank: timeout");
  check(contains(failure, "rank 2 is in no collective, last collective: none"), "gives positions");
}

void testExit() {
  World world(2);
  Floats a(5000, 3), b(5000, NAN);
  world.ranks[0].post(message(true, 1, a));
  world.close(world.ranks[0]);
  world.ranks[1].postAndWait(message(false, 0, b));
  check(!world.ranks[1].device->synchronize() && a == b, "what was sent before the exit arrives");
  world.ranks[1].postAndWait(message(false, 0, b));
  const auto failure = world.ranks[1].device->synchronize();
  check(failure && failure->code == MOSAIC_FAILURE_PEER_LOST, "after that it is lost");
  const char* const cause = "rank 0 exited after sendRecv #1 (world); rank 1 needed it in sendRecv #2 (world)";
  check(contains(failure, cause), "names the rank that exited");
}

void testAbort() {
  World world(2);
  world.ranks[0].postAndWait(barrier());
  world.ranks[0].engine->abort();
  const auto failure = world.ranks[0].device->synchronize();
  check(failure && failure->code == MOSAIC_FAILURE_CLOSED, "aborted");
}

/// A failure meets hosts that post and wait.
void testFailureWhilePosting(uint32_t n) {
  // A device that has failed keeps its memory until its rank has closed.
  std::vector<std::vector<Floats>> xs(n, std::vector<Floats>(200, Floats(100, 1)));
  World world(n);
  world.onThreads([&](uint32_t r, Rank& rank) {
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
  if (count != 2) return std::puts("usage: nccl-test libnccl_standin.so"), 2;
  mosaic::nccl::load({arguments[1]});
  for (uint32_t n : {1u, 2u, 3u, 5u}) testOperations(n);
  for (uint32_t n : {1u, 2u, 5u}) testSplits(n);
  testMismatch();
  testTimeout();
  testExit();
  testAbort();
  for (int i = 0; i < 5; i++) testFailureWhilePosting(3);
  std::printf(failures ? "%d checks failed\n" : "all good\n", failures.load());
  return failures != 0;
}
