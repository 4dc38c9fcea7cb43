// Arithmetic element by element, with broadcasting.
#pragma once

#include "kernels/lanes.h"
#include "kernels/math.h"
#include "kernels/kernel_table.h"

namespace mosaic {
namespace {

/// out[i] ← fn(a[i], b[i]), all dense.
template <class T, class Fn>
MOSAIC_INLINE void map2(float* out, const float* a, const float* b, int64_t n, Fn fn) {
  int64_t i = 0;
  for (; i + T::lanes <= n; i += T::lanes) T::store(out + i, fn(T::load(a + i), T::load(b + i)));
  const int remaining = static_cast<int>(n - i);
  if (remaining > 0)
    T::storePartial(out + i, fn(T::loadPartial(a + i, remaining), T::loadPartial(b + i, remaining)), remaining);
}

/// out[i] ← fn(a[i], b[i], c[i]), all dense.
template <class T, class Fn>
MOSAIC_INLINE void map3(float* out, const float* a, const float* b, const float* c, int64_t n, Fn fn) {
  int64_t i = 0;
  for (; i + T::lanes <= n; i += T::lanes) T::store(out + i, fn(T::load(a + i), T::load(b + i), T::load(c + i)));
  const int remaining = static_cast<int>(n - i);
  const auto load = [&](const float* from) { return T::loadPartial(from + i, remaining); };
  if (remaining > 0) T::storePartial(out + i, fn(load(a), load(b), load(c)), remaining);
}

/// out[i] ← fn(a[i]), both dense.
template <class T, class Fn>
MOSAIC_INLINE void map1(float* out, const float* a, int64_t n, Fn fn) {
  int64_t i = 0;
  for (; i + T::lanes <= n; i += T::lanes) T::store(out + i, fn(T::load(a + i)));
  const int remaining = static_cast<int>(n - i);
  if (remaining > 0) T::storePartial(out + i, fn(T::loadPartial(a + i, remaining)), remaining);
}

/// Returns the larger operand, or NaN if either is NaN.
template <class T>
MOSAIC_INLINE typename T::Vec maxNan(typename T::Vec a, typename T::Vec b) {
  return blend<T>(isNan<T>(a), a, T::max(a, b));  // T::max returns b if either is NaN
}

template <class T>
MOSAIC_NOINLINE void applyBinary(BinaryOp op, float* out, const float* a, const float* b, int64_t n) {
  using V = typename T::Vec;
  switch (op) {
    case BinaryOp::Add: return map2<T>(out, a, b, n, [](V x, V y) { return T::add(x, y); });
    case BinaryOp::Sub: return map2<T>(out, a, b, n, [](V x, V y) { return T::sub(x, y); });
    case BinaryOp::Mul: return map2<T>(out, a, b, n, [](V x, V y) { return T::mul(x, y); });
    case BinaryOp::Div: return map2<T>(out, a, b, n, [](V x, V y) { return T::div(x, y); });
    case BinaryOp::Max: return map2<T>(out, a, b, n, [](V x, V y) { return maxNan<T>(x, y); });
  }
}

/// out ← fn(a, b) by chunks; fn(to, x, y, n) works on dense float32.
template <class T, class Fn>
MOSAIC_INLINE void zipChunks(const View& out, const View& a, const View& b, Pool& pool, Fn fn) {
  const Loop<3> loop = makeLoop<3>({&out, &a, &b});
  const int innerAxis = loop.rank - 1;
  forEachChunk(loop, pool, [&](const Chunk<3>& chunk) {
    float buffers[3][kChunkElements];
    const int64_t n = chunk.length;
    const float* x = fetch<T>(loop.dtype[1], chunk.data[1], loop.stride[1][innerAxis], n, buffers[1]);
    const float* y = fetch<T>(loop.dtype[2], chunk.data[2], loop.stride[2][innerAxis], n, buffers[2]);
    float* to = target(loop.dtype[0], chunk.data[0], loop.stride[0][innerAxis], buffers[0]);
    fn(to, x, y, n);
    flush<T>(loop.dtype[0], chunk.data[0], loop.stride[0][innerAxis], n, to);
  });
}

template <class T>
void binary(const BinaryArguments& args, Pool& pool) {
  zipChunks<T>(args.out, args.a, args.b, pool, [&](float* to, const float* x, const float* y, int64_t n) {
    applyBinary<T>(args.op, to, x, y, n);
  });
}

/// out ← fn(x) by chunks; fn(to, from, n) works on dense float32.
template <class T, class Fn>
MOSAIC_INLINE void mapChunks(const View& out, const View& x, Pool& pool, Fn fn) {
  const Loop<2> loop = makeLoop<2>({&out, &x});
  const int innerAxis = loop.rank - 1;
  forEachChunk(loop, pool, [&](const Chunk<2>& chunk) {
    float buffers[2][kChunkElements];
    const float* from = fetch<T>(loop.dtype[1], chunk.data[1], loop.stride[1][innerAxis], chunk.length, buffers[1]);
    float* to = target(loop.dtype[0], chunk.data[0], loop.stride[0][innerAxis], buffers[0]);
    fn(to, from, chunk.length);
    flush<T>(loop.dtype[0], chunk.data[0], loop.stride[0][innerAxis], chunk.length, to);
  });
}

template <class T>
void scalar(const ScalarArguments& args, Pool& pool) {
  float values[kChunkElements];
  for (float& element : values) element = args.value;
  mapChunks<T>(args.out, args.x, pool,
               [&](float* to, const float* from, int64_t n) { applyBinary<T>(args.op, to, from, values, n); });
}

// Unary functions and their derivatives.

/// Computes the argument u of geluTanh's sigmoid, ½ (1 + tanh(u / 2)), and du/dx. The cubic term is limited to its
/// value at |x| = 1000, so that no product overflows where the sigmoid has long been 0 or 1.
template <class T>
MOSAIC_INLINE void computeGeluTanhArgument(typename T::Vec x, typename T::Vec& u, typename T::Vec& slope) {
  using V = typename T::Vec;
  const V one = T::set1(1.0f), twice = T::set1(1.59576912160573071f);  // 2 √(2/π)
  const V cubic = T::set1(0.044715f) * T::min(x * x, T::set1(1e6f));
  u = twice * x * (one + cubic);
  slope = twice * (one + T::set1(3.0f) * cubic);
}

/// Calls visit(fn) with a function of vectors. gelu is the exact form x · Φ(x) (Hendrycks and Gimpel 2016), PyTorch's
/// default; geluTanh is their approximation.
template <class T, class Visit>
MOSAIC_INLINE void visitUnary(UnaryOp op, const Visit& visit) {
  using V = typename T::Vec;
  switch (op) {
    case UnaryOp::Neg: return visit([](V v) { return negate<T>(v); });
    case UnaryOp::Exp: return visit([](V v) { return expOf<T>(v); });
    case UnaryOp::Log: return visit([](V v) { return logOf<T>(v); });
    case UnaryOp::Sqrt: return visit([](V v) { return sqrtOf<T>(v); });
    case UnaryOp::Rsqrt: return visit([](V v) { return T::set1(1.0f) / sqrtOf<T>(v); });
    case UnaryOp::Tanh: return visit([](V v) { return tanhOf<T>(v); });
    case UnaryOp::Sigmoid: return visit([](V v) { return computeSigmoid<T>(v).value; });
    case UnaryOp::Relu: return visit([](V v) { return T::max(T::zero(), v); });  // keeps NaN
    case UnaryOp::Gelu: return visit([](V v) { return v * computeNormal<T>(v).cdf; });
    case UnaryOp::GeluTanh:
      return visit([](V v) {
        V u, slope;
        computeGeluTanhArgument<T>(v, u, slope);
        return v * computeSigmoid<T>(u).value;
      });
    case UnaryOp::Silu: return visit([](V v) { return v * computeSigmoid<T>(v).value; });
    case UnaryOp::Square: return visit([](V v) { return v * v; });
  }
}

template <class T>
MOSAIC_NOINLINE void applyUnary(UnaryOp op, float* out, const float* x, int64_t n) {
  visitUnary<T>(op, [&](const auto& fn) __attribute__((always_inline)) { map1<T>(out, x, n, fn); });
}

template <class T>
MOSAIC_NOINLINE void applyUnaryBackward(UnaryOp op, float* dx, const float* x, const float* dy, int64_t n) {
  using V = typename T::Vec;
  switch (op) {
    case UnaryOp::Neg: return map2<T>(dx, x, dy, n, [](V, V g) { return negate<T>(g); });
    case UnaryOp::Exp: return map2<T>(dx, x, dy, n, [](V v, V g) { return g * expOf<T>(v); });
    case UnaryOp::Log: return map2<T>(dx, x, dy, n, [](V v, V g) { return g / v; });
    case UnaryOp::Sqrt: return map2<T>(dx, x, dy, n, [](V v, V g) { return T::set1(0.5f) * g / sqrtOf<T>(v); });
    case UnaryOp::Rsqrt:
      return map2<T>(dx, x, dy, n, [](V v, V g) { return T::set1(-0.5f) * g / (v * sqrtOf<T>(v)); });
    case UnaryOp::Tanh:
      return map2<T>(dx, x, dy, n, [](V v, V g) { return g * (T::set1(4) * computeSigmoid<T>(v + v).slope); });
    case UnaryOp::Sigmoid:
      return map2<T>(dx, x, dy, n, [](V v, V g) { return g * computeSigmoid<T>(v).slope; });
    case UnaryOp::Relu:
      return map2<T>(dx, x, dy, n, [](V v, V g) { return blend<T>(lessOrEqual<T>(v, T::zero()), T::zero(), g); });
    case UnaryOp::Gelu:
      return map2<T>(dx, x, dy, n, [](V v, V g) {
        const auto [cdf, density] = computeNormal<T>(v);
        return g * (cdf + v * density);
      });
    case UnaryOp::GeluTanh:
      return map2<T>(dx, x, dy, n, [](V v, V g) {
        V u, slope;
        computeGeluTanhArgument<T>(v, u, slope);
        const Sigmoid<T> s = computeSigmoid<T>(u);
        return g * (s.value + v * s.slope * slope);
      });
    case UnaryOp::Silu:
      return map2<T>(dx, x, dy, n, [](V v, V g) {
        const auto [value, slope] = computeSigmoid<T>(v);
        return g * (value + v * slope);
      });
    case UnaryOp::Square: return map2<T>(dx, x, dy, n, [](V v, V g) { return (v + v) * g; });
  }
}

template <class T>
void unary(const UnaryArguments& args, Pool& pool) {
  mapChunks<T>(args.out, args.x, pool,
               [&](float* to, const float* from, int64_t n) { applyUnary<T>(args.op, to, from, n); });
}

template <class T>
void gate(const GateArguments& args, Pool& pool) {
  if (!args.activation) return binary<T>({BinaryOp::Mul, args.out, args.gate, args.x}, pool);
  zipChunks<T>(args.out, args.gate, args.x, pool, [&](float* to, const float* from, const float* x, int64_t n) {
    float activated[kChunkElements];
    applyUnary<T>(*args.activation, activated, from, n);
    applyBinary<T>(BinaryOp::Mul, to, activated, x, n);
  });
}

template <class T>
void unaryBackward(const UnaryBackwardArguments& args, Pool& pool) {
  zipChunks<T>(args.dx, args.x, args.dy, pool, [&](float* to, const float* from, const float* dy, int64_t n) {
    applyUnaryBackward<T>(args.op, to, from, dy, n);
  });
}

}  // namespace
}  // namespace mosaic
