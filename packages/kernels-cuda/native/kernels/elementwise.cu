#include "kernels/elementwise.h"

#include "kernels/element.cuh"
#include "kernels/random.cuh"

using namespace mosaic;
using namespace mosaic::cuda;

namespace {

constexpr float kInverseRootTau = 0.39894228040143268f;
constexpr float kTwiceRootTwoOverPi = 1.59576912160573071f;

DEVICE float applyBinary(BinaryOp op, float a, float b) {
  switch (op) {
    case BinaryOp::Add: return a + b;
    case BinaryOp::Sub: return a - b;
    case BinaryOp::Mul: return a * b;
    case BinaryOp::Div: return a / b;
    case BinaryOp::Max: return a != a || b != b ? a + b : fmaxf(a, b);  // propagates NaN
  }
  __builtin_unreachable();
}

DEVICE float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }

/// Returns e / (1 + e)² with e = exp(−|x|), the derivative of the sigmoid s, without the cancellation in s (1 − s).
DEVICE float sigmoidGrad(float x) {
  const float e = expf(-fabsf(x)), s = 1.f / (1.f + e);
  return e * s * s;
}

/// Returns 0.044715 x², with x² limited where the sigmoid of geluTanh is already 0 or 1, so that no product overflows.
DEVICE float quadraticTerm(float x) { return 0.044715f * fminf(x * x, 1e6f); }
/// Returns u such that sigmoid(u) = ½ (1 + tanh(√(2/π) (x + 0.044715 x³))).
DEVICE float geluTanhArgument(float x) { return kTwiceRootTwoOverPi * x * (1.f + quadraticTerm(x)); }

DEVICE float applyUnary(UnaryOp op, float x) {
  switch (op) {
    case UnaryOp::Neg: return -x;
    case UnaryOp::Exp: return expf(x);
    case UnaryOp::Log: return logf(x);
    case UnaryOp::Sqrt: return sqrtf(x);
    case UnaryOp::Rsqrt: return 1.f / sqrtf(x);
    case UnaryOp::Tanh: return tanhf(x);
    case UnaryOp::Sigmoid: return sigmoid(x);
    case UnaryOp::Relu: return x != x ? x : fmaxf(x, 0.f);
    case UnaryOp::Gelu: return x * normcdff(x);
    case UnaryOp::GeluTanh: return x * sigmoid(geluTanhArgument(x));
    case UnaryOp::Silu: return x * sigmoid(x);
    case UnaryOp::Square: return x * x;
  }
  __builtin_unreachable();
}

DEVICE float unaryDerivative(UnaryOp op, float x) {
  switch (op) {
    case UnaryOp::Neg: return -1.f;
    case UnaryOp::Exp: return expf(x);
    case UnaryOp::Log: return 1.f / x;
    case UnaryOp::Sqrt: return 0.5f / sqrtf(x);
    case UnaryOp::Rsqrt: return -0.5f / (x * sqrtf(x));
    case UnaryOp::Tanh: return 4.f * sigmoidGrad(x + x);
    case UnaryOp::Sigmoid: return sigmoidGrad(x);
    case UnaryOp::Relu: return x > 0.f ? 1.f : 0.f;
    case UnaryOp::Gelu: return normcdff(x) + x * kInverseRootTau * expf(-0.5f * x * x);
    case UnaryOp::GeluTanh: {
      const float u = geluTanhArgument(x);
      return sigmoid(u) + x * sigmoidGrad(u) * kTwiceRootTwoOverPi * (1.f + 3.f * quadraticTerm(x));
    }
    case UnaryOp::Silu: return sigmoid(x) + x * sigmoidGrad(x);
    case UnaryOp::Square: return 2.f * x;
  }
  __builtin_unreachable();
}

// Operations are types, so that the switch runs once per vector; a switch takes as long as many of the operations.

