// Kernels in which a warp processes a row.
#include "kernels/rows.h"

#include "kernels/element.cuh"

namespace mosaic::cuda {

/// Calls body(offsets) with the offsets of each of the warp's rows; rows are distributed over the warps of the grid.
template <int N, class Body>
DEVICE void forEachRow(const Rows<N>& rowLayout, Body body) {
  const int64_t warps = static_cast<int64_t>(gridDim.x) * (blockDim.x / 32);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
#pragma unroll 1
  for (int64_t row = first; row < rowLayout.rows.extent.count; row += warps) {
    int64_t offset[N];
    offsetsOf(rowLayout.rows.extent, rowLayout.rows.operand, row, offset);
    body(offset);
  }
}

/// Loads WIDTH elements of a row from element i on; elements are `step` apart.
template <int WIDTH>
DEVICE Raw<WIDTH> loadRow(const Operand& x, int64_t row, int64_t step, int i) {
  return Raw<WIDTH>::load(x, WIDTH == 1 ? row + i * step : row + i);
}
template <int WIDTH>
DEVICE void storeRow(const Operand& x, int64_t row, int64_t step, int i, const float (&v)[WIDTH]) {
  if constexpr (WIDTH == 1)
    storeElement(x, row + i * step, v[0]);
  else
    storeVector(x, row + i, v);
}
/// Loads values of a per-column operand, or `defaultValue` if it is absent.
template <int WIDTH>
DEVICE void loadColumns(const Operand& x, int i, float defaultValue, float (&v)[WIDTH]) {
  if (x.data) return loadRow<WIDTH>(x, 0, x.stride[0], i).decode(x.dtype, v);
#pragma unroll
  for (float& element : v) element = defaultValue;
}

/// Calls use(i, load(i)) for the groups i, i + 1, … i + WIDTH − 1 of a row that belong to this lane, with several loads
/// in flight. Past the end, the last elements are loaded again but not used.
template <int WIDTH, class Load, class Use>
DEVICE void forEachInRow(int length, Load load, Use use) {
  constexpr int kLoads = 2, kStride = 32 * WIDTH;
#pragma unroll 1
  for (int i = threadIdx.x % 32 * WIDTH; i < length; i += kLoads * kStride) {
    decltype(load(i)) loadedValues[kLoads];
#pragma unroll
    for (int j = 0; j < kLoads; j++) loadedValues[j] = load(min(i + j * kStride, length - WIDTH));
#pragma unroll
    for (int j = 0; j < kLoads; j++) {
      if (i + j * kStride < length) use(i + j * kStride, loadedValues[j]);
    }
  }
}

/// Returns the sum over a row of the values that value(i, load(i), v) writes to v for elements i, i + 1, …
template <int WIDTH, class Load, class Value>
DEVICE float sumOverRow(int length, Load load, Value value) {
  float sum = 0;
  forEachInRow<WIDTH>(length, load, [&](int i, const auto& loadedValue) {
    float v[WIDTH];
    value(i, loadedValue, v);
#pragma unroll
    for (const float element : v) sum += element;
  });
  return warpSum(sum);
}

template <int WIDTH, class Load, class Value>
DEVICE float maxOverRow(int length, Load load, Value value) {
  float maxValue = -infinity();
  forEachInRow<WIDTH>(length, load, [&](int i, const auto& loadedValue) {
    float v[WIDTH];
    value(i, loadedValue, v);
#pragma unroll
    for (const float element : v) maxValue = fmaxf(maxValue, element);
  });
  return warpMax(maxValue);
}

/// Whether `value` is a valid index below `count`; otherwise records it, if it is the first invalid one.
DEVICE bool checkIndex(float value, int64_t count, BadIndex* badIndex, IndexKernel kernel) {
  // Compared as integers, because `count` as a float may be rounded down. Below 2^63 the conversion is defined.
  const bool isInteger = value >= 0.f && value < 0x1p63f && value == floorf(value);
  if (isInteger && static_cast<int64_t>(value) < count) return true;
  if (atomicTestAndSet(&badIndex->found)) {
    store(&badIndex->value, value);
    store(&badIndex->count, count);
    store(&badIndex->kernel, kernel);
  }
  return false;
}

}  // namespace mosaic::cuda

using namespace mosaic;
using namespace mosaic::cuda;

