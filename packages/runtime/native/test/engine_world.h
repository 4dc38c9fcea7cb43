// Worlds of one process for tests of the engine without Node, over any transport, and checks that count failures.
//
// A test provides the type of its device with `Compute compute()`, `std::optional<MosaicFailure> synchronize()`, and a
// static `const MosaicTransport* openTransport()`.
#pragma once

#include <collectives/engine.h>
#include <control/in_process.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <thread>

namespace mosaic::test {

inline std::atomic<int> failures{0};

inline void check(bool condition, const std::string& what) {
  if (condition) return;
  failures++;
  std::printf("FAILED: %s\n", what.c_str());
}

inline bool contains(const std::optional<MosaicFailure>& failure, const char* text) {
  if (failure && std::strstr(failure->message, text)) return true;
  std::printf("message: %s\n", failure ? failure->message : "none");
  return false;
}

/// Prints the result and returns the exit code of a test.
inline int result() {
  std::printf(failures ? "%d checks failed\n" : "all good\n", failures.load());
  return failures != 0;
}

inline EngineOptions optionsOf(uint32_t rank, uint32_t size, int64_t timeoutNs) {
  EngineOptions options;
  options.rank = rank;
  options.size = size;
  options.timeoutNs = options.connectTimeoutNs = timeoutNs;
  return options;
}

/// One rank, whose connecting may fail.
template <typename Device>
struct Rank {
  std::unique_ptr<Device> device = std::make_unique<Device>();
  std::optional<MosaicFailure> failure;  // failure of connecting; valid once `isFinished`
  std::atomic<bool> isFinished{false};
  std::shared_ptr<Engine> engine;

