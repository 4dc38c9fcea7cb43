// The kernel table of one vector trait. Included by kernels_<isa>.cc only, see simd/isa.h.
#pragma once

#include "attention/fold_block.h"
#include "attention/gradient_block.h"
#include "attention/kernels.h"
#include "attention/pack.h"

namespace mosaic {

/// 12 independent chains of multiply-adds hide the latency on every supported machine and fit 16 registers; a Scalar
/// vector takes four of SSE2's.
template <class V>
MOSAIC_NOINLINE double fmaRounds(int64_t rounds) {
  constexpr int chains = V::isa == Isa::Scalar ? 3 : 12;
  typename V::Vec x[chains];
#pragma GCC unroll 16
  for (int i = 0; i < chains; ++i) x[i] = V::set1(static_cast<float>(i));
  const typename V::Vec a = V::set1(0.5f), b = V::set1(1.0f);
  for (int64_t t = 0; t < rounds; ++t) {
#pragma GCC unroll 16
    for (int i = 0; i < chains; ++i) x[i] = V::fma(x[i], a, b);
  }
  typename V::Vec total = x[0];
#pragma GCC unroll 16
  for (int i = 1; i < chains; ++i) total = V::add(total, x[i]);
  float kept[V::lanes];
  V::store(kept, total);
  __asm__ volatile("" : : "r"(kept) : "memory");
  return 2.0 * chains * V::lanes * static_cast<double>(rounds);
}

template <class V>
constexpr AttentionKernels makeKernels() {
  return {
      .width = FoldBlock<V>::width,
      .rowPadding = V::lanes,
      .unpack = Pack<V>::unpack,
      .finite = Pack<V>::finite,
      .toPanel = Pack<V>::toPanel,
      .fromPanel = Pack<V>::fromPanel,
      .fold = FoldBlock<V>::fold,
      .foldMasked = FoldBlock<V>::foldMasked,
      .gradient = GradientBlock<V>::gradient,
      .gradientMasked = GradientBlock<V>::gradientMasked,
      .keyGradient = GradientBlock<V>::keyGradient,
      .keyGradientMasked = GradientBlock<V>::keyGradientMasked,
      .peak = fmaRounds<V>,
  };
}

}  // namespace mosaic
