#include "attention/check/check.h"

#include <atomic>
#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <string>

#include "attention/check/tensor.h"
#include "simd/check/check.h"

namespace mosaic::check {
namespace {

int failures = 0;

void expect(bool ok, const char* what) {
  if (ok) return;
  ++failures;
  std::printf("failed: %s\n", what);
}

void checkSimd() {
  for (Isa isa : supportedIsas()) {
#if defined(__x86_64__)
    const SimdReport report = isa >= Isa::Avx512Bf16 ? checkAvx512Bf16()
                              : isa == Isa::Avx512 ? checkAvx512() : isa == Isa::Avx2 ? checkAvx2() : checkScalar();
#elif defined(__aarch64__)
    const SimdReport report = isa == Isa::NeonBf16 ? checkNeonBf16() : isa == Isa::Neon ? checkNeon() : checkScalar();
#else
    const SimdReport report = checkScalar();
#endif
    std::printf("%-9s exp2 error %.1e\n", isaName(isa), report.maxExp2Error);
    expect(report.failures == 0, report.firstFailure);
  }
}

void checkIsaChoice() {
  const std::vector<Isa> isas = supportedIsas();
  const Isa fastest = chooseIsa(nullptr).isa;
  const bool hasSlowBf16Dot = isas.back() == Isa::Avx512Bf16 && fastest == Isa::Avx512;
  expect((fastest == isas.back() || hasSlowBf16Dot) && chooseIsa("").isa == fastest,
         "the fastest instruction set is the default");
  expect(chooseIsa("scalar").isa == Isa::Scalar && chooseIsa("scalar").error.empty(), "MOSAIC_ISA=scalar");
  const std::string error = chooseIsa("sse9").error;
  expect(error.find("sse9") != std::string::npos && error.find("scalar") != std::string::npos,
         "the error lists the requested and the supported instruction sets");
}

void checkPool(int threads) {
  Pool pool(threads);
  expect(pool.threads() == threads, "threads() includes the calling thread");
  for (int64_t tasks : {0, 1, 2, 3, 100, 1000}) {
    for (int repetition = 0; repetition < 100; ++repetition) {
      std::vector<std::atomic<int>> calls(static_cast<size_t>(tasks));
      std::atomic<bool> hasStrayTask{false};
      pool.parallelFor(tasks, [&](int64_t task, int worker) {
        calls[static_cast<size_t>(task)]++;
        if (worker < 0 || worker >= threads) hasStrayTask = true;
      });
      bool isEachTaskRunOnce = !hasStrayTask;
      for (const auto& c : calls) isEachTaskRunOnce &= c == 1;
      expect(isEachTaskRunOnce, "each task runs once, on a worker of the pool");
    }
  }
  bool hasThrown = false;
  try {
    pool.parallelFor(50, [](int64_t task, int) {
      if (task == 7) throw std::runtime_error("seven");
    });
  } catch (const std::runtime_error& error) {
    hasThrown = std::string(error.what()) == "seven";
  }
  expect(hasThrown, "an exception propagates to the caller");
  std::atomic<int> after{0};
  pool.parallelFor(10, [&](int64_t, int) { after++; });
  expect(after == 10, "the pool is usable after an exception");
}

void checkArena() {
  Arena arena;
  size_t held = 0;
  for (int step = 0; step < 100; ++step) {
    arena.reset();
    for (int i = 1; i < 40; ++i) {
      float* x = arena.allocate<float>(i * 10'000);
      expect(reinterpret_cast<uintptr_t>(x) % 64 == 0, "arena allocations are aligned to cache lines");
      x[0] = x[i * 10'000 - 1] = 1;
    }
    if (step == 0) held = arena.capacity();
  }
  expect(arena.capacity() == held, "identical steps allocate once");
}

/// Checks one row each with keys in both states, in one of them, and in neither, and one with NaN.
void checkMerge() {
  Pool pool(1);
  const auto createTensor = [](int64_t columns) { return Tensor(DType::Float32, {1, 1, 5, columns}, Layout::Padded); };
  Tensor out = createTensor(2), lse = createTensor(1), otherOut = createTensor(2), otherLse = createTensor(1);
  const double a[] = {1.5, 2, -INFINITY, -INFINITY, NAN}, b[] = {0.5, -INFINITY, 3, -INFINITY, 1};
  for (int64_t i = 0; i < 5; ++i) {
    lse.set(0, 0, i, 0, a[i]);
    otherLse.set(0, 0, i, 0, b[i]);
    for (int64_t d = 0; d < 2; ++d) {  // rows without keys keep the NaN that tensors are initialized with
      if (a[i] != -INFINITY) out.set(0, 0, i, d, 10);
      if (b[i] != -INFINITY) otherOut.set(0, 0, i, d, 20);
    }
  }
  const AttentionState other{otherOut.view(), otherLse.view()};
  mergeStates({out.view(), lse.view()}, {&other, 1}, pool);
  const double ea = std::exp(1.5), eb = std::exp(0.5);
  expect(std::fabs(lse.get(0, 0, 0) - std::log(ea + eb)) < 1e-6, "merge: lse of both states");
  expect(std::fabs(out.get(0, 0, 0, 1) - (10 * ea + 20 * eb) / (ea + eb)) < 1e-5, "merge: out of both states");
  expect(lse.get(0, 0, 1) == 2 && out.get(0, 0, 1, 0) == 10, "merge: the second state is empty");
  expect(lse.get(0, 0, 2) == 3 && out.get(0, 0, 2, 0) == 20, "merge: the first state is empty");
  expect(lse.get(0, 0, 3) == -INFINITY, "merge: both states are empty");
  expect(std::isnan(lse.get(0, 0, 4)) && std::isnan(out.get(0, 0, 4, 0)), "merge: NaN propagates");
  expect(out.isPaddingIntact() && lse.isPaddingIntact(), "merge: no out-of-bounds writes");
}

/// Checks that attention in a loop holds no more memory after many steps than after the first.
void checkSteadyMemory() {
  Pool pool(1);
  const auto createTensor = [](int64_t columns) {
    Tensor x(DType::BFloat16, {1, 2, 500, columns}, Layout::BSHD);
    x.fill(0.5);
    return x;
  };
  const auto createFloatTensor = [](int64_t columns) {
    Tensor x(DType::Float32, {1, 2, 500, columns}, Layout::Dense);
    x.fill(0);
    return x;
  };
  const Tensor q = createTensor(64), out = createFloatTensor(64), lse = createFloatTensor(1),
               delta = createFloatTensor(1), dq = createFloatTensor(64), dk = dq, dv = dq;
  const std::vector<Span> spans{{0, 500, 1}};
  const std::vector<Slice> mask{{0, 500, 0, 500, 1}};
  const Tile tile{spans, spans, mask, 0.125f};
  size_t held = 0;
  for (int step = 0; step < 30; ++step) {
    const KvBlock kv{q.view(), q.view()};
    const QkvGrads grads{dq.view(), dk.view(), dv.view()};
    attend({{out.view(), lse.view()}, q.view(), kv, tile}, supportedIsas().back(), pool);
    attendBackward({grads, q.view(), {q.view(), lse.view(), delta.view()}, kv, tile}, supportedIsas().back(), pool);
    const size_t now = pool.arena(0).capacity() + pool.sharedArena().capacity();
    if (step == 0) held = now;
    expect(now == held && held > 0, "a loop of identical steps allocates once");
  }
}

}  // namespace

int checkBasics() {
  checkSimd();
  checkIsaChoice();
  for (int threads : {1, 2, 5}) checkPool(threads);
  checkArena();
  checkMerge();
  checkSteadyMemory();
  return failures;
}

}  // namespace mosaic::check
