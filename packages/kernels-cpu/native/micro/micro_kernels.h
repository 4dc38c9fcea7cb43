// The kernels that compute products: one table per instruction set and product dtype. Attention and matrix
// multiplication use the same register tile (simd/register_tile.h).
#pragma once

#include "attention/attention_kernels.h"
#include "gemm/gemm_kernels.h"
#include "simd/isa.h"

namespace mosaic {

/// Kernels by dtype of the keys. Each folds at most QueryFold::kVectors vectors of keys, all of them visible. Null
/// where the table's products have no such kernel.
struct FoldQueryKernels {
  void (*float32)(const QueryFold& query, const KvRows& keys);
  void (*bf16)(const QueryFold& query, const KvRows& keys);
  void (*f16)(const QueryFold& query, const KvRows& keys);

  auto of(DType dtype) const { return dtype == DType::Float32 ? float32 : dtype == DType::BFloat16 ? bf16 : f16; }
};

struct MicroKernels {
  DType products;  // Float32 or BFloat16: the dtype that operands are converted to or already have
  AttentionKernels attention;
  AttentionKernels mediumAttention;  // panels of two vectors, forward only
  AttentionKernels narrowAttention;  // panels of one vector, for few rows; forward only
  FoldQueryKernels foldQuery;
  GemmKernels gemm;
  /// Runs `rounds` rounds of independent products on registers; returns the number of float operations.
  double (*peak)(int64_t rounds);
  /// Reads `count` floats, a multiple of 256, with almost no computation.
  float (*readAll)(const float* data, int64_t count);
};

/// Returns the table for an instruction set that this machine supports and operands that are all of `dtype`; mixed:
/// Float32.
const MicroKernels& microKernels(Isa isa, DType dtype);

}  // namespace mosaic
