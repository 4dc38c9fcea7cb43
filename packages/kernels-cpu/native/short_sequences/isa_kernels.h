// Attention of as many short sequences as a vector has lanes. Included by kernels_<isa>.cc only, see simd/isa.h.
#pragma once

#include "kernels/math.h"
#include "short_sequences/kernels.h"
#include "simd/elements.h"
#include "simd/inline.h"

namespace mosaic {
namespace {

/// Calls body.template operator()<R>(row) for tiles that cover rows [from, to): R rows each while they fit, then half
/// of R.
template <int R, class Body>
MOSAIC_INLINE void forEachShortSequenceTile(int32_t from, int32_t to, const Body &body) {
  for (; from + R <= to; from += R) body.template operator()<R>(from);
  if constexpr (R > 1) {
    if (from < to) forEachShortSequenceTile<R / 2>(from, to, body);
  }
}

/// The rows of one head of `lanes` sequences, in memory.
template <class V>
struct ShortSequenceRows {
  char* data[V::lanes];
  DType dtype;
  int64_t rowStride;  // bytes

  /// Returns the rows of query head `own` of each group, or of the key head itself (group 1, own 0). Lanes past the
  /// last sequence repeat it.
  MOSAIC_INLINE ShortSequenceRows of(const TensorView &x, const ShortSequenceShape &shape,
                                     const ShortSequenceRange &range, int32_t group, int32_t own) {
    ShortSequenceRows rows;
    rows.dtype = x.dtype;
    const int64_t size = x.dtype == DType::Float32 ? 4 : 2;
    rows.rowStride = x.stride[2] * size;
    for (int32_t lane = 0; lane < V::lanes; ++lane) {
      const int64_t sequence = range.first + (lane < range.count ? lane : range.count - 1);
      const int64_t batch = sequence / shape.keyHeads, head = sequence % shape.keyHeads * group + own;
      rows.data[lane] = static_cast<char*>(x.data) + (batch * x.stride[0] + head * x.stride[1]) * size;
    }
    return rows;
  }
  MOSAIC_INLINE float &at(const ShortSequenceRows &rows, int32_t lane, int32_t row) {
    return *reinterpret_cast<float*>(rows.data[lane] + row * rows.rowStride);
  }
};

template <class V>
struct ShortSequenceAttention {
  using Vec = typename V::Vec;
  using Rows = ShortSequenceRows<V>;
  static constexpr int L = V::lanes;

  static constexpr float kLog2e = 1.44269504088896341f;

  /// buffer[row][lane][d] ← rows, multiplied by factor; zeros from depth to stride.
  MOSAIC_INLINE void unpackRows(const ShortSequenceShape &shape, const Rows &rows, DType dtype, int32_t count,
                                Vec factor, float *buffer) {
    const int64_t elementBytes = dtype == DType::Float32 ? 4 : 2;
    for (int32_t lane = 0; lane < L; ++lane) {
      for (int32_t r = 0; r < count; ++r) {
        float* row = buffer + (r * L + lane) * shape.stride;
        const char* from = rows.data[lane] + r * rows.rowStride;
        for (int32_t c = 0; c < shape.stride; c += L) {
          const int n = shape.depth - c < L ? shape.depth - c : L;
          V::store(row + c, V::mul(loadElements<V>(dtype, from + c * elementBytes, 1, n), factor));
        }
      }
    }
  }

  /// to[row][d][lane] ← rows, multiplied by factor. `buffer` has room for all rows.
  MOSAIC_NOINLINE void load(const ShortSequenceShape &shape, const Rows &rows, int32_t count, float factor,
                            float *buffer, float *to) {
    // A separate loop in which the dtype is a compile-time constant.
    if (rows.dtype == DType::Float32) {
      unpackRows(shape, rows, DType::Float32, count, V::set1(factor), buffer);
    } else {
      unpackRows(shape, rows, rows.dtype, count, V::set1(factor), buffer);
    }
    for (int32_t r = 0; r < count; ++r) {
      for (int32_t c = 0; c < shape.stride; c += L) {
        V::transpose(buffer + r * L * shape.stride + c, shape.stride, to + (r * shape.stride + c) * L, L);
      }
    }
  }

