// Softcap, ALiBi slopes and weight dropout, for the scores that a thread holds, in any layout. Kernels take one of two
// classes as a template parameter, ModifiedScores or PlainScores; the latter compiles to nothing.
//
// Dropped weights are bitwise those of the CPU device: Philox of (key / 4, query, batch, head) under a key of the call
// (packages/core/src/attention/tile.ts). The backward draws them again.
#pragma once

#include "kernels/random.cuh"
#include "kernels/score_modifiers.h"

namespace mosaic::cuda {

/// A query row and a key, as indices relative to the start of a part.
struct Pair {
  int row, key;
};

/// tanh(x) and its derivative, with float32 accuracy.
struct ExactTanh {
  DEVICE static float of(float x, float& derivative) {
    const float t = tanhf(x);
    derivative = 1.f - t * t;
    return t;
  }
};
/// tanh(x) within 2⁻²¹, for scores that are products of 16-bit numbers.
struct FastTanh {
  DEVICE static float of(float x, float& derivative) {
    const float e = fastExp2(fabsf(x) * (-2.f * 1.4426950408889634f)), half = fastReciprocal(1.f + e);
    derivative = 4.f * e * half * half;
    return copysignf((1.f - e) * half, x);
  }
};

/// Results of a tile's modification that are used later: the softcap's derivatives, and a bit for each weight that is
/// kept.
template <int N, int W>
struct TileChanges {
  static_assert(N * W <= 32);
  float derivative[N][W];
  uint32_t dropoutMask;
};

template <int N, int W, class Body>
DEVICE void forEachScore(const float (&)[N][W], Body body) {
#pragma unroll
  for (int n = 0; n < N; n++) {
#pragma unroll
    for (int w = 0; w < W; w++) body(n, w);
  }
}

/// The score modifiers for one head of queries and one part.
template <class Tanh>
struct TileModifiers {
  const ScoreModifiers& modifiers;
  const PartPositions& positions;
  int keyStep;
  float slope;
  Philox pairs;  // the call's key; batch element and head are the upper half of counters

  template <int N, int W>
  using Changes = TileChanges<N, W>;

  /// Returns the softmax's factor of scores: 1, because modified scores are already scaled.
  DEVICE float scale(float) const { return 1.f; }

  /// s: products on input, scaled and modified scores on output. pairOf(n, w) returns the Pair of s[n][w].
  template <int N, int W, class PairOf>
  DEVICE void modify(float (&s)[N][W], float scale, TileChanges<N, W>& changes, PairOf pairOf) const {
    forEachScore(s, [&](int n, int w) {
      s[n][w] = roundedProduct(s[n][w], scale);
      changes.derivative[n][w] = 1.f;
    });
    if (modifiers.softcap > 0.f) {
      const float inverse = 1.f / modifiers.softcap;
      forEachScore(s, [&](int n, int w) {
        s[n][w] = modifiers.softcap * Tanh::of(s[n][w] * inverse, changes.derivative[n][w]);
      });
    }
    if (modifiers.slopes) {
      forEachScore(s, [&](int n, int w) { s[n][w] = fmaf(-slope, positionDistance(pairOf(n, w)), s[n][w]); });
    }
    changes.dropoutMask = drawDropoutMask<N, W>(pairOf);
  }

  /// Sets weights, or their gradients, of dropped pairs to 0 (−0 is preserved), and scales the others.
  template <int N, int W>
  DEVICE void applyDropout(float (&x)[N][W], const TileChanges<N, W>& changes) const {
    if (modifiers.dropoutThreshold == 0) return;
    forEachScore(
        x, [&](int n, int w) { x[n][w] *= changes.dropoutMask >> (n * W + w) & 1 ? modifiers.dropoutScale : 0.f; });
  }

  template <int N, int W>
  DEVICE float derivative(const TileChanges<N, W>& changes, int n, int w) const {
    return changes.derivative[n][w];
  }

 private:
  DEVICE uint32_t queryPosition(const Pair& pair) const {
    return static_cast<uint32_t>(positions.row) +
           static_cast<uint32_t>(pair.row) * static_cast<uint32_t>(positions.rowStep);
  }
  DEVICE uint32_t keyPosition(const Pair& pair) const {
    return static_cast<uint32_t>(positions.key) + static_cast<uint32_t>(pair.key) * static_cast<uint32_t>(keyStep);
  }
  DEVICE float positionDistance(const Pair& pair) const {
    const auto distance = static_cast<int32_t>(queryPosition(pair) - keyPosition(pair));
    return static_cast<float>(distance < 0 ? -distance : distance);
  }

  /// Returns a mask whose bit n · W + w is set if that weight is kept. The loop is not unrolled, because Philox takes a
  /// hundred instructions.
  template <int N, int W, class PairOf>
  DEVICE uint32_t drawDropoutMask(PairOf pairOf) const {
    if (modifiers.dropoutThreshold == 0) return 0;
    uint32_t mask = 0, words[4] = {};
    uint64_t lastCounter = ~uint64_t{0};  // one counter has the words of four neighboring keys
#pragma unroll 1
    for (int i = 0; i < N * W; i++) {
      const Pair pair = pairOf(i / W, i % W);
      const uint32_t key = keyPosition(pair);
      const uint64_t counter = uint64_t{queryPosition(pair)} << 32 | key >> 2;
      if (counter != lastCounter) philoxBlock(pairs, counter, words);
      lastCounter = counter;
      const uint32_t bits = key & 2 ? (key & 1 ? words[3] : words[2]) : (key & 1 ? words[1] : words[0]);
      mask |= static_cast<uint32_t>(bits >> 8 >= modifiers.dropoutThreshold) << i;
    }
    return mask;
  }
};

/// Modifiers of kernels for calls that modify scores.
template <class Tanh>
struct ModifiedScores {
  const ScoreModifiers& modifiers;
  const PartPositions* positions;
  const Parts& parts;
  uint64_t key;  // of the call

  template <class Parameters>
  DEVICE explicit ModifiedScores(const WithModifiers<Parameters>& p)
      : modifiers(p.modifiers), positions(p.positions), parts(p.base.parts) {
    uint32_t words[4];
    philoxBlock({modifiers.dropout.seed, 0}, modifiers.dropout.stream, words);
    key = uint64_t{words[1]} << 32 | words[0];
  }

  template <int N, int W>
  using Changes = TileChanges<N, W>;

  /// `batch` is relative to the tensors' first batch element; `head` is a query head.
  DEVICE TileModifiers<Tanh> createPartModifiers(int part, int batch, int head) const {
    const float slope = modifiers.slopes ? load(modifiers.slopes + head * modifiers.slopeStride) : 0.f;
    const uint64_t headWord = uint64_t{modifiers.head + static_cast<uint32_t>(head)} << 32;
    return {modifiers,
            positions[part],
            parts.part[part].visible.step,
            slope,
            {key, headWord | (modifiers.batch + static_cast<uint32_t>(batch))}};
  }
};

/// Modifiers of kernels for plain calls.
struct PlainScores {
  template <int N, int W>
  struct Changes {};

  DEVICE PlainScores createPartModifiers(int, int, int) const { return {}; }
  DEVICE float scale(float scale) const { return scale; }
  template <int N, int W, class PairOf>
  DEVICE void modify(float (&)[N][W], float, Changes<N, W>&, PairOf) const {}
  template <int N, int W>
  DEVICE void applyDropout(float (&)[N][W], const Changes<N, W>&) const {}
  template <int N, int W>
  DEVICE float derivative(const Changes<N, W>&, int, int) const {
    return 1.f;
  }
};

}  // namespace mosaic::cuda
