// Attention and its gradients by definition: one pair at a time, in float64.
#pragma once

#include <cmath>
#include <vector>

#include "attention/attention.h"
#include "attention/check/tensor.h"

namespace mosaic::check {

inline std::vector<int64_t> positions(const std::vector<Span>& spans) {
  std::vector<int64_t> positions;
  for (const Span& s : spans) {
    for (int64_t i = 0; i < s.length; ++i) positions.push_back(s.start + i * s.step);
  }
  return positions;
}

inline bool isVisible(const Slice& s, int64_t q, int64_t k) {
  if (q < s.q0 || q >= s.q1) return false;
  const int64_t begin = s.k0 + (s.type & 2 ? q - s.q0 : 0), end = s.k1 - (s.type & 1 ? s.q1 - 1 - q : 0);
  return k >= begin && k < end;
}

/// All arrays are [b][h][row][column], dense.
struct Reference {
  int64_t B, H, Hkv, Sq, Sk, D;
  std::vector<uint8_t> visiblePairs;  // [B][Sq][Sk]
  std::vector<double> out, lse, delta, dq, dk, dv;
  double largestScore = 0;
  /// The largest sums of absolute terms in dq and dk. Terms cancel: p (dOut · v − delta) is small where softmax is
  /// nearly one-hot, but its rounding error is that of its parts.
  double maxDqTermSum = 0, maxDkTermSum = 0;

  uint8_t& sees(int64_t b, int64_t i, int64_t j) { return visiblePairs[static_cast<size_t>((b * Sq + i) * Sk + j)]; }

  double& row(std::vector<double>& x, int64_t b, int64_t h, int64_t i) const {
    return x[static_cast<size_t>((b * H + h) * Sq + i)];
  }

  Reference(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& dOut,
            const std::vector<int64_t>& queryPositions, const std::vector<int64_t>& keyPositions,
            const std::vector<std::vector<Slice>>& masks, double scale)
      : B(q.shape(0)), H(q.shape(1)), Hkv(k.shape(1)), Sq(q.shape(2)), Sk(k.shape(2)), D(q.shape(3)) {
    visiblePairs.resize(static_cast<size_t>(B * Sq * Sk));
    for (int64_t b = 0; b < B; ++b) {
      for (int64_t i = 0; i < Sq; ++i) {
        for (int64_t j = 0; j < Sk; ++j) {
          for (const Slice& s : masks[static_cast<size_t>(b)])
            sees(b, i, j) |= isVisible(s, queryPositions[i], keyPositions[j]);
        }
      }
    }
    out.resize(static_cast<size_t>(B * H * Sq * D));
    dq = out;
    lse.resize(static_cast<size_t>(B * H * Sq));
    delta = lse;
    dk.resize(static_cast<size_t>(B * Hkv * Sk * D));
    dv = dk;
    dqTermSums_ = dq;
    dkTermSums_ = dk;
    for (int64_t b = 0; b < B; ++b) {
      for (int64_t h = 0; h < H; ++h) {
        for (int64_t i = 0; i < Sq; ++i) computeRow(q, k, v, dOut, b, h, i, scale);
      }
    }
    for (double x : dqTermSums_) maxDqTermSum = std::isfinite(x) ? std::max(maxDqTermSum, x) : maxDqTermSum;
    for (double x : dkTermSums_) maxDkTermSum = std::isfinite(x) ? std::max(maxDkTermSum, x) : maxDkTermSum;
  }

 private:
  std::vector<double> dqTermSums_, dkTermSums_;

  void computeRow(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& dOut, int64_t b, int64_t h,
                  int64_t i, double scale) {
    const int64_t kv = h / (H / Hkv);
    std::vector<int64_t> keys;
    std::vector<double> s;
    double m = -INFINITY, sum = 0;
    for (int64_t j = 0; j < Sk; ++j) {
      if (!sees(b, i, j)) continue;
      double dot = 0;
      for (int64_t d = 0; d < D; ++d) dot += q.get(b, h, i, d) * k.get(b, kv, j, d);
      keys.push_back(j);
      s.push_back(dot * scale);
      m = std::fmax(m, s.back());
      if (std::isfinite(s.back())) largestScore = std::max(largestScore, std::fabs(s.back()));
    }
    row(lse, b, h, i) = -INFINITY;
    if (keys.empty()) return;
    for (double x : s) sum += std::exp(x - m);
    row(lse, b, h, i) = m + std::log(sum);
    double* o = &out[static_cast<size_t>(((b * H + h) * Sq + i) * D)];
    std::vector<double> p(keys.size()), dp(keys.size());
    for (size_t t = 0; t < keys.size(); ++t) {
      p[t] = std::exp(s[t] - m) / sum;
      for (int64_t d = 0; d < D; ++d) {
        o[d] += p[t] * v.get(b, kv, keys[t], d);
        dp[t] += dOut.get(b, h, i, d) * v.get(b, kv, keys[t], d);
      }
    }
    double& rowDelta = row(delta, b, h, i);
    for (int64_t d = 0; d < D; ++d) rowDelta += o[d] * dOut.get(b, h, i, d);
    for (size_t t = 0; t < keys.size(); ++t) {
      const double ds = p[t] * (dp[t] - rowDelta) * scale,
                   absolute = p[t] * (std::fabs(dp[t]) + std::fabs(rowDelta)) * scale;
      const size_t keyOffset = static_cast<size_t>(((b * Hkv + kv) * Sk + keys[t]) * D);
      for (int64_t d = 0; d < D; ++d) {
        dv[keyOffset + static_cast<size_t>(d)] += p[t] * dOut.get(b, h, i, d);
        dk[keyOffset + static_cast<size_t>(d)] += ds * q.get(b, h, i, d);
        dkTermSums_[keyOffset + static_cast<size_t>(d)] += absolute * std::fabs(q.get(b, h, i, d));
        const size_t rowOffset = static_cast<size_t>(((b * H + h) * Sq + i) * D + d);
        dq[rowOffset] += ds * k.get(b, kv, keys[t], d);
        dqTermSums_[rowOffset] += absolute * std::fabs(k.get(b, kv, keys[t], d));
      }
    }
  }
};

}  // namespace mosaic::check