  /// buffer[row][lane][d] ← from[row][d][lane]
  MOSAIC_INLINE void transposeToRows(const ShortSequenceShape &shape, int32_t count, const float *from, float *buffer) {
    for (int32_t r = 0; r < count; ++r) {
      for (int32_t c = 0; c < shape.stride; c += L) {
        V::transpose(from + (r * shape.stride + c) * L, L, buffer + r * L * shape.stride + c, shape.stride);
      }
    }
  }

  /// to ← x, or to + x if `add`.
  MOSAIC_INLINE void storeOrAddRow(float *to, const float *x, int32_t depth, bool add) {
    int32_t c = 0;
    for (; c + L <= depth; c += L) {
      const Vec y = V::load(x + c);
      V::store(to + c, add ? V::add(V::load(to + c), y) : y);
    }
    if (c < depth) {
      const Vec y = V::load(x + c);
      V::storePartial(to + c, add ? V::add(V::loadPartial(to + c, depth - c), y) : y, depth - c);
    }
  }

  /// rows += from, for the lanes that have a sequence.
  MOSAIC_NOINLINE void addRows(const ShortSequenceShape &shape, const Rows &rows, const ShortSequenceRange &range,
                               int32_t count, const float *from, float *buffer) {
    transposeToRows(shape, count, from, buffer);
    for (int32_t lane = 0; lane < range.count; ++lane) {
      for (int32_t r = 0; r < count; ++r) {
        storeOrAddRow(&Rows::at(rows, lane, r), buffer + (r * L + lane) * shape.stride, shape.depth, true);
      }
    }
  }

  /// to[row][lane] ← one number per row, such as lse.
  MOSAIC_INLINE void loadColumn(const Rows& rows, int32_t count, float* to) {
    for (int32_t r = 0; r < count; ++r) {
      for (int32_t lane = 0; lane < L; ++lane) to[r * L + lane] = Rows::at(rows, lane, r);
    }
  }

  MOSAIC_INLINE int32_t roundedDepth(const ShortSequenceShape &shape) { return (shape.depth + 3) / 4 * 4; }

  /// products[i][j] ← Σ_d a[i][d] · b[j][d], also for masked pairs, whose products are not used.
  MOSAIC_NOINLINE void dots(const ShortSequenceShape &shape, const float *a, const float *b, float *products) {
    const int64_t row = int64_t{shape.stride} * L;
    forEachShortSequenceTile<2>(0, shape.rows, [&]<int R>(int32_t i) {
      forEachShortSequenceTile<4>(0, shape.keys, [&]<int C>(int32_t j) {
        Vec sum[R][C];
#pragma GCC unroll 2
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
          for (int c = 0; c < C; ++c) sum[r][c] = V::zero();
        }
        const float *x = a + i * row, *y = b + j * row;
        for (int32_t d = 0; d < shape.depth; ++d, x += L, y += L) {
          Vec key[C];
#pragma GCC unroll 4
          for (int c = 0; c < C; ++c) key[c] = V::load(y + c * row);
#pragma GCC unroll 2
          for (int r = 0; r < R; ++r) {
            const Vec query = V::load(x + r * row);
#pragma GCC unroll 4
            for (int c = 0; c < C; ++c) sum[r][c] = V::fma(query, key[c], sum[r][c]);
          }
        }
#pragma GCC unroll 2
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
          for (int c = 0; c < C; ++c) V::store(products + ((i + r) * shape.keys + j + c) * L, sum[r][c]);
        }
      });
    });
  }

  /// The layout of weights in a weighted sum: the rows of the result, and the terms of each sum.
  struct SumLayout {
    int32_t results, terms;
    int32_t resultStep, termStep;  // strides in [rows][keys]
  };
  MOSAIC_INLINE SumLayout sumLayoutOverKeys(const ShortSequenceShape &shape) {
    return {shape.rows, shape.keys, shape.keys, 1};
  }
  MOSAIC_INLINE SumLayout sumLayoutOverRows(const ShortSequenceShape &shape) {
    return {shape.keys, shape.rows, 1, shape.keys};
  }