template <BinaryOp op>
struct BinaryFunction {
  DEVICE float operator()(float a, float b) const { return applyBinary(op, a, b); }
};
template <class Body>
DEVICE void withBinary(BinaryOp op, Body body) {
  switch (op) {
    case BinaryOp::Add: return body(BinaryFunction<BinaryOp::Add>{});
    case BinaryOp::Sub: return body(BinaryFunction<BinaryOp::Sub>{});
    case BinaryOp::Mul: return body(BinaryFunction<BinaryOp::Mul>{});
    case BinaryOp::Div: return body(BinaryFunction<BinaryOp::Div>{});
    case BinaryOp::Max: return body(BinaryFunction<BinaryOp::Max>{});
  }
}

template <UnaryOp op>
struct UnaryFunction {
  DEVICE float operator()(float x) const { return applyUnary(op, x); }
  /// relu's backward is a selection, also for non-finite values.
  DEVICE float backward(float x, float dy) const {
    if constexpr (op == UnaryOp::Relu) return x <= 0.f ? 0.f : dy;
    return dy * unaryDerivative(op, x);
  }
};
template <class Body>
DEVICE void withUnary(UnaryOp op, Body body) {
  switch (op) {
    case UnaryOp::Neg: return body(UnaryFunction<UnaryOp::Neg>{});
    case UnaryOp::Exp: return body(UnaryFunction<UnaryOp::Exp>{});
    case UnaryOp::Log: return body(UnaryFunction<UnaryOp::Log>{});
    case UnaryOp::Sqrt: return body(UnaryFunction<UnaryOp::Sqrt>{});
    case UnaryOp::Rsqrt: return body(UnaryFunction<UnaryOp::Rsqrt>{});
    case UnaryOp::Tanh: return body(UnaryFunction<UnaryOp::Tanh>{});
    case UnaryOp::Sigmoid: return body(UnaryFunction<UnaryOp::Sigmoid>{});
    case UnaryOp::Relu: return body(UnaryFunction<UnaryOp::Relu>{});
    case UnaryOp::Gelu: return body(UnaryFunction<UnaryOp::Gelu>{});
    case UnaryOp::GeluTanh: return body(UnaryFunction<UnaryOp::GeluTanh>{});
    case UnaryOp::Silu: return body(UnaryFunction<UnaryOp::Silu>{});
    case UnaryOp::Square: return body(UnaryFunction<UnaryOp::Square>{});
  }
}

struct AdamElement {
  float parameter, first, second;
};

DEVICE AdamElement adamStep(const AdamParameters& p, AdamElement x, float g) {
  const float second = p.beta2 * x.second + p.oneMinusBeta2 * (g * g);
  const float norm = sqrtf(second) * p.inverseRootCorrection + p.epsilon;
  if (p.kind == AdamKind::AdamW) {
    // Interpolates from the operand of the larger weight, so that no difference loses it.
    const float first = p.beta1 < 0.5f ? g + p.beta1 * (x.first - g) : x.first + p.oneMinusBeta1 * (g - x.first);
    return {x.parameter * p.decayFactor - p.stepSize * first / norm, first, second};
  }
  const float update = g / norm + p.decay * x.parameter;
  return {x.parameter + p.mix * (x.first - x.parameter) + p.updateScale * update, x.first - p.rate * update, second};
}

}  // namespace

