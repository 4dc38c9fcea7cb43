// Functions of one operand, and their derivatives.
#pragma once

#include "kernels/elementwise.h"
#include "kernels/math.h"

namespace mosaic {
namespace {

/// gelu is the exact form x · Φ(x) (Hendrycks and Gimpel 2016), PyTorch's default, not the tanh approximation.
template <class T>
MOSAIC_NOINLINE void applyUnary(UnaryOp op, float* out, const float* x, int64_t n) {
  using V = typename T::Vec;
  switch (op) {
    case UnaryOp::Neg: return map1<T>(out, x, n, [](V v) { return negative<T>(v); });
    case UnaryOp::Exp: return map1<T>(out, x, n, [](V v) { return expOf<T>(v); });
    case UnaryOp::Log: return map1<T>(out, x, n, [](V v) { return logOf<T>(v); });
    case UnaryOp::Sqrt: return map1<T>(out, x, n, [](V v) { return sqrtOf<T>(v); });
    case UnaryOp::Rsqrt: return map1<T>(out, x, n, [](V v) { return T::set1(1.0f) / sqrtOf<T>(v); });
    case UnaryOp::Tanh: return map1<T>(out, x, n, [](V v) { return tanhOf<T>(v); });
    case UnaryOp::Sigmoid: return map1<T>(out, x, n, [](V v) { return sigmoidOf<T>(v); });
    case UnaryOp::Relu: return map1<T>(out, x, n, [](V v) { return T::max(T::zero(), v); });  // keeps NaN
    case UnaryOp::Gelu: return map1<T>(out, x, n, [](V v) { return v * normalCdfOf<T>(v); });
    case UnaryOp::Square: return map1<T>(out, x, n, [](V v) { return v * v; });
  }
}

/// e / (1 + e)² for e = exp(−|x|): the derivative of the sigmoid, without the cancellation of s (1 − s).
template <class T>
MOSAIC_INLINE typename T::Vec sigmoidGrad(typename T::Vec x) {
  const auto e = expOf<T>(T::zero() - absOf<T>(x)), s = T::set1(1.0f) / (T::set1(1.0f) + e);
  return e * s * s;
}

template <class T>
MOSAIC_NOINLINE void applyUnaryBackward(UnaryOp op, float* dx, const float* x, const float* dy, int64_t n) {
  using V = typename T::Vec;
  switch (op) {
    case UnaryOp::Neg: return map2<T>(dx, x, dy, n, [](V, V g) { return negative<T>(g); });
    case UnaryOp::Exp: return map2<T>(dx, x, dy, n, [](V v, V g) { return g * expOf<T>(v); });
    case UnaryOp::Log: return map2<T>(dx, x, dy, n, [](V v, V g) { return g / v; });
    case UnaryOp::Sqrt: return map2<T>(dx, x, dy, n, [](V v, V g) { return T::set1(0.5f) * g / sqrtOf<T>(v); });
    case UnaryOp::Rsqrt:
      return map2<T>(dx, x, dy, n, [](V v, V g) { return T::set1(-0.5f) * g / (v * sqrtOf<T>(v)); });
    case UnaryOp::Tanh: return map2<T>(dx, x, dy, n, [](V v, V g) { return g * T::set1(4) * sigmoidGrad<T>(v + v); });
    case UnaryOp::Sigmoid: return map2<T>(dx, x, dy, n, [](V v, V g) { return g * sigmoidGrad<T>(v); });
    case UnaryOp::Relu:
      return map2<T>(dx, x, dy, n, [](V v, V g) { return blend<T>(notAbove<T>(v, T::zero()), T::zero(), g); });
    case UnaryOp::Gelu:
      return map2<T>(dx, x, dy, n, [](V v, V g) { return g * (normalCdfOf<T>(v) + v * normalPdfOf<T>(v)); });
    case UnaryOp::Square: return map2<T>(dx, x, dy, n, [](V v, V g) { return (v + v) * g; });
  }
}

template <class T>
void unary(const UnaryArguments& args, Pool& pool) {
  mapPieces<T>(args.out, args.x, pool,
               [&](float* to, const float* from, int64_t n) { applyUnary<T>(args.op, to, from, n); });
}

template <class T>
void unaryBackward(const UnaryBackwardArguments& args, Pool& pool) {
  combinePieces<T>(args.dx, args.x, args.dy, pool, [&](float* to, const float* from, const float* dy, int64_t n) {
    applyUnaryBackward<T>(args.op, to, from, dy, n);
  });
}

}  // namespace
}  // namespace mosaic
