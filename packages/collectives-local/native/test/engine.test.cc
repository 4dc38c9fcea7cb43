// Tests the engine over shared memory without Node: collectives of every size over threads, and faults, also under
// ThreadSanitizer. See CMakeLists.txt, target collectives-test.
#include <test/engine_world.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "collectives/bootstrap.h"
#include "control/wire.h"
#include "mosaic/clock.h"
#include "host_schedules.h"
#include "polling_transport.h"
#include "shared_memory/transport.h"
#include "stream.h"

namespace mosaic::test {

/// A CPU device, which is only a stream.
struct Cpu : Stream {
  ComputeStream compute() { return {this, nullptr, nullptr}; }
  /// Whether ranks sleep in `poll`. Only then they may be on several simulated hosts.
  static inline bool polls = false;
  static const MosaicTransport* openTransport() { return polls ? openPolling() : openSharedMemory(); }
};

using CpuWorld = World<Cpu>;
constexpr int64_t kTimeoutNs = 20'000'000'000;

void testAllReduce(uint32_t n, uint64_t count) {
  CpuWorld world(n);
  std::vector<Floats> x(n);
  for (uint32_t r = 0; r < n; r++) {
    x[r] = valuesOf(r, count);
    world.ranks[r].postAndWait(allReduce(x[r]));
  }
  check(!world.synchronize(), "allReduce does not fail");
  for (uint32_t r = 0; r < n; r++) {
    for (uint64_t i = 0; i < count; i++) {
      float sum = 0;
      for (uint32_t s = 0; s < n; s++) sum += value(s, i);
      if (x[r][i] != sum) return check(false, "allReduce " + std::to_string(n) + " x " + std::to_string(count));
    }
  }
}

void testGatherScatter(uint32_t n, uint64_t share) {
  CpuWorld world(n);
  std::vector<Floats> in(n), all(n, Floats(n * share, NAN)), part(n, Floats(share, NAN));
  for (uint32_t r = 0; r < n; r++) {
    in[r] = valuesOf(r, share);
    CollectiveCall gather = collective(OpKind::AllGather, share);
    gather.in = bytes(in[r]);
    gather.out = bytes(all[r]);
    gather.sendCounts.assign(n, share);
    world.ranks[r].postAndWait(gather);
    CollectiveCall scatter = collective(OpKind::ReduceScatter, n * share);
    scatter.in = bytes(all[r]);
    scatter.out = bytes(part[r]);
    scatter.sendCounts.assign(n, share);
    scatter.reduce = ReduceOp::Mean;
    world.ranks[r].postAndWait(scatter);
  }
  check(!world.synchronize(), "allGather and reduceScatter do not fail");
  for (uint32_t r = 0; r < n; r++) check(std::memcmp(part[r].data(), in[r].data(), share * 4) == 0,
        "reduceScatter with mean of equal inputs returns them");
}

/// Gathers and broadcasts over simulated hosts, whose ranks forward for one another.
void testHosts(const std::vector<uint32_t>& hosts) {
  const auto n = static_cast<uint32_t>(hosts.size());
  CpuWorld world(n, kTimeoutNs, hosts);
  for (const uint64_t share : {0ull, 1ull, 777ull, 60'001ull}) {
    // Rank r holds a different number of elements than the others, rank 1 none.
    std::vector<uint64_t> counts;
    for (uint32_t r = 0; r < n; r++) counts.push_back(r == 1 ? 0 : share + r);
    const uint64_t total = std::accumulate(counts.begin(), counts.end(), uint64_t{0});
    Floats expected;
    for (uint32_t r = 0; r < n; r++) {
      const Floats values = valuesOf(r, counts[r]);
      expected.insert(expected.end(), values.begin(), values.end());
    }
    std::vector<Floats> in(n), all(n, Floats(total, NAN)), sums(n);
    for (uint32_t r = 0; r < n; r++) {
      in[r] = valuesOf(r, counts[r]);
      CollectiveCall gather = collective(OpKind::AllGather, counts[r]);
      gather.in = bytes(in[r]);
      gather.out = bytes(all[r]);
      gather.sendCounts = counts;
      gather.ragged = true;
      world.ranks[r].postAndWait(gather);
      sums[r] = valuesOf(r, total);
      world.ranks[r].postAndWait(allReduce(sums[r]));
    }
    std::vector<std::vector<Floats>> copies(n, std::vector<Floats>(n, Floats(total, NAN)));
    for (uint32_t root = 0; root < n; root++) {
      copies[root][root] = valuesOf(root, total);
      for (uint32_t r = 0; r < n; r++) {
        CollectiveCall broadcast = collective(OpKind::Broadcast, total);
        broadcast.out = bytes(copies[root][r]);
        broadcast.root = root;
        world.ranks[r].postAndWait(broadcast);
      }
    }
    check(!world.synchronize(), "collectives over hosts do not fail");
    for (uint32_t r = 0; r < n; r++) {
      check(all[r] == expected, "allGather over hosts returns the shares in rank order");
      check(sums[r] == sums[0], "allReduce over hosts gives all ranks the same sums");
      for (uint32_t root = 0; root < n; root++) {
        check(copies[root][r] == copies[root][root], "broadcast over hosts copies the root's tensor");
      }
    }
  }
}

/// A rank of another host than the root's, which only communicates with a forwarding rank, differs.
void testMismatchOverHosts() {
  const std::vector<uint32_t> hosts = {0, 0, 1, 1};
  CpuWorld world(4, kTimeoutNs, hosts);
  std::vector<Floats> xs(4);
  for (uint32_t r = 0; r < 4; r++) {
    xs[r].resize(r == 3 ? 99 : 100, -1);
    CollectiveCall broadcast = collective(OpKind::Broadcast, xs[r].size());
    broadcast.out = bytes(xs[r]);
    world.ranks[r].postAndWait(broadcast);
  }
  const auto failure = world.synchronize();
  check(failure && failure->code == MOSAIC_FAILURE_MISMATCH, "shapes differ between hosts: mismatch");
  check(contains(failure, "rank 3 at broadcast #1 (world) from rank 0 float32 [99]"), "names rank 3");
  check(xs[3] == Floats(99, -1), "no element of a mismatched broadcast is written");
}

/// Random batches between random pairs, with several messages per pair, in an order that is permuted across pairs.
void testBatches(uint32_t n, uint32_t seed) {
  CpuWorld world(n);
  std::mt19937 random(seed);
  struct Buffer {
    Floats sent, received;
  };
  std::vector<std::unique_ptr<Buffer>> buffers;
  for (int batch = 0; batch < 5; batch++) {
    std::vector<CollectiveCall> calls(n);
    for (CollectiveCall& call : calls) call.op = OpKind::SendRecv;
    const int messages = static_cast<int>(random() % (3 * n));
    for (int m = 0; m < messages; m++) {
      const uint32_t from = random() % n, to = random() % n;
      const uint64_t count = random() % 5 == 0 ? 0 : random() % 300'000;
      auto& buffer = *buffers.emplace_back(new Buffer{valuesOf(from + m, count), Floats(count, NAN)});
      constexpr auto kFloat = static_cast<uint8_t>(DType::Float32);
      calls[from].transfers.push_back({true, to, bytes(buffer.sent), kFloat, {count}});
      calls[to].transfers.push_back({false, from, bytes(buffer.received), kFloat, {count}});
    }
    for (uint32_t r = 0; r < n; r++) world.ranks[r].postAndWait(calls[r]);
  }
  check(!world.synchronize(), "batches do not fail");
  for (auto& buffer : buffers) check(buffer->sent == buffer->received, "message arrives");
}

void testUpstream() {
  CpuWorld world(2);
  Floats a(10), b(10);
  world.ranks[0].device->fail("attend: illegal instruction");
  world.ranks[0].postAndWait(message(true, 1, a));
  world.ranks[1].postAndWait(message(false, 0, b));
  check(world.ranks[0].device->synchronize()->code == MOSAIC_FAILURE_DEVICE, "own failure stays");
  const auto failure = world.ranks[1].device->synchronize();
  check(failure && failure->code == MOSAIC_FAILURE_PEER_LOST, "the peer fails with PEER_LOST");
  check(contains(failure, "illegal instruction"), "the peer's failure has the cause");
}

// ── connecting

void testCloseWhileConnecting() {
  const auto world = std::make_shared<InProcessWorld>(3, kTimeoutNs);
  const int64_t start = monotonicNs();
  Rank<Cpu> one, two;
  one.open(world, 1, 3, kTimeoutNs);
  two.open(world, 2, 3, kTimeoutNs);
  one.engine->abort();
  two.awaitOpen();
  check(monotonicNs() - start < 5'000'000'000, "before the timeout");
  check(two.failure && two.failure->code == MOSAIC_FAILURE_PEER_LOST, "a rank that closes is lost for the others");
  check(contains(two.failure, "connect: rank 1 closed while connecting"), "named");
}

void testWorldOfAnotherSize() {
  const auto world = std::make_shared<InProcessWorld>(1, kTimeoutNs);
  Rank<Cpu> rank;
  rank.open(world, 0, 3, kTimeoutNs);
  rank.awaitOpen();
  check(rank.failure && rank.failure->code == MOSAIC_FAILURE_MISMATCH, "another size: mismatch");
  check(contains(rank.failure, "expected a world of 3 ranks, received a world of 1 ranks"), "names both sizes");
}

/// A transport that counts how often it is freed.
struct FreeCountingTransport {
  int freed = 0;
  MosaicHostTransport host{};
  MosaicTransport table{MOSAIC_TRANSPORT_ABI, MOSAIC_ORDER_HOST, "counted", &host, nullptr};

  FreeCountingTransport() {
    host.self = this;
    host.free = [](void* self) { static_cast<FreeCountingTransport*>(self)->freed++; };
  }
};

void testRefusalFreesTheTransport() {
  const auto world = std::make_shared<InProcessWorld>(1, kTimeoutNs);
  for (int i = 1; i <= 2; i++) {
    FreeCountingTransport transport;
    ComputeStream compute;
    // The handle of a device with a port, which is not a stream.
    if (i == 2) compute = {reinterpret_cast<MosaicStream*>(8), reinterpret_cast<MosaicDevicePort*>(8), nullptr};
    try {
      Engine::open(TransportPtr(&transport.table), compute, std::make_unique<InProcessControl>(world, 0),
                   optionsOf(0, 1, 1'000'000'000), [](const MosaicFailure*) {});
      check(false, "a device without a CPU stream is rejected");
    } catch (const Failure& failure) {
      check(std::strstr(failure.what(), "only devices with a CPU stream"), failure.what());
    }
    check(transport.freed == 1, "a transport that is rejected is freed");
  }
}

/// A stage without operands must have no reduction, because the reduction could outlive the stage in the transport.
void testNothingIsReduced() {
  for (uint32_t n : {1u, 3u}) {
    Group group;
    for (uint32_t r = 0; r < n; r++) group.ranks.push_back(r);
    const CollectiveCall call = collective(OpKind::AllReduce, 0);
    for (const Stage& stage : buildSchedule(group, call, makeSignature(group, call)).stages) {
      check(!stage.reduction, "an empty allReduce reduces nothing");
      check(stage.receives.size() == n - 1, "its messages are compared all the same");
    }
  }
}

// ── the control plane of one process

struct Listener : ControlListener {
  std::vector<std::string> lost;
  void onPeerLost(uint32_t, const std::string& process) override { lost.push_back(process); }
  void onPeerFailed(uint32_t, const MosaicFailure&) override {}
  void onPeerExited(uint32_t) override {}
  void onMismatch(uint64_t, const std::string&) override {}
  void onColors(uint64_t, uint64_t, std::vector<int64_t>) override {}
  void onPositions(uint64_t, std::vector<Position>) override {}
  void onControlLost(const std::string&) override {}
  Position position() override { return {}; }
  std::vector<CallRecord> calls(uint64_t) override { return {}; }
};

void testInProcessLoss() {
  const auto world = std::make_shared<InProcessWorld>(3, kTimeoutNs);
  Listener listener, later;
  InProcessControl first(world, 0);
  first.attach(&listener);
  for (uint32_t rank = 1; rank < 3; rank++) InProcessControl(world, rank);
  check(listener.lost.empty(), "a rank that never joined is not lost");
  {
    InProcessControl left(world, 1), lost(world, 2);
    left.join();
    lost.join();
    left.leave("");
  }
  check(listener.lost.size() == 1 && listener.lost[0].starts_with("rank 2 (pid "), "one that has not left is lost");
  try {
    first.get("never");
    check(false, "get fails");
  } catch (const Failure& failure) {
    check(failure.code() == MOSAIC_FAILURE_PEER_LOST, "get fails once a rank is lost");
  }
  first.attach(&later);
  check(later.lost == listener.lost, "also for a listener that comes later");
  first.leave("");
  first.detach();
}

void testInProcessValues() {
  const auto world = std::make_shared<InProcessWorld>(1, kTimeoutNs);
  InProcessControl control(world, 0);
  control.put("key", "first");
  control.put("key", "second");
  check(control.get("key") == "first", "put does not overwrite an existing key");
  check(control.find("key", 0) == "first" && !control.find("none", 0), "find with timeout 0 does not block");
  try {
    control.put("large", std::string(65'537, 'x'));
    check(false, "a value beyond 64 KiB is rejected");
  } catch (const Failure& failure) {
    check(std::strstr(failure.what(), "at most 65536 bytes, received 5 and 65537"), failure.what());
  }
  control.leave("");
}

/// Tests that texts of failures and of frames are truncated between characters, wherever the limit is.
void testTextsAreCutBetweenCharacters() {
  for (const std::string prefix : {"", "x"}) {
    std::string text = prefix;
    for (int i = 0; i < 1100; i++) text += "é";
    const auto isCut = [&](const std::string& cut, size_t maxBytes) {
      return text.starts_with(cut) && cut.size() % 2 == prefix.size() && cut.size() + 2 > maxBytes;
    };
    check(isCut(failureRecord(MOSAIC_FAILURE_DEVICE, text).message, 2043), "a failure is cut between characters");
    std::string frame;
    control::FieldWriter write(frame);
    write("text", text);
    check(isCut(frame.substr(sizeof(uint32_t)), kMaxTextBytes), "a text of a frame is cut between characters");
  }
}

/// A control plane in which requests for positions are never answered.
struct MuteControl : InProcessControl {
  using InProcessControl::InProcessControl;
  void requestPositions(uint64_t, const std::vector<uint32_t>&) override { isRequested = true; }
  static inline std::atomic<bool> isRequested{false};
};

/// Tests that aborting a rank ends its wait for positions immediately.
void testAbortWhileWaitingForPositions() {
  const auto world = std::make_shared<InProcessWorld>(2, kTimeoutNs);
  MuteControl::isRequested = false;
  Rank<Cpu> zero, one;
  EngineOptions options = optionsOf(0, 2, kTimeoutNs);
  options.timeoutNs = 1'000'000;  // short, so that the timeout is the first reason to request positions
  zero.engine = Engine::open(TransportPtr(Cpu::openTransport()), zero.device->compute(),
                             std::make_unique<MuteControl>(world, 0), options,
                             [&](const MosaicFailure*) { zero.isFinished = true; });
  one.open(world, 1, 2, kTimeoutNs);
  zero.awaitOpen();
  one.awaitOpen();
  zero.postAndWait(barrier());
  while (!MuteControl::isRequested) std::this_thread::yield();
  const int64_t start = monotonicNs();
  zero.engine->abort();
  zero.engine->join(std::chrono::steady_clock::now() + std::chrono::seconds(10));
  check(monotonicNs() - start < 800'000'000, "an aborted rank does not wait for positions");
}

/// A closing rank waits for its peers from `close`, not from the start of its operation.
void testDrainTimeoutBeginsAtClose() {
  const auto world = std::make_shared<InProcessWorld>(2, kTimeoutNs);
  Rank<Cpu> zero, one;
  EngineOptions options = optionsOf(0, 2, kTimeoutNs);
  options.drainTimeoutNs = 2'000'000'000;
  zero.engine = Engine::open(TransportPtr(Cpu::openTransport()), zero.device->compute(),
                             std::make_unique<InProcessControl>(world, 0), options,
                             [&](const MosaicFailure*) { zero.isFinished = true; });
  one.open(world, 1, 2, kTimeoutNs);
  zero.awaitOpen();
  one.awaitOpen();
  zero.postAndWait(barrier());
  std::this_thread::sleep_for(std::chrono::nanoseconds(options.drainTimeoutNs + 100'000'000));
  std::thread closing([&] { zero.close(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  one.postAndWait(barrier());
  closing.join();
  check(!zero.device->synchronize() && !one.device->synchronize(), "a peer may post after `close`");
}

void testBootstrapReportsFailures() {
  const auto world = std::make_shared<InProcessWorld>(1, kTimeoutNs);
  InProcessControl control(world, 0);
  control.join();
  Bootstrap bootstrap(control, optionsOf(0, 1, kTimeoutNs), [] { return false; });
  MosaicFailure failure{};
  check(bootstrap.put(&bootstrap, "key", "value", 5, &failure) == 0, "put");
  const std::string large(65'537, 'x');
  check(bootstrap.put(&bootstrap, "large", large.data(), large.size(), &failure) == 1, "put reports a failure");
  check(contains(failure, "at most 65536 bytes, received 5 and 65537"), "and its reason");
  control.leave("");
}

void testAll() {
  for (uint32_t n : {1u, 2u, 3u, 5u, 8u}) {
    for (uint64_t count : {0ull, 1ull, 7ull, 2048ull, 2049ull, 100'003ull}) {
      testAllReduce(n, count);
      testGatherScatter(n, count);
    }
    for (uint32_t seed = 0; seed < 5; seed++) testBatches(n, seed);
  }
  if (Cpu::polls) {
    for (const std::vector<uint32_t>& hosts : hostPlacements) testHosts(hosts);
    testMismatchOverHosts();
  }
  testMismatch<Cpu>();
  testTimeout<Cpu>(300'000'000);
  testExit<Cpu>();
  testAbort<Cpu>();
  for (const bool differ : {false, true}) testRecordedCalls<Cpu>(differ);
  testUpstream();
  testCloseWhileConnecting();
  testWorldOfAnotherSize();
  testRefusalFreesTheTransport();
  testNothingIsReduced();
  testHostSchedules();
  testInProcessLoss();
  testInProcessValues();
  testTextsAreCutBetweenCharacters();
  testBootstrapReportsFailures();
  testAbortWhileWaitingForPositions();
  testDrainTimeoutBeginsAtClose();
  for (uint32_t n : {1u, 2u, 5u, 8u}) testSplits<Cpu>(n);
}

}  // namespace mosaic::test

int main() {
  using namespace mosaic::test;
  for (const bool polls : {false, true}) {
    Cpu::polls = polls;
    testAll();
  }
  return result();
}
