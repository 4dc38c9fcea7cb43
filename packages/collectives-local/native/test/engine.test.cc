// The engine over shared memory without Node: collectives of every size over threads, faults, and what ThreadSanitizer
// finds. See CMakeLists.txt, targets collectives-test and collectives-tsan.
#include <collectives/engine.h>
#include <control/in_process.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>

#include "../transport.h"
#include "stream.h"

namespace mosaic::test {

int failures = 0;

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
  std::unique_ptr<Stream> stream = std::make_unique<Stream>();
  std::shared_ptr<Engine> engine;

  uint64_t post(Call call, const char* label = "test") { return engine->post(0, call, label); }
  void postAndWait(Call call) { engine->wait(post(std::move(call))); }
};

struct World {
  explicit World(uint32_t n, int64_t timeoutNs = 20'000'000'000) : ranks(n) {
    const auto world = std::make_shared<InProcessWorld>(n, timeoutNs);
    std::atomic<uint32_t> connected{0};
    for (uint32_t r = 0; r < n; r++) {
      Compute compute;
      compute.stream = ranks[r].stream.get();
      ranks[r].engine = Engine::open(*openSharedMemory(), compute, std::make_unique<InProcessControl>(world, r),
                                     {r, n, timeoutNs, -1}, [&](const MosaicFailure* failure) {
                                       check(!failure, failure ? failure->message : "");
                                       connected++;
                                     });
    }
    while (connected < n) std::this_thread::yield();
  }
  std::optional<MosaicFailure> synchronize() {
    std::optional<MosaicFailure> first;
    for (Rank& rank : ranks) {
      if (auto failure = rank.stream->synchronize(); failure && !first) first = failure;
    }
    return first;
  }
  std::vector<Rank> ranks;
};

using Floats = std::vector<float>;
uint8_t* bytes(Floats& x) { return reinterpret_cast<uint8_t*>(x.data()); }

float value(uint32_t rank, uint64_t i) { return static_cast<float>(rank + 1) + 0.25f * static_cast<float>(i % 97); }

Floats valuesOf(uint32_t rank, uint64_t count) {
  Floats x(count);
  for (uint64_t i = 0; i < count; i++) x[i] = value(rank, i);
  return x;
}

Call basic(OpKind op, uint64_t count) {
  Call call;
  call.op = op;
  call.dtype = static_cast<uint8_t>(DType::Float32);
  call.shape = {count};
  return call;
}

