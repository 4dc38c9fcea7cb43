// The table for one vector trait and product dtype. Included by micro_kernels_<isa>.cc only, see simd/isa.h.
#pragma once

#include "attention/fold_block.h"
#include "attention/fold_query.h"
#include "attention/gradient_block.h"
#include "attention/pack.h"
#include "attention/row_lse.h"
#include "gemm/gemm_block.h"
#include "gemm/gemm_pack.h"
#include "gemm/row_dots.h"
#include "micro/micro_kernels.h"

namespace mosaic {

/// 12 independent chains of multiply-adds hide the latency on every supported x86 and fit 16 registers. Arm has four
/// pipes and 32 registers. A Scalar vector occupies four SSE2 registers.
template <class V, class E>
MOSAIC_NOINLINE double runPeakRounds(int64_t rounds) {
  constexpr int chains = V::isa == Isa::Scalar ? 3 : V::lanes == 4 ? 24 : 12;
  typename V::Vec x[chains];
#pragma GCC unroll 32
  for (int i = 0; i < chains; ++i) x[i] = V::set1(static_cast<float>(i));
  const typename V::Vec a = V::set1(0.5f), b = V::set1(1.0f);
  for (int64_t t = 0; t < rounds; ++t) {
#pragma GCC unroll 32
    for (int i = 0; i < chains; ++i) {
      if constexpr (E::valuesPerElement == 1) {
        x[i] = V::fma(x[i], a, b);
      } else {
        x[i] = V::dot(reinterpret_cast<typename V::Pairs>(a), reinterpret_cast<typename V::Pairs>(b), x[i]);
      }
    }
  }
  typename V::Vec total = x[0];
#pragma GCC unroll 32
  for (int i = 1; i < chains; ++i) total = V::add(total, x[i]);
  float sink[V::lanes];
  V::store(sink, total);
  __asm__ volatile("" : : "r"(sink) : "memory");
  return 2.0 * E::valuesPerElement * chains * V::lanes * static_cast<double>(rounds);
}

template <class V>
MOSAIC_NOINLINE float readAll(const float* data, int64_t count) {
  constexpr int chains = 4;
  typename V::Vec sum[chains];
#pragma GCC unroll 4
  for (int i = 0; i < chains; ++i) sum[i] = V::zero();
  for (int64_t offset = 0; offset < count; offset += chains * V::lanes) {
#pragma GCC unroll 4
    for (int i = 0; i < chains; ++i) sum[i] = V::add(sum[i], V::load(data + offset + i * V::lanes));
  }
  return V::sum(V::add(V::add(sum[0], sum[1]), V::add(sum[2], sum[3])));
}

/// Returns the attention kernels for panels of N vectors; only the widest panels have a backward.
template <class V, class E, int N>
constexpr AttentionKernels makeAttentionKernels() {
  constexpr bool isPaired = E::valuesPerElement == 2;
  using Packing = Pack<V, E, N>;
  using Results = ResultPanel<V, FoldBlock<V, E, N>::width>;
  AttentionKernels table{};
  table.products = isPaired ? DType::BFloat16 : DType::Float32;
  table.width = FoldBlock<V, E, N>::width;
  table.depthMultiple = Packing::depthMultiple;
  table.keyMultiple = Packing::keyMultiple;
  constexpr int tileRows = E::template Shape<V>::rows;
  table.tileKeys = tileRows > Packing::keyMultiple ? tileRows : Packing::keyMultiple;
  table.keyBlock = isPaired ? 256 : 128;
  table.gradientBlock = isPaired ? 128 : 96;
  table.readsValueRows = FoldBlock<V, E, N>::readsValueRows;
  table.unpack = Packing::unpack;
  table.isFinite = Packing::isFinite;
  table.toPanel = Packing::toPanel;
  table.fromPanel = Results::store;
  table.computeLse = RowLse<V, N>::compute;
  table.fold = FoldBlock<V, E, N>::fold;
  table.foldMasked = FoldBlock<V, E, N>::foldMasked;
  if constexpr (!isPaired) table.foldModified = FoldBlock<V, E, N>::foldModified;
  if constexpr (N == E::template Shape<V>::vectors) {
    table.computeGradients = GradientBlock<V, E>::computeGradients;
    table.computeMaskedGradients = GradientBlock<V, E>::computeMaskedGradients;
    table.addKeyGradient = GradientBlock<V, E>::addKeyGradient;
    table.addMaskedKeyGradient = GradientBlock<V, E>::addMaskedKeyGradient;
    if constexpr (!isPaired) table.computeModifiedGradients = GradientBlock<V, E>::computeModifiedGradients;
  }
  if constexpr (isPaired) {
    table.transpose = Packing::transpose;
    table.pairRows = Packing::pairRows;
  }
  return table;
}

template <class V, class E>
constexpr GemmKernels makeGemmKernels() {
  using Shape = typename E::template Shape<V>;
  using Packing = GemmPack<V, E>;
  GemmKernels table{};
  static_assert(kBlockRows % Shape::wideRows == 0, "blocks of rows consist of whole tiles");
  table.tileRows = Shape::wideRows;
  table.tileColumns = Shape::wideVectors * V::lanes;
  table.depthMultiple = Packing::depthMultiple;
  table.rowMultiple = Packing::rowMultiple;
  table.blockDepth = E::valuesPerElement == 1 ? 256 : 512;
  table.packColumns = Packing::packColumns;
  table.packRows = Packing::packRows;
  table.multiply = BlockProduct<V, E>::multiply;
  table.store = ProductStore<V>::run;
  table.widenRow = RowProduct<V>::widenRow;
  table.multiplyRows = RowProduct<V>::multiply;
  return table;
}

/// Returns the single-query kernels. Products of pairs read bfloat16 keys only, float32 products keys of any dtype.
/// Tile registers have no such kernels, because they sum scores in a different order than vectors do.
template <class V, class E>
constexpr FoldQueryKernels makeFoldQueryKernels() {
  if constexpr (E::valuesPerElement == 1) {
    return {FoldQuery<V, E, DType::Float32>::fold, FoldQuery<V, E, DType::BFloat16>::fold,
            FoldQuery<V, E, DType::Float16>::fold};
  } else if constexpr (!RegisterTile<V, E, E::template Shape<V>::rows, 1>::isAsynchronous) {
    return {nullptr, FoldQuery<V, E, DType::BFloat16>::fold, nullptr};
  } else {
    return {};
  }
}

template <class V, class E>
constexpr MicroKernels makeMicroKernels() {
  constexpr bool isPaired = E::valuesPerElement == 2;
  constexpr int vectors = E::template Shape<V>::vectors, mediumVectors = vectors < 2 ? vectors : 2;
  static_assert(FoldBlock<V, E, 1>::readsValueRows || !FoldBlock<V, E, mediumVectors>::readsValueRows,
                "narrow panels are folded together with medium ones, from the same blocks");
  return {isPaired ? DType::BFloat16 : DType::Float32,
          makeAttentionKernels<V, E, vectors>(),
          makeAttentionKernels<V, E, mediumVectors>(),
          makeAttentionKernels<V, E, 1>(),
          makeFoldQueryKernels<V, E>(),
          makeGemmKernels<V, E>(),
          runPeakRounds<V, E>,
          readAll<V>};
}

}  // namespace mosaic