  void open(const std::shared_ptr<InProcessWorld>& world, uint32_t rank, uint32_t size, int64_t timeoutNs) {
    engine = Engine::open(TransportPtr(Device::openTransport()), device->compute(),
                          std::make_unique<InProcessControl>(world, rank), optionsOf(rank, size, timeoutNs),
                          [this](const MosaicFailure* thrown) {
                            if (thrown) failure = *thrown;
                            isFinished = true;
                          });
  }
  void awaitOpen() const {
    while (!isFinished) std::this_thread::yield();
  }
  uint64_t post(const CollectiveCall& call, uint32_t group = 0) { return engine->post(group, call, "test"); }
  void postAndWait(const CollectiveCall& call, uint32_t group = 0) { engine->wait(post(call, group)); }
  /// Closes the rank. Returns the failure that closing reported, if any.
  std::optional<MosaicFailure> close() {
    std::optional<MosaicFailure> found;
    std::atomic<bool> isClosed{false};
    engine->close([&](const MosaicFailure* thrown) {
      if (thrown) found = *thrown;
      isClosed = true;
    });
    while (!isClosed) std::this_thread::yield();
    return found;
  }
};

template <typename Device>
struct World {
  /// `hosts`: host number of each rank, to simulate several hosts. Empty: all ranks are on one host.
  explicit World(uint32_t n, int64_t timeoutNs = 60'000'000'000, const std::vector<uint32_t>& hosts = {}) : ranks(n) {
    const auto world = std::make_shared<InProcessWorld>(n, timeoutNs, hosts);
    for (uint32_t r = 0; r < n; r++) ranks[r].open(world, r, n, timeoutNs);
    for (const Rank<Device>& rank : ranks) {
      rank.awaitOpen();
      check(!rank.failure, rank.failure ? rank.failure->message : "");
    }
  }
  std::optional<MosaicFailure> synchronize() {
    std::optional<MosaicFailure> first;
    for (Rank<Device>& rank : ranks) {
      if (auto failure = rank.device->synchronize(); failure && !first) first = failure;
    }
    return first;
  }
  /// Runs each rank's part on a separate thread.
  void onThreads(const std::function<void(uint32_t, Rank<Device>&)>& part) {
    std::vector<std::thread> threads;
    for (uint32_t r = 0; r < ranks.size(); r++) threads.emplace_back([&, r] { part(r, ranks[r]); });
    for (std::thread& thread : threads) thread.join();
  }
  std::vector<Rank<Device>> ranks;
};

// ── operands and calls

using Floats = std::vector<float>;
inline uint8_t* bytes(Floats& x) { return reinterpret_cast<uint8_t*>(x.data()); }

inline float value(uint32_t rank, uint64_t i) {
  return static_cast<float>(rank + 1) + 0.25f * static_cast<float>(i % 97);
}

inline Floats valuesOf(uint32_t rank, uint64_t count) {
  Floats x(count);
  for (uint64_t i = 0; i < count; i++) x[i] = value(rank, i);
  return x;
}

/// Returns a collective of `count` float32 elements.
inline CollectiveCall collective(OpKind op, uint64_t count) {
  CollectiveCall call;
  call.op = op;
  call.dtype = static_cast<uint8_t>(DType::Float32);
  call.shape = {count};
  return call;
}

inline CollectiveCall allReduce(Floats& x) {
  CollectiveCall call = collective(OpKind::AllReduce, x.size());
  call.out = bytes(x);
  return call;
}

inline CollectiveCall barrier() {
  CollectiveCall call;
  call.op = OpKind::Barrier;
  return call;
}

inline CollectiveCall message(bool isSend, uint32_t peer, Floats& x) {
  CollectiveCall call;
  call.op = OpKind::SendRecv;
  call.transfers = {{isSend, peer, bytes(x), static_cast<uint8_t>(DType::Float32), {x.size()}}};
  return call;
}

// ── tests for every ordering

template <typename Device>
void testMismatch() {
  World<Device> world(3);
  std::vector<Floats> xs(3);
  for (uint32_t r = 0; r < 3; r++) {
    xs[r].resize(r == 2 ? 19'999 : 20'000);
    world.ranks[r].postAndWait(allReduce(xs[r]));
  }
  const auto failure = world.synchronize();
  check(failure && failure->code == MOSAIC_FAILURE_MISMATCH, "shapes differ: mismatch");
  check(contains(failure, "rank 2 at allReduce #1 (world) sum float32 [19999]"), "names rank 2");
}

/// Ranks record calls between collectives, each on its own thread. They agree, or one rank differs and closes last.
template <typename Device>
void testRecordedCalls(bool differ) {
  World<Device> world(3);
  std::vector<Floats> xs(3, Floats(100, 1));
  world.onThreads([&](uint32_t r, Rank<Device>& rank) {
    for (int i = 0; i < 50; i++) {
      rank.engine->record(0, "attention #" + std::to_string(i));
      rank.postAndWait(allReduce(xs[r]));
    }
    rank.engine->record(0, differ && r == 2 ? "attention of causal" : "attention of full");
  });
  check(!world.synchronize(), "calls that were recorded alike do not fail");
  for (uint32_t r = 0; r < 2; r++) check(!world.ranks[r].close(), "a rank that closes first does not fail");
  const auto failure = world.ranks[2].close();
  check(failure.has_value() == differ, "a rank that differs fails to close");
  if (!differ) return;
  check(failure && failure->code == MOSAIC_FAILURE_MISMATCH, "recorded calls differ: mismatch");
  check(contains(failure, "rank 1 is at call #51 (world): attention of full, rank 2 at call #51 (world): attention of "
                          "causal; all ranks"),
        "names both");
}

template <typename Device>
void testTimeout(int64_t timeoutNs) {
  World<Device> world(3, timeoutNs);
  for (uint32_t r = 0; r < 2; r++) world.ranks[r].postAndWait(barrier());
  const auto failure = world.synchronize();
  check(failure && failure->code == MOSAIC_FAILURE_TIMEOUT, "late rank: timeout");
  check(contains(failure, "rank 2 is in no collective, last collective: none"), "gives positions");
}

template <typename Device>
void testExit() {
  World<Device> world(2);
  Floats a = valuesOf(0, 5000), b(5000, -1);
  world.ranks[0].post(message(true, 1, a));
  world.ranks[0].close();
  world.ranks[1].postAndWait(message(false, 0, b));
  check(!world.ranks[1].device->synchronize() && a == b, "what was sent before the exit arrives");
  world.ranks[1].postAndWait(message(false, 0, b));
  const auto failure = world.ranks[1].device->synchronize();
  check(failure && failure->code == MOSAIC_FAILURE_PEER_LOST, "after that it is lost");
  const char* const cause = "rank 0 exited after sendRecv #1 (world); rank 1 needed it in sendRecv #2 (world)";
  check(contains(failure, cause), "names the rank that exited");
}

template <typename Device>
void testAbort() {
  World<Device> world(2);
  world.ranks[0].postAndWait(barrier());
  world.ranks[0].engine->abort();
  const auto failure = world.ranks[0].device->synchronize();
  check(failure && failure->code == MOSAIC_FAILURE_CLOSED, "aborted");
}

/// Ranks post from separate threads while others open groups.
template <typename Device>
void testSplits(uint32_t n) {
  World<Device> world(n);
  world.onThreads([&](uint32_t r, Rank<Device>& rank) {
    Floats x(100, static_cast<float>(r));
    rank.postAndWait(allReduce(x));
    std::atomic<bool> over{false};
    const uint64_t number = rank.engine->split(0, r % 2, "part", [&](const MosaicFailure* failure) {
      check(!failure, "split does not fail");
      over = true;
    });
    while (!over) std::this_thread::yield();
    const uint32_t part = rank.engine->splitGroupNumber(number), size = (n + 1 - r % 2) / 2;
    check(rank.engine->getGroup(part)->size() == size, "the part has the ranks of one color");
    Floats ones(3000, 1);
    rank.postAndWait(allReduce(ones), part);
    check(!rank.device->synchronize(), "a part does not fail");
    check(ones[2999] == static_cast<float>(size), "a sum over the part");
  });
}

}  // namespace mosaic::test