void testAllReduce(uint32_t n, uint64_t count) {
  World world(n);
  std::vector<Floats> x(n);
  for (uint32_t r = 0; r < n; r++) {
    x[r] = valuesOf(r, count);
    Call call = basic(OpKind::AllReduce, count);
    call.out = bytes(x[r]);
    world.ranks[r].postAndWait(call);
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
  World world(n);
  std::vector<Floats> in(n), all(n, Floats(n * share, NAN)), part(n, Floats(share, NAN));
  for (uint32_t r = 0; r < n; r++) {
    in[r] = valuesOf(r, share);
    Call gather = basic(OpKind::AllGather, share);
    gather.in = bytes(in[r]);
    gather.out = bytes(all[r]);
    gather.send.assign(n, share);
    world.ranks[r].postAndWait(gather);
    Call scatter = basic(OpKind::ReduceScatter, n * share);
    scatter.in = bytes(all[r]);
    scatter.out = bytes(part[r]);
    scatter.send.assign(n, share);
    scatter.reduce = ReduceOp::Mean;
    world.ranks[r].postAndWait(scatter);
  }
  check(!world.synchronize(), "allGather and reduceScatter do not fail");
  for (uint32_t r = 0; r < n; r++) check(std::memcmp(part[r].data(), in[r].data(), share * 4) == 0, "mean of equals");
}

/// Random batches between random pairs, orders permuted across pairs, several messages per pair.
void testBatches(uint32_t n, uint32_t seed) {
  World world(n);
  std::mt19937 random(seed);
  struct Buffer {
    Floats sent, received;
  };
  std::vector<std::unique_ptr<Buffer>> buffers;
  for (int batch = 0; batch < 5; batch++) {
    std::vector<Call> calls(n);
    for (Call& call : calls) call.op = OpKind::SendRecv;
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

void testMismatch() {
  World world(3);
  std::vector<Floats> x(3, Floats(20'000, 1.0f));
  for (uint32_t r = 0; r < 3; r++) {
    Call call = basic(OpKind::AllReduce, r == 2 ? 19'999 : 20'000);
    call.out = bytes(x[r]);
    world.ranks[r].postAndWait(call);
  }
  const auto failure = world.synchronize();
  check(failure && failure->code == MOSAIC_FAILURE_MISMATCH, "shapes differ: mismatch");
  check(contains(failure, "rank 2"), "names rank 2");
}

void testTimeout() {
  World world(3, 300'000'000);
  for (uint32_t r = 0; r < 2; r++) {
    Call call;
    call.op = OpKind::Barrier;
    world.ranks[r].postAndWait(call);
  }
  const auto failure = world.synchronize();
  check(failure && failure->code == MOSAIC_FAILURE_TIMEOUT, "late rank: timeout");
  check(contains(failure, "rank 2 is in no collective, last collective: none"), "gives positions");
}

void testUpstream() {
  World world(2);
  Floats a(10), b(10);
  world.ranks[0].stream->fail("attend: illegal instruction");
  Call send, receive;
  send.op = receive.op = OpKind::SendRecv;
  send.transfers = {{true, 1, bytes(a), static_cast<uint8_t>(DType::Float32), {10}}};
  receive.transfers = {{false, 0, bytes(b), static_cast<uint8_t>(DType::Float32), {10}}};
  world.ranks[0].postAndWait(send);
  world.ranks[1].postAndWait(receive);
  check(world.ranks[0].stream->synchronize()->code == MOSAIC_FAILURE_DEVICE, "own failure stays");
  const auto failure = world.ranks[1].stream->synchronize();
  check(failure && failure->code == MOSAIC_FAILURE_PEER_LOST, "a peer fails with it");
  check(contains(failure, "illegal instruction"), "with the cause");
}

void testLeave() {
  World world(2);
  Floats a = valuesOf(0, 5000), b(5000, NAN);
  Call send, receive;
  send.op = receive.op = OpKind::SendRecv;
  send.transfers = {{true, 1, bytes(a), static_cast<uint8_t>(DType::Float32), {5000}}};
  receive.transfers = {{false, 0, bytes(b), static_cast<uint8_t>(DType::Float32), {5000}}};
  world.ranks[0].post(send);
  std::atomic<bool> left{false};
  world.ranks[0].engine->close([&] { left = true; });
  while (!left) std::this_thread::yield();
  world.ranks[1].postAndWait(receive);
  check(!world.ranks[1].stream->synchronize() && a == b, "what was sent before leaving arrives");
  world.ranks[1].postAndWait(receive);
  const auto failure = world.ranks[1].stream->synchronize();
  check(failure && failure->code == MOSAIC_FAILURE_PEER_LOST, "after that it is lost");
  check(contains(failure, "rank 0 exited after sendRecv #1 (world)"), "names who left");
}

void testAbort() {
  World world(2);
  Call barrier;
  barrier.op = OpKind::Barrier;
  world.ranks[0].postAndWait(barrier);
  world.ranks[0].engine->abort();
  const auto failure = world.ranks[0].stream->synchronize();
  check(failure && failure->code == MOSAIC_FAILURE_CLOSED, "aborted");
}

/// Ranks post from threads of their own while others open and close groups.
void testSplits(uint32_t n) {
  World world(n);
  std::vector<std::thread> threads;
  for (uint32_t r = 0; r < n; r++) {
    threads.emplace_back([&, r] {
      Rank& rank = world.ranks[r];
      std::atomic<bool> over{false};
      const uint64_t number = rank.engine->split(0, r % 2, "part", [&](const MosaicFailure* failure) {
        check(!failure, "split does not fail");
        over = true;
      });
      while (!over) std::this_thread::yield();
      const auto part = rank.engine->groupOf(rank.engine->partOf(number));
      check(part->size() == (n + 1 - r % 2) / 2, "the part has the ranks of one color");
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace mosaic::test

int main() {
  using namespace mosaic::test;
  for (uint32_t n : {1u, 2u, 3u, 5u, 8u}) {
    for (uint64_t count : {0ull, 1ull, 7ull, 2048ull, 2049ull, 100'003ull}) {
      testAllReduce(n, count);
      testGatherScatter(n, count);
    }
    for (uint32_t seed = 0; seed < 5; seed++) testBatches(n, seed);
  }
  testMismatch();
  testTimeout();
  testUpstream();
  testLeave();
  testAbort();
  for (uint32_t n : {1u, 2u, 5u, 8u}) testSplits(n);
  std::printf(failures ? "%d checks failed\n" : "all good\n", failures);
  return failures != 0;
}
