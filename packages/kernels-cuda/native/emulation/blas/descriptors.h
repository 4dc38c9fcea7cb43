// What the stand-in for cuBLASLt keeps of its descriptors.
#pragma once

#include <cstdint>

#include "blas/api.h"

struct mosaicBlasContext {
  int unused;
};

/// Attributes that were not set are those of the library's defaults.
struct mosaicBlasProduct {
  int computeType, scaleType;
  int32_t transposeA = 0, transposeB = 0;
};

struct mosaicBlasLayout {
  int type;
  uint64_t rows, columns;
  int64_t lead;
  int32_t batch = 1;
  int64_t batchStride = 0;
};

struct mosaicBlasPreference {
  uint64_t workspaceBytes = 0;
  uint32_t reductionSchemes = 7;
  uint32_t alignments[4] = {256, 256, 256, 256};  // of a, b, c, d
};