namespace {

// Kernels on rows, for single elements or vectors of kVectorLength (WIDTH).

template <int WIDTH>
struct RawPair {
  Raw<WIDTH> a, b;
};

/// A row of −∞ results in 0.
template <int WIDTH>
DEVICE void softmaxRows(const SoftmaxParameters& p) {
  const auto& [out, x] = p.layout.rows.operand;
  const auto& step = p.layout.step;
  const int n = p.layout.length;
  forEachRow(p.layout, [&](const int64_t(&at)[2]) {
    const auto load = [&](int i) { return loadRow<WIDTH>(x, at[1], step[1], i); };
    const auto decode = [&](int, const Raw<WIDTH>& raw, float(&v)[WIDTH]) { raw.decode(x.dtype, v); };
    const float maxValue = maxOverRow<WIDTH>(n, load, decode);
    const float base = maxValue == -infinity() ? 0.f : maxValue;
    const auto weights = [&](int, const Raw<WIDTH>& raw, float(&v)[WIDTH]) {
      raw.decode(x.dtype, v);
#pragma unroll
      for (float& element : v) element = expf(element - base);
    };
    const float sum = sumOverRow<WIDTH>(n, load, weights);
    const float inverse = sum == 0.f ? 0.f : 1.f / sum;
    forEachInRow<WIDTH>(n, load, [&](int i, const Raw<WIDTH>& raw) {
      float v[WIDTH];
      weights(i, raw, v);
#pragma unroll
      for (float& element : v) element *= inverse;
      storeRow(out, at[0], step[0], i, v);
    });
  });
}

template <int WIDTH>
DEVICE void softmaxBackwardRows(const SoftmaxBackwardParameters& p) {
  const auto& [dx, out, dOut] = p.layout.rows.operand;
  const auto& step = p.layout.step;
  const int n = p.layout.length;
  forEachRow(p.layout, [&](const int64_t(&at)[3]) {
    const auto load = [&](int i) {
      return RawPair<WIDTH>{loadRow<WIDTH>(out, at[1], step[1], i), loadRow<WIDTH>(dOut, at[2], step[2], i)};
    };
    const auto multiply = [&](const RawPair<WIDTH>& raw, float subtrahend, float(&v)[WIDTH]) {
      float dy[WIDTH];
      raw.a.decode(out.dtype, v);
      raw.b.decode(dOut.dtype, dy);
#pragma unroll
      for (int w = 0; w < WIDTH; w++) v[w] *= dy[w] - subtrahend;
    };
    const auto product = [&](int, const RawPair<WIDTH>& raw, float(&v)[WIDTH]) { multiply(raw, 0.f, v); };
    const float dot = sumOverRow<WIDTH>(n, load, product);
    forEachInRow<WIDTH>(n, load, [&](int i, const RawPair<WIDTH>& raw) {
      float v[WIDTH];
      multiply(raw, dot, v);
      storeRow(dx, at[0], step[0], i, v);
    });
  });
}

template <int WIDTH>
DEVICE void rowDotRows(const RowDotParameters& p) {
  const auto& [out, a, b] = p.layout.rows.operand;
  const auto& step = p.layout.step;
  forEachRow(p.layout, [&](const int64_t(&at)[3]) {
    const auto load = [&](int i) {
      return RawPair<WIDTH>{loadRow<WIDTH>(a, at[1], step[1], i), loadRow<WIDTH>(b, at[2], step[2], i)};
    };
    const auto product = [&](int, const RawPair<WIDTH>& raw, float(&v)[WIDTH]) {
      float factor[WIDTH];
      raw.a.decode(a.dtype, v);
      raw.b.decode(b.dtype, factor);
#pragma unroll
      for (int w = 0; w < WIDTH; w++) v[w] *= factor[w];
    };
    const float dot = sumOverRow<WIDTH>(p.layout.length, load, product);
    if (threadIdx.x % 32 == 0) storeElement(out, at[0], dot);
  });
}

template <int WIDTH>
DEVICE void normalizeRows(const NormParameters& p) {
  const auto& [out, x, mean, rstd] = p.layout.rows.operand;
  const auto& step = p.layout.step;
  const int n = p.layout.length;
  const float inverseLength = 1.f / static_cast<float>(n);
  forEachRow(p.layout, [&](const int64_t(&at)[4]) {
    const auto load = [&](int i) { return loadRow<WIDTH>(x, at[1], step[1], i); };
    const auto decode = [&](int, const Raw<WIDTH>& raw, float(&v)[WIDTH]) { raw.decode(x.dtype, v); };
    const float center = mean.data ? sumOverRow<WIDTH>(n, load, decode) * inverseLength : 0.f;
    const auto square = [&](int, const Raw<WIDTH>& raw, float(&v)[WIDTH]) {
      raw.decode(x.dtype, v);
#pragma unroll
      for (float& element : v) element = (element - center) * (element - center);
    };
    const float scale = 1.f / sqrtf(sumOverRow<WIDTH>(n, load, square) * inverseLength + p.epsilon);
    forEachInRow<WIDTH>(n, load, [&](int i, const Raw<WIDTH>& raw) {
      float v[WIDTH], weight[WIDTH], bias[WIDTH];
      raw.decode(x.dtype, v);
      loadColumns(p.weight, i, 1.f, weight);
      loadColumns(p.bias, i, 0.f, bias);
#pragma unroll
      for (int w = 0; w < WIDTH; w++) v[w] = (v[w] - center) * scale * weight[w] + bias[w];
      storeRow(out, at[0], step[0], i, v);
    });
    if (threadIdx.x % 32 != 0) return;
    if (mean.data) storeElement(mean, at[2], center);
    storeElement(rstd, at[3], scale);
  });
}

/// With x̂ = (x − mean) · rstd and g = dOut · weight: dx = rstd · (g − mean g − x̂ · mean(g · x̂)). RMSNorm: no mean g.
template <int WIDTH>
DEVICE void normalizeBackwardRows(const NormBackwardParameters& p) {
  const auto& [dx, x, dOut, mean, rstd] = p.layout.rows.operand;
  const auto& step = p.layout.step;
  const int n = p.layout.length;
  const float inverseLength = 1.f / static_cast<float>(n);
  forEachRow(p.layout, [&](const int64_t(&at)[5]) {
    const float center = mean.data ? loadElement(mean, at[3]) : 0.f, scale = loadElement(rstd, at[4]);
    const auto load = [&](int i) {
      return RawPair<WIDTH>{loadRow<WIDTH>(x, at[1], step[1], i), loadRow<WIDTH>(dOut, at[2], step[2], i)};
    };
    const auto loadWeightedGradient = [&](int i, const RawPair<WIDTH>& raw, float(&g)[WIDTH]) {
      float weight[WIDTH];
      raw.b.decode(dOut.dtype, g);
      loadColumns(p.weight, i, 1.f, weight);
#pragma unroll
      for (int w = 0; w < WIDTH; w++) g[w] *= weight[w];
    };
    const auto loadNormalized = [&](const RawPair<WIDTH>& raw, float(&v)[WIDTH]) {
      raw.a.decode(x.dtype, v);
#pragma unroll
      for (float& element : v) element = (element - center) * scale;
    };
    const float gradientMean = mean.data ? sumOverRow<WIDTH>(n, load, loadWeightedGradient) * inverseLength : 0.f;
    const auto project = [&](int i, const RawPair<WIDTH>& raw, float(&v)[WIDTH]) {
      float g[WIDTH];
      loadNormalized(raw, v);
      loadWeightedGradient(i, raw, g);
#pragma unroll
      for (int w = 0; w < WIDTH; w++) v[w] *= g[w];
    };
    const float xProjection = sumOverRow<WIDTH>(n, load, project) * inverseLength;
    forEachInRow<WIDTH>(n, load, [&](int i, const RawPair<WIDTH>& raw) {
      float v[WIDTH], g[WIDTH];
      loadNormalized(raw, v);
      loadWeightedGradient(i, raw, g);
#pragma unroll
      for (int w = 0; w < WIDTH; w++) v[w] = scale * (g[w] - gradientMean - v[w] * xProjection);
      storeRow(dx, at[0], step[0], i, v);
    });
  });
}

/// (1 − s)(lse − x[class]) + s (lse − mean x). Differences are relative to the largest x, which reduces cancellation.
template <int WIDTH>
DEVICE void crossEntropyRows(const CrossEntropyParameters& p) {
  const auto& [x, loss, lse, counted, target] = p.layout.rows.operand;
  const int n = p.layout.length;
  const int64_t step = p.layout.step[0];
  forEachRow(p.layout, [&](const int64_t(&at)[5]) {
    const auto load = [&](int i) { return loadRow<WIDTH>(x, at[0], step, i); };
    const auto decode = [&](int, const Raw<WIDTH>& raw, float(&v)[WIDTH]) { raw.decode(x.dtype, v); };
    const float targetClass = loadElement(target, at[4]);
    const bool isCounted =
        targetClass != p.ignored && checkIndex(targetClass, n, p.badIndex, IndexKernel::CrossEntropy);
    const float maxValue = maxOverRow<WIDTH>(n, load, decode);
    const auto weights = [&](int, const Raw<WIDTH>& raw, float(&v)[WIDTH]) {
      raw.decode(x.dtype, v);
#pragma unroll
      for (float& element : v) element = expf(element - maxValue);
    };
    const float logSum = logf(sumOverRow<WIDTH>(n, load, weights));
    const auto distances = [&](int, const Raw<WIDTH>& raw, float(&v)[WIDTH]) {
      raw.decode(x.dtype, v);
#pragma unroll
      for (float& element : v) element = maxValue - element;
    };
    const float meanDistance =
        p.smoothing > 0.f ? sumOverRow<WIDTH>(n, load, distances) / static_cast<float>(n) : 0.f;
    if (threadIdx.x % 32 != 0) return;
    float rowLoss = 0.f;
    if (isCounted) {
      const float targetValue = loadElement(x, at[0] + static_cast<int64_t>(targetClass) * step);
      rowLoss = (maxValue - targetValue) + logSum;
      if (p.smoothing > 0.f) rowLoss = (1.f - p.smoothing) * rowLoss + p.smoothing * (meanDistance + logSum);
    }
    storeElement(loss, at[1], rowLoss);
    storeElement(lse, at[2], isCounted ? maxValue + logSum : 0.f);
    storeElement(counted, at[3], isCounted ? 1.f : 0.f);
  });
}

/// Above this magnitude, lse in float32 has a rounding error of more than 1e-6: the relative error of exp(x − lse).
constexpr float kMaxAccurateLse = 16;

/// dx ← dLoss · (p − (1 − s) [class] − s / C) with p = exp(x − lse). For an lse that is not accurate, p is divided by
/// its sum over the row, which differs from 1 by the error of lse.
template <int WIDTH>
DEVICE void crossEntropyBackwardRows(const CrossEntropyBackwardParameters& p) {
  const auto& [dx, x, target, lse, dLoss] = p.layout.rows.operand;
  const int n = p.layout.length;
  const auto& step = p.layout.step;
  const float smoothingShare = p.smoothing / static_cast<float>(n);
  forEachRow(p.layout, [&](const int64_t(&at)[5]) {
    const float targetClass = loadElement(target, at[2]);
    const bool isCounted =
        targetClass != p.ignored && checkIndex(targetClass, n, p.badIndex, IndexKernel::CrossEntropyBackward);
    // Compared as integers, because float32 cannot represent all columns from 2^24 on.
    const int targetColumn = isCounted ? static_cast<int>(targetClass) : -1;
    const float scale = isCounted ? loadElement(dLoss, at[4]) : 0.f, rowLse = loadElement(lse, at[3]);
    const auto load = [&](int i) { return loadRow<WIDTH>(x, at[1], step[1], i); };
    const auto weights = [&](int, const Raw<WIDTH>& raw, float(&v)[WIDTH]) {
      raw.decode(x.dtype, v);
#pragma unroll
      for (float& element : v) element = expf(element - rowLse);
    };
    const bool isDivided = isCounted && !(fabsf(rowLse) <= kMaxAccurateLse);
    const float inverseSum = isDivided ? 1.f / sumOverRow<WIDTH>(n, load, weights) : 1.f;
    forEachInRow<WIDTH>(n, load, [&](int i, const Raw<WIDTH>& raw) {
      float v[WIDTH];
      raw.decode(x.dtype, v);
#pragma unroll
      for (int w = 0; w < WIDTH; w++) {
        const float targetProbability = (i + w == targetColumn ? 1.f - p.smoothing : 0.f) + smoothingShare;
        v[w] = isCounted ? scale * (expf(v[w] - rowLse) * inverseSum - targetProbability) : 0.f;
      }
      storeRow(dx, at[0], step[0], i, v);
    });
  });
}

template <int WIDTH>
DEVICE void gatherSelectedRows(const GatherRowsParameters& p) {
  const auto& [out, index] = p.layout.rows.operand;
  forEachRow(p.layout, [&](const int64_t(&at)[2]) {
    const float rowIndex = loadElement(index, at[1]);
    if (!checkIndex(rowIndex, p.count, p.badIndex, IndexKernel::GatherRows)) return;
    const int64_t from = static_cast<int64_t>(rowIndex) * p.table.stride[0];
    const auto load = [&](int i) { return loadRow<WIDTH>(p.table, from, p.table.stride[1], i); };
    forEachInRow<WIDTH>(p.layout.length, load, [&](int i, const Raw<WIDTH>& raw) {
      float v[WIDTH];
      raw.decode(p.table.dtype, v);
      storeRow(out, at[0], p.layout.step[0], i, v);
    });
  });
}

template <int WIDTH>
DEVICE void scatterAddSelectedRows(const ScatterAddRowsParameters& p) {
  const auto& [x, index] = p.layout.rows.operand;
  const int64_t warps = static_cast<int64_t>(gridDim.x) * (blockDim.x / 32);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  for (int64_t row = first; row < p.count; row += warps) {
    const int64_t into = row * p.into.stride[0];
    for (int64_t from = 0; from < p.layout.rows.extent.count; from++) {
      int64_t at[2];
      offsetsOf(p.layout.rows.extent, p.layout.rows.operand, from, at);
      const float rowIndex = loadElement(index, at[1]);
      if (!checkIndex(rowIndex, p.count, p.badIndex, IndexKernel::ScatterAddRows) ||
          static_cast<int64_t>(rowIndex) != row)
        continue;
      const auto load = [&](int i) {
        return RawPair<WIDTH>{loadRow<WIDTH>(p.into, into, p.into.stride[1], i),
                              loadRow<WIDTH>(x, at[0], p.layout.step[0], i)};
      };
      forEachInRow<WIDTH>(p.layout.length, load, [&](int i, const RawPair<WIDTH>& raw) {
        float sum[WIDTH], v[WIDTH];
        raw.a.decode(p.into.dtype, sum);
        raw.b.decode(x.dtype, v);
#pragma unroll
        for (int w = 0; w < WIDTH; w++) sum[w] += v[w];
        storeRow(p.into, into, p.into.stride[1], i, sum);
      });
    }
  }
}

/// With m the larger lse: out = Σ exp(lse − m) out / Σ exp(lse − m), lse = m + log Σ exp(lse − m). Rows with lse = −∞
/// have attended to no key, and their out is not read.
template <int WIDTH>
DEVICE void mergeRows(const MergeParameters& p) {
  const auto& [out, lse, otherOut, otherLse] = p.layout.rows.operand;
  const auto& step = p.layout.step;
  forEachRow(p.layout, [&](const int64_t(&at)[4]) {
    const float oldLse = loadElement(lse, at[1]), newLse = loadElement(otherLse, at[3]);
    if (newLse == -infinity()) return;
    const float maxValue = fmaxf(oldLse, newLse);
    const bool isEmpty = oldLse == -infinity();
    // The larger lse has weight 1, even if it is infinite, in which case the difference would be NaN.
    const float a = isEmpty ? 0.f : oldLse == maxValue ? 1.f : expf(oldLse - maxValue),
                b = newLse == maxValue ? 1.f : expf(newLse - maxValue), inverse = 1.f / (a + b);
    const auto load = [&](int i) {
      return RawPair<WIDTH>{loadRow<WIDTH>(out, at[0], step[0], i), loadRow<WIDTH>(otherOut, at[2], step[2], i)};
    };
    forEachInRow<WIDTH>(p.layout.length, load, [&](int i, const RawPair<WIDTH>& raw) {
      float sum[WIDTH], v[WIDTH];
      raw.a.decode(out.dtype, sum);
      raw.b.decode(otherOut.dtype, v);
#pragma unroll
      for (int w = 0; w < WIDTH; w++) sum[w] = ((isEmpty ? 0.f : a * sum[w]) + b * v[w]) * inverse;
      storeRow(out, at[0], step[0], i, sum);
    });
    syncWarp();  // all lanes have read the previous lse
    if (threadIdx.x % 32 == 0) storeElement(lse, at[1], maxValue + logf(a + b));
  });
}

}  // namespace