extern "C" {

__global__ void fill(const __grid_constant__ FillParameters p) {
  mapElements(p.loop, [&](auto& x) { forEachIndex(x[0], [&](int i) { x[0][i] = p.value; }); });
}

__global__ void copy(const __grid_constant__ CopyParameters p) {
  mapElements(p.loop, [](auto& x) { forEachIndex(x[0], [&](int i) { x[0][i] = x[1][i]; }); });
}

__global__ void binary(const __grid_constant__ BinaryParameters p) {
  mapElements(p.loop, [&](auto& x) {
    withBinary(p.op, [&](auto op) { forEachIndex(x[0], [&](int i) { x[0][i] = op(x[1][i], x[2][i]); }); });
  });
}

__global__ void scalar(const __grid_constant__ ScalarParameters p) {
  mapElements(p.loop, [&](auto& x) {
    withBinary(p.op, [&](auto op) { forEachIndex(x[0], [&](int i) { x[0][i] = op(x[1][i], p.value); }); });
  });
}

__global__ void unary(const __grid_constant__ UnaryParameters p) {
  mapElements(p.loop, [&](auto& x) {
    withUnary(p.op, [&](auto op) { forEachIndex(x[0], [&](int i) { x[0][i] = op(x[1][i]); }); });
  });
}

__global__ void gate(const __grid_constant__ GateParameters p) {
  mapElements(p.loop, [&](auto& x) {
    withUnary(p.op, [&](auto op) { forEachIndex(x[0], [&](int i) { x[0][i] = op(x[1][i]) * x[2][i]; }); });
  });
}

__global__ void rotary(const __grid_constant__ RotaryParameters p) {
  const auto& [first, second, x, y, cosine, sine] = p.loop.operand;
  forEachElement(p.loop, [&](int64_t, const int64_t(&at)[6]) {
    const float a = loadElement(x, at[2]), b = loadElement(y, at[3]);
    const float c = loadElement(cosine, at[4]), s = p.sign * loadElement(sine, at[5]);
    storeElement(first, at[0], a * c - b * s);
    storeElement(second, at[1], b * c + a * s);
  });
}

__global__ void unaryBackward(const __grid_constant__ UnaryBackwardParameters p) {
  mapElements(p.loop, [&](auto& x) {
    withUnary(p.op, [&](auto op) { forEachIndex(x[0], [&](int i) { x[0][i] = op.backward(x[1][i], x[2][i]); }); });
  });
}

__global__ void randomNumbers(const __grid_constant__ RandomParameters p) {
  forEachElement(p.loop, [&](int64_t index, const int64_t(&at)[1]) {
    const auto i = static_cast<uint64_t>(index);
    const bool isUniform = p.kind == RandomKind::Uniform;
    const float value = isUniform ? drawUniform(p.philox, i, p.a, p.b) : drawNormal(p.philox, i, p.a, p.b);
    storeElement(p.loop.operand[0], at[0], value);
  });
}

__global__ void dropout(const __grid_constant__ DropoutParameters p) {
  const auto& [out, x, index] = p.loop.operand;
  const float scale = 1.f / (1.f - p.probability);
  forEachElement(p.loop, [&](int64_t, const int64_t(&at)[3]) {
    const float randomValue = drawUniform(p.philox, static_cast<uint64_t>(p.first + at[2]), 0.f, 1.f);
    storeElement(out, at[0], randomValue < p.probability ? 0.f : loadElement(x, at[1]) * scale);
  });
}

__global__ void adam(const __grid_constant__ AdamParameters p) {
  const auto& [parameter, first, second, gradient] = p.loop.operand;
  forEachElement(p.loop, [&](int64_t, const int64_t(&at)[4]) {
    const AdamElement oldElement{loadElement(parameter, at[0]), loadElement(first, at[1]), loadElement(second, at[2])};
    const AdamElement newElement = adamStep(p, oldElement, loadElement(gradient, at[3]));
    storeElement(parameter, at[0], newElement.parameter);
    storeElement(first, at[1], newElement.first);
    storeElement(second, at[2], newElement.second);
  });
}

}  // extern "C"

EMULATED_KERNEL(fill, FillParameters)
EMULATED_KERNEL(copy, CopyParameters)
EMULATED_KERNEL(binary, BinaryParameters)
EMULATED_KERNEL(scalar, ScalarParameters)
EMULATED_KERNEL(unary, UnaryParameters)
EMULATED_KERNEL(gate, GateParameters)
EMULATED_KERNEL(rotary, RotaryParameters)
EMULATED_KERNEL(unaryBackward, UnaryBackwardParameters)
EMULATED_KERNEL(randomNumbers, RandomParameters)
EMULATED_KERNEL(dropout, DropoutParameters)
EMULATED_KERNEL(adam, AdamParameters)
