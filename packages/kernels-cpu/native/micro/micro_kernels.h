// The kernels of products, one table for each instruction set and dtype of products: attention and matrix
// multiplication on the same register tile (simd/register_tile.h).
#pragma once

#include "attention/attention_kernels.h"
#include "gemm/gemm_kernels.h"
#include "simd/isa.h"

namespace mosaic {

struct MicroKernels {
  DType products;  // Float32 or BFloat16: what operands are converted to, or are
  AttentionKernels attention;
  AttentionKernels narrowAttention;  // panels of one vector, for few rows; forward only
  /// Folds at most QueryFold::kVectors vectors of keys, all of them seen. Products on tile registers do not have it.
  void (*foldQuery)(const QueryFold& query, const KvRows& keys);
  GemmKernels gemm;
  /// Runs `rounds` rounds of independent products on registers; returns the float operations done.
  double (*peak)(int64_t rounds);
  /// Reads `count` floats, a multiple of 256, and does next to nothing with them.
  float (*readAll)(const float* data, int64_t count);
};

/// The table of an instruction set that this machine supports, for operands that are all of `dtype`, or mixed: Float32.
const MicroKernels& microKernels(Isa isa, DType dtype);

}  // namespace mosaic
