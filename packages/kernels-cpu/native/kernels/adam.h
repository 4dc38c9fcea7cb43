// One step of an optimizer on one parameter. Each number is read once and written once.
#pragma once

#include "kernels/elementwise.h"
#include "kernels/math.h"

namespace mosaic {
namespace {

/// The values that a step updates, a vector of each.
template <class V>
struct AdamVectors {
  V parameter, first, second;
};

/// AdamW: Loshchilov and Hutter 2019, algorithm 2. The mean of gradients is interpolated from the operand of the larger
/// weight, like PyTorch's lerp: from `first`, or from the gradient if β₁ < ½. If it always started at `first`, a
/// gradient that is much smaller than `first` would be lost in the difference, even for β₁ = 0.
template <class T, bool isBeta1Small>
struct AdamW {
  using V = typename T::Vec;
  V decayFactor, beta1, beta2, oneMinusBeta1, oneMinusBeta2, stepSize, inverseRootCorrection, epsilon;
  explicit AdamW(const AdamStep& s)
      : decayFactor(T::set1(static_cast<float>(1 - s.rate * s.decay))),
        beta1(T::set1(static_cast<float>(s.beta1))),
        beta2(T::set1(static_cast<float>(s.beta2))),
        oneMinusBeta1(T::set1(static_cast<float>(1 - s.beta1))),
        oneMinusBeta2(T::set1(static_cast<float>(1 - s.beta2))),
        stepSize(T::set1(static_cast<float>(s.rate / s.correction1))),
        inverseRootCorrection(T::set1(static_cast<float>(1 / __builtin_sqrt(s.correction2)))),
        epsilon(T::set1(static_cast<float>(s.epsilon))) {}
  __attribute__((always_inline)) AdamVectors<V> step(const AdamVectors<V>& x, V g) const {
    const V first = isBeta1Small ? g + beta1 * (x.first - g) : x.first + oneMinusBeta1 * (g - x.first);
    const V second = beta2 * x.second + oneMinusBeta2 * (g * g);
    return {x.parameter * decayFactor - stepSize * first / (sqrtOf<T>(second) * inverseRootCorrection + epsilon), first,
            second};
  }
};

/// Schedule-free AdamW: Defazio et al. 2024, in the form that stores y (the parameter) and z (`first`).
template <class T>
struct ScheduleFree {
  using V = typename T::Vec;
  V beta2, oneMinusBeta2, inverseRootCorrection, epsilon, decay, mix, updateScale, rate;
  explicit ScheduleFree(const AdamStep& s)
      : beta2(T::set1(static_cast<float>(s.beta2))),
        oneMinusBeta2(T::set1(static_cast<float>(1 - s.beta2))),
        inverseRootCorrection(T::set1(static_cast<float>(1 / __builtin_sqrt(s.correction2)))),
        epsilon(T::set1(static_cast<float>(s.epsilon))),
        decay(T::set1(static_cast<float>(s.decay))),
        mix(T::set1(static_cast<float>(s.mix))),
        updateScale(T::set1(static_cast<float>(s.rate * (s.beta1 * (1 - s.mix) - 1)))),
        rate(T::set1(static_cast<float>(s.rate))) {}
  __attribute__((always_inline)) AdamVectors<V> step(const AdamVectors<V>& x, V g) const {
    const V second = beta2 * x.second + oneMinusBeta2 * (g * g);
    const V update = g / (sqrtOf<T>(second) * inverseRootCorrection + epsilon) + decay * x.parameter;
    return {x.parameter + mix * (x.first - x.parameter) + updateScale * update, x.first - rate * update, second};
  }
};

template <class T, class UpdateRule>
MOSAIC_INLINE void stepRow(const UpdateRule& updateRule, float* const (&to)[3], const float* const (&from)[4],
                           int64_t n) {
  int64_t i = 0;
  for (; i + T::lanes <= n; i += T::lanes) {
    const auto next =
        updateRule.step({T::load(from[0] + i), T::load(from[1] + i), T::load(from[2] + i)}, T::load(from[3] + i));
    T::store(to[0] + i, next.parameter);
    T::store(to[1] + i, next.first);
    T::store(to[2] + i, next.second);
  }
  const int remaining = static_cast<int>(n - i);
  if (remaining == 0) return;
  const auto next = updateRule.step({T::loadPartial(from[0] + i, remaining), T::loadPartial(from[1] + i, remaining),
                                     T::loadPartial(from[2] + i, remaining)},
                                    T::loadPartial(from[3] + i, remaining));
  T::storePartial(to[0] + i, next.parameter, remaining);
  T::storePartial(to[1] + i, next.first, remaining);
  T::storePartial(to[2] + i, next.second, remaining);
}

template <class T, class UpdateRule>
MOSAIC_INLINE void stepAll(const AdamState& state, const View& gradient, const UpdateRule& updateRule, Pool& pool) {
  const Loop<4> loop = makeLoop<4>({&state.parameter, &state.first, &state.second, &gradient});
  const int innerAxis = loop.rank - 1;
  forEachChunk(loop, pool, [&](const Chunk<4>& chunk) {
    float buffers[4][kChunkElements];
    const float* from[4];
    float* to[3];
    for (int i = 0; i < 4; i++) {
      const int64_t stride = loop.stride[i][innerAxis];
      from[i] = fetch<T>(loop.dtype[i], chunk.data[i], stride, chunk.length, buffers[i]);
      if (i < 3) to[i] = target(loop.dtype[i], chunk.data[i], stride, buffers[i]);
    }
    stepRow<T>(updateRule, to, from, chunk.length);
    for (int i = 0; i < 3; i++) {
      flush<T>(loop.dtype[i], chunk.data[i], loop.stride[i][innerAxis], chunk.length, to[i]);
    }
  });
}

template <class T>
void adam(const AdamArguments& args, Pool& pool) {
  const auto& [state, gradient, step] = args;
  if (step.kind == AdamKind::ScheduleFree) {
    stepAll<T>(state, gradient, ScheduleFree<T>(step), pool);
  } else if (step.beta1 < 0.5) {
    stepAll<T>(state, gradient, AdamW<T, true>(step), pool);
  } else {
    stepAll<T>(state, gradient, AdamW<T, false>(step), pool);
  }
}

}  // namespace
}  // namespace mosaic
