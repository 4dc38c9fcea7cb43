// Tensors of the check, of any dtype and strides. Gaps between elements hold a sentinel that must be preserved.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "attention/attention.h"

namespace mosaic::check {

inline double decode(DType dtype, const void* at) {
  if (dtype == DType::Float32) {
    float x;
    std::memcpy(&x, at, sizeof x);
    return x;
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  if (dtype == DType::BFloat16) {
    const uint32_t floatBits = uint32_t{bits} << 16;
    float x;
    std::memcpy(&x, &floatBits, sizeof x);
    return x;
  }
  const int sign = bits >> 15 ? -1 : 1, exponent = bits >> 10 & 31, mantissa = bits & 1023;
  if (exponent == 31) return mantissa ? NAN : sign * INFINITY;
  return sign * (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25));
}

/// Truncates to the 16-bit types; correct rounding does not matter for a check.
inline void encode(DType dtype, double value, void* at) {
  const float x = static_cast<float>(value);
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if (dtype == DType::Float32) {
    std::memcpy(at, &bits, 4);
    return;
  }
  uint16_t half = static_cast<uint16_t>(bits >> 16);
  if (dtype == DType::Float16) {
    const int exponent = static_cast<int>(bits >> 23 & 255) - 127;
    half = static_cast<uint16_t>(bits >> 16 & 0x8000);
    if (std::isnan(x)) half |= 0x7e00;
    else if (exponent >= -14) half |= static_cast<uint16_t>((exponent + 15) << 10 | (bits >> 13 & 1023));
    else if (exponent >= -24) half |= static_cast<uint16_t>((1024 | (bits >> 13 & 1023)) >> (-14 - exponent));
  }
  std::memcpy(at, &half, 2);
}

enum class Layout { Dense, BSHD, BHDS, Padded };  // [B,H,S,D], [B,S,H,D], [B,H,D,S], odd gaps

class Tensor {
 public:
  Tensor(DType dtype, std::initializer_list<int64_t> shape, Layout layout) {
    view_.dtype = dtype;
    std::copy(shape.begin(), shape.end(), view_.shape);
    const int order[4][4] = {{0, 1, 2, 3}, {0, 2, 1, 3}, {0, 1, 3, 2}, {0, 1, 2, 3}};
    int64_t size = layout == Layout::Padded ? 3 : 1;
    for (int i = 3; i >= 0; --i) {
      const int axis = order[static_cast<int>(layout)][i];
      view_.stride[axis] = size;
      size = size * view_.shape[axis] + (layout == Layout::Padded ? 5 : 0);
    }
    bytes_.assign(static_cast<size_t>(std::max<int64_t>(size, 1) * dtypeBytes(dtype)), 0xff);  // NaN in every dtype
    view_.data = bytes_.data();
  }
  Tensor(const Tensor& other) : view_(other.view_), bytes_(other.bytes_) { view_.data = bytes_.data(); }
  Tensor& operator=(const Tensor&) = delete;

  const TensorView& view() const { return view_; }
  int64_t shape(int axis) const { return view_.shape[axis]; }
  double get(int64_t b, int64_t h, int64_t s, int64_t d = 0) const { return decode(view_.dtype, at(b, h, s, d)); }
  void set(int64_t b, int64_t h, int64_t s, int64_t d, double x) { encode(view_.dtype, x, at(b, h, s, d)); }

  template <class Fn>
  void forEachElement(Fn fn) const {
    for (int64_t b = 0; b < shape(0); ++b) {
      for (int64_t h = 0; h < shape(1); ++h) {
        for (int64_t s = 0; s < shape(2); ++s) {
          for (int64_t d = 0; d < shape(3); ++d) fn(b, h, s, d);
        }
      }
    }
  }
  void fill(double x) {
    forEachElement([&](int64_t b, int64_t h, int64_t s, int64_t d) { set(b, h, s, d, x); });
  }
  void randomize(std::mt19937& random, double factor) {
    std::normal_distribution<double> normal;
    forEachElement([&](int64_t b, int64_t h, int64_t s, int64_t d) { set(b, h, s, d, normal(random) * factor); });
  }
  /// Whether all bytes that belong to no element are unchanged.
  bool isPaddingIntact() const {
    Tensor copy(*this);
    copy.forEachElement([&](int64_t b, int64_t h, int64_t s, int64_t d) {
      std::memset(copy.at(b, h, s, d), 0xff, static_cast<size_t>(dtypeBytes(view_.dtype)));
    });
    return std::all_of(copy.bytes_.begin(), copy.bytes_.end(), [](unsigned char c) { return c == 0xff; });
  }
  bool hasSameBits(const Tensor& other) const { return bytes_ == other.bytes_; }
  /// Returns keys or rows [first, first + count).
  TensorView rows(int64_t first, int64_t count) const {
    TensorView rowsView = view_;
    rowsView.shape[2] = count;
    rowsView.data = const_cast<unsigned char*>(bytes_.data()) + first * view_.stride[2] * dtypeBytes(view_.dtype);
    return rowsView;
  }

 private:
  unsigned char* at(int64_t b, int64_t h, int64_t s, int64_t d) const {
    const int64_t offset = b * view_.stride[0] + h * view_.stride[1] + s * view_.stride[2] + d * view_.stride[3];
    return const_cast<unsigned char*>(bytes_.data()) + offset * dtypeBytes(view_.dtype);
  }
  TensorView view_{};
  std::vector<unsigned char> bytes_;
};

}  // namespace mosaic::check