  /// out[i][d] += Σ_t weights[i][t] · x[t][d] over the terms t visible to i.
  MOSAIC_NOINLINE void addWeightedRows(const ShortSequenceShape &shape, const SumLayout &terms, const float *weights,
                                       const float *x, float *out) {
    const int64_t row = int64_t{shape.stride} * L;
    const int32_t depth = roundedDepth(shape);
    const auto tile = [&]<int R>(int32_t i) {
      for (int32_t d = 0; d < depth; d += 4) {
        Vec sum[R][4];
#pragma GCC unroll 2
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
          for (int c = 0; c < 4; ++c) sum[r][c] = V::load(out + (i + r) * row + (d + c) * L);
        }
        for (int32_t t = 0; t < terms.terms; ++t) {
          const int32_t pair = i * terms.resultStep + t * terms.termStep;
          if (shape.visible && !shape.visible[pair]) continue;  // R is 1 in this case
          Vec y[4];
#pragma GCC unroll 4
          for (int c = 0; c < 4; ++c) y[c] = V::load(x + t * row + (d + c) * L);
#pragma GCC unroll 2
          for (int r = 0; r < R; ++r) {
            const Vec weight = V::load(weights + (pair + r * terms.resultStep) * L);
#pragma GCC unroll 4
            for (int c = 0; c < 4; ++c) sum[r][c] = V::fma(weight, y[c], sum[r][c]);
          }
        }
#pragma GCC unroll 2
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
          for (int c = 0; c < 4; ++c) V::store(out + (i + r) * row + (d + c) * L, sum[r][c]);
        }
      }
    };
    if (shape.visible) {
      forEachShortSequenceTile<1>(0, terms.results, tile);
    } else {
      forEachShortSequenceTile<2>(0, terms.results, tile);
    }
  }

  MOSAIC_INLINE bool isVisible(const ShortSequenceShape &shape, int32_t row, int32_t key) {
    return !shape.visible || shape.visible[row * shape.keys + key];
  }
  MOSAIC_INLINE bool hasVisibleKeys(const ShortSequenceShape &shape, int32_t row) {
    for (int32_t j = 0; j < shape.keys; ++j) {
      if (isVisible(shape, row, j)) return true;
    }
    return false;
  }

  /// Replaces the scores of a row by e^(s − m) and returns their sum, including `weight`, the weight of the previous
  /// state. Differences are computed before the multiplication by log2 e, so that large scores lose no precision.
  MOSAIC_INLINE Vec softmaxRow(const ShortSequenceShape &shape, int32_t i, float *scores, float *lse, Vec &weight) {
    float* row = scores + i * shape.keys * L;
    const Vec negInf = V::set1(-__builtin_inff()), state = V::load(lse + i * L), log2e = V::set1(kLog2e);
    Vec m = state;
    for (int32_t j = 0; j < shape.keys; ++j) {
      if (isVisible(shape, i, j)) m = V::max(m, V::load(row + j * L));
    }
    m = V::select(V::lessThan(negInf, m), m, V::zero());  // only −∞ so far; a NaN is propagated by the scores
    weight = V::exp2(V::mul(V::sub(state, m), log2e));
    Vec sum = weight;
    for (int32_t j = 0; j < shape.keys; ++j) {
      if (!isVisible(shape, i, j)) continue;
      const Vec p = V::exp2(V::mul(V::sub(V::load(row + j * L), m), log2e));
      V::store(row + j * L, p);
      sum = V::add(sum, p);
    }
    V::store(lse + i * L, V::add(m, logOf<V>(sum)));
    return sum;
  }

  // [buffer][q][out][k][v][scores][lse][sum]
  static int64_t forwardScratchFloats(const ShortSequenceShape &s) {
    const int64_t row = int64_t{s.stride} * L, maxRows = s.rows > s.keys ? s.rows : s.keys;
    return (maxRows + 2 * s.rows + 2 * s.keys) * row + int64_t{s.rows} * s.keys * L + 2 * int64_t{s.rows} * L;
  }

  MOSAIC_NOINLINE void forward(const AttendArguments &args, const ShortSequenceShape &shape,
                               const ShortSequenceRange &range, float *scratch) {
    const int64_t row = int64_t{shape.stride} * L, maxRows = shape.rows > shape.keys ? shape.rows : shape.keys;
    float *buffer = scratch, *q = buffer + maxRows * row, *out = q + shape.rows * row, *k = out + shape.rows * row;
    float *v = k + shape.keys * row, *scores = v + shape.keys * row;
    float *lse = scores + int64_t{shape.rows} * shape.keys * L, *sums = lse + shape.rows * L;
    load(shape, Rows::of(args.kv.k, shape, range, 1, 0), shape.keys, 1, buffer, k);
    load(shape, Rows::of(args.kv.v, shape, range, 1, 0), shape.keys, 1, buffer, v);
    for (int32_t g = 0; g < shape.group; ++g) {
      const Rows outRows = Rows::of(args.state.out, shape, range, shape.group, g);
      const Rows lseRows = Rows::of(args.state.lse, shape, range, shape.group, g);
      load(shape, Rows::of(args.q, shape, range, shape.group, g), shape.rows, args.tile.scale, buffer, q);
      loadColumn(lseRows, shape.rows, lse);
      loadState(shape, outRows, lse, buffer, out);
      dots(shape, q, k, scores);
      for (int32_t i = 0; i < shape.rows; ++i) {
        Vec oldWeight = V::zero();
        V::store(sums + i * L, hasVisibleKeys(shape, i) ? softmaxRow(shape, i, scores, lse, oldWeight) : V::zero());
        for (int32_t d = 0; d < roundedDepth(shape); ++d) {
          float* outLanes = out + i * row + d * L;
          V::store(outLanes, V::mul(V::load(outLanes), oldWeight));
        }
      }
      addWeightedRows(shape, sumLayoutOverKeys(shape), scores, v, out);
      for (int32_t i = 0; i < shape.rows; ++i) {
        const Vec inverse = V::div(V::set1(1), V::load(sums + i * L));
        for (int32_t d = 0; d < roundedDepth(shape); ++d) {
          float* outLanes = out + i * row + d * L;
          V::store(outLanes, V::mul(V::load(outLanes), inverse));
        }
      }
      storeState(shape, range, {outRows, lseRows}, {out, lse, sums}, buffer);
    }
  }

  /// Loads the previous state; `out` of a row without visible keys so far is not read.
  MOSAIC_INLINE void loadState(const ShortSequenceShape &shape, const Rows &rows, const float *lse, float *buffer,
                               float *out) {
    const Vec negInf = V::set1(-__builtin_inff());
    bool hasState = false;
    for (int32_t i = 0; i < shape.rows * L; ++i) hasState |= !(lse[i] == -__builtin_inff());
    if (!hasState) {
      for (int64_t i = 0; i < int64_t{shape.rows} * shape.stride * L; i += L) V::store(out + i, V::zero());
      return;
    }
    load(shape, rows, shape.rows, 1, buffer, out);
    for (int32_t i = 0; i < shape.rows; ++i) {
      const auto hasSeenKeys = V::lessThan(negInf, V::load(lse + i * L));
      for (int32_t d = 0; d < shape.stride; ++d) {
        float* outLanes = out + (i * shape.stride + d) * L;
        V::store(outLanes, V::select(hasSeenKeys, V::load(outLanes), V::zero()));
      }
    }
  }

  struct StateRows {
    const Rows &out, &lse;
  };
  struct StateLanes {
    const float *out, *lse, *sums;
  };
  /// Stores the state. A row whose sum is 0 attended to no key, or only to scores of −∞, and is left unchanged.
  MOSAIC_INLINE void storeState(const ShortSequenceShape &shape, const ShortSequenceRange &range, const StateRows &rows,
                                const StateLanes &lanes, float *buffer) {
    transposeToRows(shape, shape.rows, lanes.out, buffer);
    for (int32_t lane = 0; lane < range.count; ++lane) {
      for (int32_t r = 0; r < shape.rows; ++r) {
        if (lanes.sums[r * L + lane] == 0) continue;
        storeOrAddRow(&Rows::at(rows.out, lane, r), buffer + (r * L + lane) * shape.stride, shape.depth, false);
        Rows::at(rows.lse, lane, r) = lanes.lse[r * L + lane];
      }
    }
  }

  // [buffer][q][dOut][dq][k][v][dk][dv][p][ds][lse][delta]
  static int64_t backwardScratchFloats(const ShortSequenceShape &s) {
    const int64_t row = int64_t{s.stride} * L, maxRows = s.rows > s.keys ? s.rows : s.keys;
    return (maxRows + 3 * s.rows + 4 * s.keys) * row + 2 * int64_t{s.rows} * s.keys * L + 2 * int64_t{s.rows} * L;
  }

  MOSAIC_INLINE void clear(float* x, int64_t count) {
    for (int64_t i = 0; i < count; i += L) V::store(x + i, V::zero());
  }

  MOSAIC_NOINLINE void backward(const AttendBackwardArguments &args, const ShortSequenceShape &shape,
                                const ShortSequenceRange &range, float *scratch) {
    const int64_t row = int64_t{shape.stride} * L, maxRows = shape.rows > shape.keys ? shape.rows : shape.keys;
    const int64_t queries = shape.rows * row, keys = shape.keys * row, pairs = int64_t{shape.rows} * shape.keys * L;
    float *buffer = scratch, *q = buffer + maxRows * row, *dOut = q + queries, *dq = dOut + queries, *k = dq + queries;
    float *v = k + keys, *dk = v + keys, *dv = dk + keys, *p = dv + keys, *ds = p + pairs, *lse = ds + pairs;
    float* delta = lse + shape.rows * L;
    load(shape, Rows::of(args.kv.k, shape, range, 1, 0), shape.keys, 1, buffer, k);
    load(shape, Rows::of(args.kv.v, shape, range, 1, 0), shape.keys, 1, buffer, v);
    clear(dk, 2 * keys);
    for (int32_t g = 0; g < shape.group; ++g) {
      load(shape, Rows::of(args.q, shape, range, shape.group, g), shape.rows, args.tile.scale, buffer, q);
      load(shape, Rows::of(args.saved.dOut, shape, range, shape.group, g), shape.rows, 1, buffer, dOut);
      loadColumn(Rows::of(args.saved.lse, shape, range, shape.group, g), shape.rows, lse);
      loadColumn(Rows::of(args.saved.delta, shape, range, shape.group, g), shape.rows, delta);
      dots(shape, q, k, p);
      dots(shape, dOut, v, ds);
      for (int32_t i = 0; i < shape.rows; ++i) gradientRow(shape, i, {p, ds}, {lse, delta});
      clear(dq, queries);
      addWeightedRows(shape, sumLayoutOverKeys(shape), ds, k, dq);
      addWeightedRows(shape, sumLayoutOverRows(shape), ds, q, dk);
      addWeightedRows(shape, sumLayoutOverRows(shape), p, dOut, dv);
      const Vec scale = V::set1(args.tile.scale);
      for (int64_t i = 0; i < queries; i += L) V::store(dq + i, V::mul(V::load(dq + i), scale));
      addRows(shape, Rows::of(args.grads.dq, shape, range, shape.group, g), range, shape.rows, dq, buffer);
    }
    addRows(shape, Rows::of(args.grads.dk, shape, range, 1, 0), range, shape.keys, dk, buffer);
    addRows(shape, Rows::of(args.grads.dv, shape, range, 1, 0), range, shape.keys, dv, buffer);
  }

  struct PairLanes {
    float *p, *ds;
  };
  struct RowLanes {
    const float *lse, *delta;
  };
  /// Replaces scores by p = e^(s − lse), 0 for a row without visible keys, and dOut · v by ds = p (dOut · v − delta).
  MOSAIC_INLINE void gradientRow(const ShortSequenceShape &shape, int32_t i, const PairLanes &pairs,
                                 const RowLanes &rows) {
    const Vec lse = V::load(rows.lse + i * L), delta = V::load(rows.delta + i * L);
    const Vec lseOrInf = V::select(V::lessThan(lse, V::set1(-__FLT_MAX__)), V::set1(__builtin_inff()), lse);
    for (int32_t j = 0; j < shape.keys; ++j) {
      if (!isVisible(shape, i, j)) continue;
      const int32_t pair = (i * shape.keys + j) * L;
      const Vec p = V::exp2(V::mul(V::sub(V::load(pairs.p + pair), lseOrInf), V::set1(kLog2e)));
      V::store(pairs.p + pair, p);
      V::store(pairs.ds + pair, V::mul(p, V::sub(V::load(pairs.ds + pair), delta)));
    }
  }
};

template <class V>
constexpr ShortSequenceKernels makeShortSequenceKernels() {
  using Attention = ShortSequenceAttention<V>;
  return {V::lanes, Attention::forwardScratchFloats, Attention::backwardScratchFloats, Attention::forward,
          Attention::backward};
}

}  // namespace
}  // namespace mosaic
