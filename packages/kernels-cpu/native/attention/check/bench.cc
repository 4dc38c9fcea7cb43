#include "attention/check/check.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "attention/check/tensor.h"
#include "micro/peak.h"
#include "pool/pause.h"

namespace mosaic::check {
namespace {

struct Setup {
  int64_t heads, length, depth;
  DType dtype;
  bool causal;
};

/// Prints the best of several runs relative to the best of as many peak measurements, taken in turns.
template <class Run>
void measure(const char* name, double flops, DType dtype, Isa isa, Pool& pool, Run run) {
  double bestNs = 1e30, peak = 0;
  const int64_t start = monotonicNs();
  for (int i = 0; i < 3 || monotonicNs() - start < 1'500'000'000; ++i) {
    peak = std::max(peak, peakGflops(isa, dtype, pool));
    const int64_t t = monotonicNs();
    run();
    bestNs = std::min(bestNs, static_cast<double>(monotonicNs() - t));
  }
  std::printf("  %s %6.1f GF %5.1f%%", name, flops / bestNs, 100 * flops / bestNs / peak);
  std::fflush(stdout);
}

void benchCase(const Setup& s, Isa isa, Pool& pool) {
  const auto tensor = [&](DType dtype, int64_t columns) {
    return Tensor(dtype, {1, s.heads, s.length, columns}, Layout::Dense);
  };
  Tensor q = tensor(s.dtype, s.depth), k = q, v = q, dOut = q, out = tensor(DType::Float32, s.depth);
  Tensor lse = tensor(DType::Float32, 1), delta = lse, dq = out, dk = out, dv = out;
  std::mt19937 random(1);
  for (Tensor* x : {&q, &k, &v, &dOut}) x->randomize(random, 1);
  for (Tensor* x : {&dq, &dk, &dv, &delta}) x->fill(0);
  const std::vector<Span> spans{{0, s.length, 1}};
  const std::vector<Slice> mask{{0, s.length, 0, s.length, s.causal ? 1 : 0}};
  const Tile tile{spans, spans, mask, static_cast<float>(1 / std::sqrt(static_cast<double>(s.depth)))};
  const double pairs = s.causal ? 0.5 * s.length * (s.length + 1.0) : 1.0 * s.length * s.length;
  const double flops = 4 * pairs * static_cast<double>(s.heads * s.depth);
  std::printf("%-6s d=%-3ld n=%-5ld %s", s.causal ? "causal" : "full", s.depth, s.length, dtypeName(s.dtype));
  const KvBlock kv{k.view(), v.view()};
  const QkvGrads grads{dq.view(), dk.view(), dv.view()};
  measure("forward", flops, s.dtype, isa, pool, [&] {
    lse.fill(-INFINITY);
    attend({{out.view(), lse.view()}, q.view(), kv, tile}, isa, pool);
  });
  measure("backward", 2.5 * flops, s.dtype, isa, pool, [&] {
    attendBackward({grads, q.view(), {dOut.view(), lse.view(), delta.view()}, kv, tile}, isa, pool);
  });
  std::printf("\n");
}

}  // namespace

int bench(int argc, char** argv) {
  Pool pool(argc > 0 ? std::atoi(argv[0]) : 1);
  const IsaChoice choice = chooseIsa(argc > 1 ? argv[1] : nullptr);
  if (!choice.error.empty()) return std::printf("%s\n", choice.error.c_str()), 1;
  std::vector<int64_t> lengths;
  for (int i = 2; i < argc; ++i) lengths.push_back(std::atoi(argv[i]));
  if (lengths.empty()) lengths = {512, 2048, 8192};
  const double peak = peakGflops(choice.isa, DType::Float32, pool);
  std::printf("%s, %d threads, peak %.1f GF\n", isaName(choice.isa), pool.threads(), peak);
  for (DType dtype : {DType::Float32, DType::BFloat16}) {
    for (int64_t depth : {64, 128}) {
      for (bool causal : {false, true}) {
        for (int64_t length : lengths) {
          benchCase({length > 4096 ? 2 : 8, length, depth, dtype, causal}, choice.isa, pool);
        }
      }
    }
  }
  return 0;
}

}  // namespace mosaic::check
