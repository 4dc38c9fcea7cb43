// Checks the attention kernels of every instruction set of this machine against a float64 reference, on random shapes,
// strides, dtypes, placements, masks and poisoned inputs. With --bench, measures them relative to the FMA peak.
//
//   attention_check [seed [cases]]      attention_check --bench [threads]
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "attention/check/check.h"
#include "attention/check/masks.h"
#include "attention/check/reference.h"
#include "attention/check/tensor.h"

namespace mosaic::check {
namespace {

int failures = 0;
std::map<std::string, double> worstErrorRatios;  // error / bound

#define EXPECT(condition, ...)                       \
  do {                                               \
    if (!(condition)) {                              \
      if (++failures < 30) std::printf(__VA_ARGS__); \
    }                                                \
  } while (false)

struct Case {
  int64_t B, H, Hkv, D;
  std::vector<Span> q, k;
  std::vector<Slice> mask;                  // for all batch elements
  std::vector<std::vector<Slice>> samples;  // for each sample, from `firstSample` on, disjoint from `mask`; or empty
  int64_t firstSample;
  DType type, keyType;
  Layout layout, keyLayout;
  double magnitude;  // scale of q: large logits
  int poison;        // 0 none; 1 NaN in keys that are not visible; 2 NaN in some keys; 3 NaN in some rows
  int numKeyBlocks;
  int64_t rows() const { return static_cast<int64_t>(positions(q).size()); }
  int64_t keys() const { return static_cast<int64_t>(positions(k).size()); }

