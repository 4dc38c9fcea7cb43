// A warp and its row.
#include "kernels/rows.h"

#include "kernels/element.cuh"

namespace mosaic::cuda {

/// Calls body(offsets) with where each of the warp's rows begins; warps of the grid take turns.
template <int N, class Body>
DEVICE void forEachRow(const Rows<N>& rowLayout, Body body) {
  const int64_t warps = static_cast<int64_t>(gridDim.x) * (blockDim.x / 32);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  for (int64_t row = first; row < rowLayout.rows.extent.count; row += warps) {
    int64_t offset[N];
    offsetsOf(rowLayout.rows.extent, rowLayout.rows.operand, row, offset);
    body(offset);
  }
}

/// Calls body(i) for the places of a row that fall to this lane.
template <class Body>
DEVICE void forEachInRow(int64_t length, Body body) {
  for (int64_t i = threadIdx.x % 32; i < length; i += 32) body(i);
}

template <class Body>
DEVICE float sumOverRow(int64_t length, Body body) {
  float sum = 0;
  forEachInRow(length, [&](int64_t i) { sum += body(i); });
  return warpSum(sum);
}

template <class Body>
DEVICE float maxOverRow(int64_t length, Body body) {
  float maxValue = -infinity();
  forEachInRow(length, [&](int64_t i) { maxValue = fmaxf(maxValue, body(i)); });
  return warpMax(maxValue);
}

/// Whether `value` names one of `count`; else it is written down, the first to come.
DEVICE bool checkIndex(float value, int64_t count, BadIndex* badIndex, IndexKernel kernel) {
  if (value >= 0.f && value < static_cast<float>(count) && value == floorf(value)) return true;
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

extern "C" {

/// A row of −∞ gives 0.
__global__ void softmax(const __grid_constant__ SoftmaxParameters p) {
  const auto& [out, x] = p.layout.rows.operand;
  const int64_t n = p.layout.length, outStride = p.layout.step[0], xStride = p.layout.step[1];
  forEachRow(p.layout, [&](const int64_t (&at)[2]) {
    const float maxValue = maxOverRow(n, [&](int64_t i) { return loadElement(x, at[1] + i * xStride); });
    const float base = maxValue == -infinity() ? 0.f : maxValue;
    const float sum = sumOverRow(n, [&](int64_t i) { return expf(loadElement(x, at[1] + i * xStride) - base); });
    const float inverse = sum == 0.f ? 0.f : 1.f / sum;
    forEachInRow(n, [&](int64_t i) {
      storeElement(out, at[0] + i * outStride, expf(loadElement(x, at[1] + i * xStride) - base) * inverse);
    });
  });
}

__global__ void softmaxBackward(const __grid_constant__ SoftmaxBackwardParameters p) {
  const auto& [dx, out, dOut] = p.layout.rows.operand;
  const int64_t n = p.layout.length;
  const auto& step = p.layout.step;
  forEachRow(p.layout, [&](const int64_t(&at)[3]) {
    const auto y = [&](int64_t i) { return loadElement(out, at[1] + i * step[1]); };
    const auto dy = [&](int64_t i) { return loadElement(dOut, at[2] + i * step[2]); };
    const float dot = sumOverRow(n, [&](int64_t i) { return y(i) * dy(i); });
    forEachInRow(n, [&](int64_t i) { storeElement(dx, at[0] + i * step[0], y(i) * (dy(i) - dot)); });
  });
}

__global__ void rowDot(const __grid_constant__ RowDotParameters p) {
  const auto& [out, a, b] = p.layout.rows.operand;
  const auto& step = p.layout.step;
  forEachRow(p.layout, [&](const int64_t(&at)[3]) {
    const float dot = sumOverRow(p.layout.length, [&](int64_t i) {
      return loadElement(a, at[1] + i * step[1]) * loadElement(b, at[2] + i * step[2]);
    });
    if (threadIdx.x % 32 == 0) storeElement(out, at[0], dot);
  });
}

__global__ void normalize(const __grid_constant__ NormParameters p) {
  const auto& [out, x, mean, rstd] = p.layout.rows.operand;
  const int64_t n = p.layout.length;
  const float inverseLength = 1.f / static_cast<float>(n);
  forEachRow(p.layout, [&](const int64_t(&at)[4]) {
    const auto value = [&](int64_t i) { return loadElement(x, at[1] + i * p.layout.step[1]); };
    const float center = mean.data ? sumOverRow(n, value) * inverseLength : 0.f;
    const float variance =
        sumOverRow(n, [&](int64_t i) { return (value(i) - center) * (value(i) - center); }) * inverseLength;
    const float scale = 1.f / sqrtf(variance + p.epsilon);
    forEachInRow(n, [&](int64_t i) {
      const float weight = p.weight.data ? loadElement(p.weight, i * p.weight.stride[0]) : 1.f;
      const float bias = p.bias.data ? loadElement(p.bias, i * p.bias.stride[0]) : 0.f;
      storeElement(out, at[0] + i * p.layout.step[0], (value(i) - center) * scale * weight + bias);
    });
    if (threadIdx.x % 32 != 0) return;
    if (mean.data) storeElement(mean, at[2], center);
    storeElement(rstd, at[3], scale);
  });
}

/// With x̂ = (x − mean) · rstd and g = dOut · weight: dx = rstd · (g − mean g − x̂ · mean(g · x̂)). RMSNorm: no mean g.
__global__ void normalizeBackward(const __grid_constant__ NormBackwardParameters p) {
  const auto& [dx, x, dOut, mean, rstd] = p.layout.rows.operand;
  const int64_t n = p.layout.length;
  const auto& step = p.layout.step;
  const float inverseLength = 1.f / static_cast<float>(n);
  forEachRow(p.layout, [&](const int64_t(&at)[5]) {
    const float center = mean.data ? loadElement(mean, at[3]) : 0.f, scale = loadElement(rstd, at[4]);
    const auto normalized = [&](int64_t i) { return (loadElement(x, at[1] + i * step[1]) - center) * scale; };
    const auto weightedGradient = [&](int64_t i) {
      const float weight = p.weight.data ? loadElement(p.weight, i * p.weight.stride[0]) : 1.f;
      return loadElement(dOut, at[2] + i * step[2]) * weight;
    };
    const float gradientMean = mean.data ? sumOverRow(n, weightedGradient) * inverseLength : 0.f;
    const float xProjection =
        sumOverRow(n, [&](int64_t i) { return weightedGradient(i) * normalized(i); }) * inverseLength;
    forEachInRow(n, [&](int64_t i) {
      storeElement(dx, at[0] + i * step[0], scale * (weightedGradient(i) - gradientMean - normalized(i) * xProjection));
    });
  });
}

/// Blocks of 32 × 8 threads: each thread sums every eighth row of its column, the first row of threads sums those.
__global__ void normColumns(const __grid_constant__ NormColumnsParameters p) {
  const auto& [x, dOut, mean, rstd] = p.layout.rows.operand;
  const auto& step = p.layout.step;
  const int lane = threadIdx.x % 32, group = threadIdx.x / 32, groups = blockDim.x / 32;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * 32 + lane;
  float weight = 0.f, bias = 0.f;
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

/// (1 − s)(lse − x[class]) + s (lse − mean x); differences are taken from the largest x, which cancels less.
__global__ void crossEntropy(const __grid_constant__ CrossEntropyParameters p) {
  const auto& [x, loss, lse, counted, target] = p.layout.rows.operand;
  const int64_t n = p.layout.length;
  forEachRow(p.layout, [&](const int64_t(&at)[5]) {
    const auto value = [&](int64_t i) { return loadElement(x, at[0] + i * p.layout.step[0]); };
    const float targetClass = loadElement(target, at[4]);
    const bool isCounted =
        targetClass != p.ignored && checkIndex(targetClass, n, p.badIndex, IndexKernel::CrossEntropy);
    const float maxValue = maxOverRow(n, value);
    const float logSum = logf(sumOverRow(n, [&](int64_t i) { return expf(value(i) - maxValue); }));
    const float mean = p.smoothing > 0.f ? sumOverRow(n, value) / static_cast<float>(n) : 0.f;
    if (threadIdx.x % 32 != 0) return;
    float rowLoss = 0.f;
    if (isCounted) {
      rowLoss = (maxValue - value(static_cast<int64_t>(targetClass))) + logSum;
      if (p.smoothing > 0.f) rowLoss = (1.f - p.smoothing) * rowLoss + p.smoothing * ((maxValue - mean) + logSum);
    }
    storeElement(loss, at[1], rowLoss);
    storeElement(lse, at[2], isCounted ? maxValue + logSum : 0.f);
    storeElement(counted, at[3], isCounted ? 1.f : 0.f);
  });
}

__global__ void crossEntropyBackward(const __grid_constant__ CrossEntropyBackwardParameters p) {
  const auto& [dx, x, target, lse, dLoss] = p.layout.rows.operand;
  const int64_t n = p.layout.length;
  const float smoothingShare = p.smoothing / static_cast<float>(n);
  forEachRow(p.layout, [&](const int64_t (&at)[5]) {
    const float targetClass = loadElement(target, at[2]);
    const bool isCounted =
        targetClass != p.ignored && checkIndex(targetClass, n, p.badIndex, IndexKernel::CrossEntropyBackward);
    const float scale = isCounted ? loadElement(dLoss, at[4]) : 0.f, rowLse = loadElement(lse, at[3]);
    forEachInRow(n, [&](int64_t i) {
      const float targetProbability = (static_cast<float>(i) == targetClass ? 1.f - p.smoothing : 0.f) + smoothingShare;
      const float gradient =
          isCounted ? expf(loadElement(x, at[1] + i * p.layout.step[1]) - rowLse) - targetProbability : 0.f;
      storeElement(dx, at[0] + i * p.layout.step[0], scale * gradient);
    });
  });
}

__global__ void gatherRows(const __grid_constant__ GatherRowsParameters p) {
  const auto& [out, index] = p.layout.rows.operand;
  forEachRow(p.layout, [&](const int64_t (&at)[2]) {
    const float rowIndex = loadElement(index, at[1]);
    if (!checkIndex(rowIndex, p.count, p.badIndex, IndexKernel::GatherRows)) return;
    const int64_t from = static_cast<int64_t>(rowIndex) * p.table.stride[0];
    forEachInRow(p.layout.length, [&](int64_t i) {
      storeElement(out, at[0] + i * p.layout.step[0], loadElement(p.table, from + i * p.table.stride[1]));
    });
  });
}

__global__ void scatterAddRows(const __grid_constant__ ScatterAddRowsParameters p) {
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
      forEachInRow(p.layout.length, [&](int64_t i) {
        const int64_t offset = into + i * p.into.stride[1];
        storeElement(p.into, offset, loadElement(p.into, offset) + loadElement(x, at[0] + i * p.layout.step[0]));
      });
    }
  }
}

/// With m the larger lse: out = Σ exp(lse − m) out / Σ exp(lse − m), lse = m + log Σ exp(lse − m). Rows of −∞ have seen
/// nothing, and their out is not looked at.
__global__ void merge(const __grid_constant__ MergeParameters p) {
  const auto& [out, lse, otherOut, otherLse] = p.layout.rows.operand;
  const auto& step = p.layout.step;
  forEachRow(p.layout, [&](const int64_t (&at)[4]) {
    const float oldLse = loadElement(lse, at[1]), newLse = loadElement(otherLse, at[3]);
    if (newLse == -infinity()) return;
    const float maxValue = fmaxf(oldLse, newLse);
    const float a = oldLse == -infinity() ? 0.f : expf(oldLse - maxValue), b = expf(newLse - maxValue),
                inverse = 1.f / (a + b);
    forEachInRow(p.layout.length, [&](int64_t i) {
      const int64_t to = at[0] + i * step[0];
      const float scaledOut = a == 0.f && oldLse == -infinity() ? 0.f : a * loadElement(out, to);
      storeElement(out, to, (scaledOut + b * loadElement(otherOut, at[2] + i * step[2])) * inverse);
    });
    syncWarp();  // all lanes have read the old lse
    if (threadIdx.x % 32 == 0) storeElement(lse, at[1], maxValue + logf(a + b));
  });
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
