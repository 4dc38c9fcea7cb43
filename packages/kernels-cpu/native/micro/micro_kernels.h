// The kernels of products, one table for each instruction set and dtype of products: attention and matrix
// multiplication on the same register tile (simd/register_tile.h).
#pragma once

#include "attention/attention_kernels.h"
#include "gemm/gemm_kernels.h"
#include "simd/isa.h"

namespace mosaic {

/// Each folds at most QueryFold::kVectors vectors of keys, all of them seen, of one dtype. Null where products do not
/// have it.
struct FoldQueryKernels {
  void (*float32)(const QueryFold& query, const KvRows& keys);
  void (*bf16)(const QueryFold& query, const KvRows& keys);
  void (*f16)(const QueryFold& query, const KvRows& keys);

  auto of(DType dtype) const { return dtype == DType::Float32 ? float32 : dtype == DType::BFloat16 ? bf16 : f16; }
};

struct MicroKernels {
  DType products;  // Float32 or BFloat16: what operands are converted to, or are
  AttentionKernels attention;
  AttentionKernels narrowAttention;  // panels of one vector, for few rows; forward only
  FoldQueryKernels foldQuery;
  GemmKernels gemm;
  /// Runs `rounds` rounds of independent products on registers; returns the float operations done.
  double (*peak)(int64_t rounds);
  /// Reads `count` floats, a multiple of 256, and does next to nothing with them.
  float (*readAll)(const float* data, int64_t count);
};

/// The table of an instruction set that this machine supports, for operands that are all of `dtype`, or mixed: Float32.
const MicroKernels& microKernels(Isa isa, DType dtype);

}  // namespace mosaic