  /// Returns everything that is visible to each batch element.
  std::vector<std::vector<Slice>> masks() const {
    std::vector<std::vector<Slice>> batchMasks(static_cast<size_t>(B), mask);
    for (size_t b = 0; b < batchMasks.size() && !samples.empty(); ++b) {
      const std::vector<Slice>& sampleMask = samples[static_cast<size_t>(firstSample) + b];
      batchMasks[b].insert(batchMasks[b].end(), sampleMask.begin(), sampleMask.end());
    }
    return batchMasks;
  }
};

/// Moves some slices of the mask to some batch elements only; two of them may have the same slices.
void divideMask(Case& c, Random& random) {
  c.firstSample = randomInt(random, 0, 2);
  c.samples.resize(static_cast<size_t>(c.firstSample + c.B));
  std::vector<Slice> commonSlices;
  for (const Slice& slice : c.mask) {
    if (randomInt(random, 0, 2) == 0) {
      commonSlices.push_back(slice);
      continue;
    }
    for (std::vector<Slice>& sampleMask : c.samples) {
      if (randomInt(random, 0, 1) == 0) sampleMask.push_back(slice);
    }
  }
  if (randomInt(random, 0, 3) == 0) c.samples.back() = c.samples[static_cast<size_t>(c.firstSample)];
  c.mask = commonSlices;
}

Case randomCase(Random& random) {
  const int64_t depths[] = {1, 3, 8, 16, 33, 64, 64, 80, 128, 128, 256};
  const int64_t n = randomInt(random, 1, randomInt(random, 0, 3) == 0 ? 700 : 150);
  Case c;
  c.B = randomInt(random, 1, 2);
  c.Hkv = randomInt(random, 1, 2);
  c.H = c.Hkv * randomInt(random, 1, 3);
  c.D = depths[randomInt(random, 0, 10)];
  c.q = randomSpans(random, n);
  c.k = randomSpans(random, n);
  if (randomInt(random, 0, 5) == 0) {  // few queries and many keys, which are split
    c.H = c.Hkv * randomInt(random, 1, 8);
    c.q = {{randomInt(random, 0, n - 1), randomInt(random, 1, 20), 1}};
    c.k = {{0, randomInt(random, 1, 3000), 1}};
  }
  c.mask = randomMask(random, n, c.k.size() == 1 ? c.k[0].start + c.k[0].length : n);
  c.type = static_cast<DType>(randomInt(random, 0, 2));
  c.keyType = randomInt(random, 0, 3) != 0 ? c.type : static_cast<DType>(randomInt(random, 0, 2));
  c.layout = static_cast<Layout>(randomInt(random, 0, 3));
  c.keyLayout = static_cast<Layout>(randomInt(random, 0, 3));
  c.magnitude = randomInt(random, 0, 4) == 0 ? 30 : 1;
  c.poison = static_cast<int>(randomInt(random, 0, 3));
  c.numKeyBlocks = static_cast<int>(randomInt(random, 1, 4));
  c.firstSample = 0;
  if (randomInt(random, 0, 3) == 0) {  // many short sequences
    c.B = randomInt(random, 14, 40);
    c.D = depths[randomInt(random, 0, 7)];
    const int64_t length = randomInt(random, 1, 16);
    c.q = randomSpans(random, length);
    c.k = randomSpans(random, length);
    c.mask = randomMask(random, length, length);
    if (randomInt(random, 0, 1) == 0) return c;
  }
  if (randomInt(random, 0, 2) == 0) {
    c.B = randomInt(random, 1, 4);
    divideMask(c, random);
  }
  return c;
}

struct Tensors {
  Tensor q, k, v, dOut;
  Tensors(const Case& c, Random& random)
      : q(c.type, {c.B, c.H, c.rows(), c.D}, c.layout),
        k(c.keyType, {c.B, c.Hkv, c.keys(), c.D}, c.keyLayout),
        v(c.keyType, {c.B, c.Hkv, c.keys(), c.D}, c.keyLayout),
        dOut(randomInt(random, 0, 1) ? DType::Float32 : c.type, {c.B, c.H, c.rows(), c.D}, c.layout) {
    q.randomize(random, c.magnitude);
    k.randomize(random, 1);
    v.randomize(random, 1);
    dOut.randomize(random, 1);
    const auto queryPositions = positions(c.q), keyPositions = positions(c.k);
    const auto poisonElement = [&](int64_t b, Tensor& x, int64_t s) {
      x.set(b, 0, s, randomInt(random, 0, c.D - 1), NAN);
    };
    const auto poison = [&](Tensor& x, int64_t s) {
      for (int64_t b = 0; b < c.B; ++b) poisonElement(b, x, s);
    };
    const std::vector<std::vector<Slice>> masks = c.masks();
    for (int64_t b = 0; b < c.B && c.poison == 1; ++b) {
      for (int64_t j = 0; j < c.keys(); ++j) {
        bool isSeen = false;
        for (int64_t i : queryPositions) {
          for (const Slice& s : masks[static_cast<size_t>(b)])
            isSeen |= isVisible(s, i, keyPositions[static_cast<size_t>(j)]);
        }
        if (!isSeen) poisonElement(b, k, j), poisonElement(b, v, j);
      }
    }
    for (int t = 0; t < 2 && c.poison == 2 && c.keys() > 0; ++t) {
      poison(t == 0 ? k : v, randomInt(random, 0, c.keys() - 1));
    }
    for (int t = 0; t < 2 && c.poison == 3 && c.rows() > 0; ++t) {
      poison(t == 0 ? q : dOut, randomInt(random, 0, c.rows() - 1));
    }
  }
};

/// Returns the spans of local keys [first, first + count).
std::vector<Span> clip(const std::vector<Span>& spans, int64_t first, int64_t count) {
  std::vector<Span> clippedSpans;
  int64_t offset = 0;
  for (const Span& s : spans) {
    const int64_t from = std::max<int64_t>(0, first - offset), to = std::min(s.length, first + count - offset);
    if (from < to) clippedSpans.push_back({s.start + from * s.step, to - from, s.step});
    offset += s.length;
  }
  return clippedSpans;
}

/// Compares the largest error, relative to the largest value (or sum of terms), with its bound. A NaN on one side only
/// is a failure.
void compare(const char* name, const Tensor& actual, const std::vector<double>& expected, double bound,
             const char* context, double terms = 0) {
  double maxValue = std::max(terms, 1e-3), error = 0;
  for (double x : expected) maxValue = std::isfinite(x) ? std::max(maxValue, std::fabs(x)) : maxValue;
  size_t i = 0;
  int64_t nonFiniteMismatches = 0;
  actual.forEachElement([&](int64_t b, int64_t h, int64_t s, int64_t d) {
    const double x = actual.get(b, h, s, d), y = expected[i++];
    if (!std::isfinite(x) || !std::isfinite(y)) {
      nonFiniteMismatches += !(x == y || (std::isnan(x) && std::isnan(y)));
    } else {
      error = std::max(error, std::fabs(x - y));
    }
  });
  error /= maxValue * bound;
  worstErrorRatios[name] = std::max(worstErrorRatios[name], error);
  EXPECT(nonFiniteMismatches == 0, "%s: %s: %ld elements are NaN or infinite in one result only\n", context, name,
         nonFiniteMismatches);
  EXPECT(error <= 1, "%s: %s: error is %.2f times the bound\n", context, name, error);
  EXPECT(actual.isPaddingIntact(), "%s: %s: out-of-bounds write\n", context, name);
}

struct Results {
  Tensor out, lse, dq, dk, dv;
  Results(const Case& c)
      : out(DType::Float32, {c.B, c.H, c.rows(), c.D}, c.layout),
        lse(DType::Float32, {c.B, c.H, c.rows(), 1}, c.layout),
        dq(DType::Float32, {c.B, c.H, c.rows(), c.D}, c.layout),
        dk(DType::Float32, {c.B, c.Hkv, c.keys(), c.D}, c.keyLayout),
        dv(DType::Float32, {c.B, c.Hkv, c.keys(), c.D}, c.keyLayout) {
    lse.fill(-INFINITY);  // out stays NaN for rows without visible keys: it must not be read
    for (Tensor* x : {&dq, &dk, &dv}) x->fill(0);
  }
};

void runCase(const Case& c, const Tensors& t, const Reference& r, Results& x, Isa isa, Pool& pool, float scale) {
  Tensor lse(x.lse), delta(x.lse);
  lse.forEachElement([&](int64_t b, int64_t h, int64_t s, int64_t) {
    const size_t i = static_cast<size_t>((b * c.H + h) * c.rows() + s);
    lse.set(b, h, s, 0, r.lse[i]);
    delta.set(b, h, s, 0, r.delta[i]);
  });
  for (int64_t f = 0; f < c.numKeyBlocks; ++f) {
    const int64_t first = c.keys() * f / c.numKeyBlocks, count = c.keys() * (f + 1) / c.numKeyBlocks - first;
    const std::vector<Span> k = clip(c.k, first, count);
    Tile tile{c.q, k, c.mask, scale};
    if (!c.samples.empty()) {
      tile.modifiers.emplace();
      tile.modifiers->sampleMasks = c.samples;
      if (c.firstSample > 0) tile.modifiers->origin = HeadOrigin{c.firstSample, 0};
    }
    const KvBlock kv{t.k.rows(first, count), t.v.rows(first, count)};
    const QkvGrads grads{x.dq.view(), x.dk.rows(first, count), x.dv.rows(first, count)};
    attend({{x.out.view(), x.lse.view()}, t.q.view(), kv, tile}, isa, pool);
    attendBackward({grads, t.q.view(), {t.dOut.view(), lse.view(), delta.view()}, kv, tile}, isa, pool);
  }
}

void checkCase(int index, const Case& c, const Tensors& t, const std::vector<Pool*>& pools) {
  const float scale = static_cast<float>(1 / std::sqrt(static_cast<double>(c.D)));
  const Reference r(t.q, t.k, t.v, t.dOut, positions(c.q), positions(c.k), c.masks(), scale);
  std::vector<double> out = r.out;
  for (size_t i = 0; i < r.lse.size(); ++i) {
    if (r.lse[i] == -INFINITY) std::fill_n(out.begin() + static_cast<int64_t>(i) * c.D, c.D, NAN);
  }
  // Float32 rounds a score to about 1e-7 of the largest partial sum; weights inherit that absolute error.
  const double float32Bound = 2e-6 + 4e-7 * r.largestScore;
  for (Isa isa : supportedIsas()) {
    // Products of bfloat16 round weights and their gradients to bfloat16: half a unit, 2⁻⁹, of each term.
    const bool isBf16 = c.type == DType::BFloat16 && c.keyType == DType::BFloat16;
    const bool isPaired = isBf16 && isa >= Isa::Avx512Bf16 && isa != Isa::Neon;
    const double bound = float32Bound + (isPaired ? 0x1p-8 : 0);
    char context[200];
    std::snprintf(context, sizeof context,
                  "case %d (%s: B%ld H%ld/%ld Sq%ld Sk%ld D%ld %s/%s layout %d/%d poison %d folds %d samples %zu)",
                  index, isaName(isa), c.B, c.H, c.Hkv, c.rows(), c.keys(), c.D, dtypeName(c.type),
                  dtypeName(c.keyType), static_cast<int>(c.layout), static_cast<int>(c.keyLayout), c.poison,
                  c.numKeyBlocks, c.samples.size());
    Results first(c), second(c);
    runCase(c, t, r, first, isa, *pools[0], scale);
    runCase(c, t, r, second, isa, *pools[static_cast<size_t>(index) % (pools.size() - 1) + 1], scale);
    compare("out", first.out, out, bound, context);
    // Weights that are rounded to bfloat16 are computed by a polynomial with error 3e-6, and so is their sum.
    compare("lse", first.lse, r.lse, isPaired ? 4e-6 : 1e-6, context, isPaired ? 1 : 0);
    compare("dq", first.dq, r.dq, bound, context, r.maxDqTermSum);
    compare("dk", first.dk, r.dk, bound, context, r.maxDkTermSum);
    compare("dv", first.dv, r.dv, bound, context);
    EXPECT(first.out.hasSameBits(second.out) && first.lse.hasSameBits(second.lse) && first.dq.hasSameBits(second.dq) &&
               first.dk.hasSameBits(second.dk) && first.dv.hasSameBits(second.dv),
           "%s: the result depends on the number of threads\n", context);
  }
}

}  // namespace
}  // namespace mosaic::check

int main(int argc, char** argv) {
  using namespace mosaic;
  using namespace mosaic::check;
  if (argc > 1 && std::string(argv[1]) == "--bench") return bench(argc - 2, argv + 2);
  const int seed = argc > 1 ? std::atoi(argv[1]) : 1, cases = argc > 2 ? std::atoi(argv[2]) : 400;
  failures = checkBasics();
  Pool pool1(1), pool2(2), pool5(5);
  for (int i = 0; i < cases; ++i) {
    Random random(static_cast<uint32_t>(seed * 1'000'003 + i));
    const Case c = randomCase(random);
    checkCase(i, c, Tensors(c, random), {&pool1, &pool2, &pool5});
  }
  for (const auto& [name, error] : worstErrorRatios)
    std::printf("%-4s largest error is %.2f times the bound\n", name.c_str(), error);
  std::printf("%d cases, %d failures\n", cases, failures);
  return failures == 0 ? 0 : 1;
}