extern "C" {

// At least two blocks per multiprocessor, so that enough loads are in flight.
#define ROW_KERNEL(name, rows, Parameters)                                                           \
  __global__ void __launch_bounds__(kBlockThreads, 2) name(const __grid_constant__ Parameters p) { \
    if (p.layout.isVectorized) rows<kVectorLength>(p);                                               \
    else rows<1>(p);                                                                                 \
  }
ROW_KERNEL(softmax, softmaxRows, SoftmaxParameters)
ROW_KERNEL(softmaxBackward, softmaxBackwardRows, SoftmaxBackwardParameters)
ROW_KERNEL(rowDot, rowDotRows, RowDotParameters)
ROW_KERNEL(normalize, normalizeRows, NormParameters)
ROW_KERNEL(normalizeBackward, normalizeBackwardRows, NormBackwardParameters)
ROW_KERNEL(crossEntropy, crossEntropyRows, CrossEntropyParameters)
ROW_KERNEL(crossEntropyBackward, crossEntropyBackwardRows, CrossEntropyBackwardParameters)
ROW_KERNEL(gatherRows, gatherSelectedRows, GatherRowsParameters)
ROW_KERNEL(scatterAddRows, scatterAddSelectedRows, ScatterAddRowsParameters)
ROW_KERNEL(merge, mergeRows, MergeParameters)
#undef ROW_KERNEL

/// Blocks of 32 × 16 threads: each thread sums every 16th row of its column, and the first row of threads adds these
/// sums.
__global__ void __launch_bounds__(kNormColumnsThreads) normColumns(const __grid_constant__ NormColumnsParameters p) {
  const auto& [x, dOut, mean, rstd] = p.layout.rows.operand;
  const auto& step = p.layout.step;
  const int lane = threadIdx.x % 32, group = threadIdx.x / 32, groups = blockDim.x / 32;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * 32 + lane;
  float weight = 0.f, bias = 0.f;
#pragma unroll 4  // several loads in flight
  for (int64_t row = group; row < p.layout.rows.extent.count && column < p.layout.length; row += groups) {
    int64_t at[4];
    offsetsOf(p.layout.rows.extent, p.layout.rows.operand, row, at);
    const float center = mean.data ? loadElement(mean, at[2]) : 0.f;
    const float g = loadElement(dOut, at[1] + column * step[1]);
    weight += g * (loadElement(x, at[0] + column * step[0]) - center) * loadElement(rstd, at[3]);
    bias += g;
  }
  const SharedAddress weights = sharedBase(), biases = weights + blockDim.x * 4;
  storeShared(weights + threadIdx.x * 4, weight);
  storeShared(biases + threadIdx.x * 4, bias);
  syncBlock();
  if (group > 0 || column >= p.layout.length) return;
  for (int otherGroup = 1; otherGroup < groups; otherGroup++) {
    weight += loadShared(weights + (otherGroup * 32 + lane) * 4);
    bias += loadShared(biases + (otherGroup * 32 + lane) * 4);
  }
  const auto add = [&](const Operand& into, float value) {
    const int64_t offset = column * into.stride[0];
    if (into.data) storeElement(into, offset, loadElement(into, offset) + value);
  };
  add(p.dWeight, weight);
  add(p.dBias, bias);
}

}  // extern "C"

EMULATED_KERNEL(softmax, SoftmaxParameters)
EMULATED_KERNEL(softmaxBackward, SoftmaxBackwardParameters)
EMULATED_KERNEL(rowDot, RowDotParameters)
EMULATED_KERNEL(normalize, NormParameters)
EMULATED_KERNEL(normalizeBackward, NormBackwardParameters)
EMULATED_KERNEL(normColumns, NormColumnsParameters)
EMULATED_KERNEL(crossEntropy, CrossEntropyParameters)
EMULATED_KERNEL(crossEntropyBackward, CrossEntropyBackwardParameters)
EMULATED_KERNEL(gatherRows, GatherRowsParameters)
EMULATED_KERNEL(scatterAddRows, ScatterAddRowsParameters)
EMULATED_KERNEL(merge, MergeParameters)
