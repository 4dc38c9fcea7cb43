// The part of cuBLASLt that is used, declared here so that the build requires nothing of CUDA. Types and values are
// those of NVIDIA's cublasLt.h, version 12.0. If that header is available, the build compares the two.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

extern "C" {

typedef struct CUstream_st* CUstream;
typedef struct mosaicBlasContext* BlasHandle;
typedef struct mosaicBlasMatmulDesc* BlasMatmulDesc;
typedef struct mosaicBlasLayout* BlasLayout;
typedef struct mosaicBlasPreference* BlasPreference;
typedef int BlasStatus;

}  // extern "C"

namespace mosaic::cuda {

enum : BlasStatus { BLAS_SUCCESS = 0, BLAS_NOT_INITIALIZED = 1, BLAS_INVALID_VALUE = 7, BLAS_NOT_SUPPORTED = 15 };

/// cudaDataType
enum BlasType : int { BLAS_FLOAT32 = 0, BLAS_FLOAT16 = 2, BLAS_BFLOAT16 = 14 };
/// cublasComputeType_t: how factors are multiplied, either as float32 or rounded to TF32.
enum BlasCompute : int { BLAS_COMPUTE_FLOAT32 = 68, BLAS_COMPUTE_TF32 = 77 };
/// cublasOperation_t
enum BlasOperation : int { BLAS_NO_TRANSPOSE = 0, BLAS_TRANSPOSE = 1 };
/// cublasLtMatmulDescAttributes_t
enum BlasMatmulDescAttribute : int {
  BLAS_TRANSPOSE_A = 3,
  BLAS_TRANSPOSE_B = 4,
  BLAS_EPILOGUE = 7,
  BLAS_BIAS_POINTER = 8,
};
/// cublasLtEpilogue_t: the operation on float32 sums before they are rounded. A bias has one element per row.
constexpr uint32_t BLAS_EPILOGUE_BIAS = 4;
/// cublasLtMatrixLayoutAttribute_t: int32_t, int64_t (elements)
enum BlasLayoutAttribute : int { BLAS_BATCH_COUNT = 5, BLAS_BATCH_STRIDE = 6 };
/// cublasLtMatmulPreferenceAttributes_t: uint64_t; the following ones uint32_t
enum BlasPreferenceAttribute : int {
  BLAS_WORKSPACE_BYTES = 1,
  BLAS_REDUCTION_SCHEMES = 3,
  BLAS_ALIGNMENT_A = 5,
  BLAS_ALIGNMENT_B = 6,
  BLAS_ALIGNMENT_C = 7,
  BLAS_ALIGNMENT_D = 8,
};
/// cublasLtReductionScheme_t: partial sums are added in the compute type, not in the type of the result.
constexpr uint32_t BLAS_REDUCE_IN_COMPUTE_TYPE = 2;

/// cublasLtMatmulAlgo_t
struct BlasAlgorithm {
  uint64_t data[8];
};
/// cublasLtMatmulHeuristicResult_t
struct BlasHeuristicResult {
  BlasAlgorithm algorithm;
  size_t workspaceBytes;
  BlasStatus state;
  float waves;
  int reserved[4];
};

/// One line per function: X(name, symbol, result, parameters)
#define MOSAIC_CUBLASLT(X)                                                                                           \
  X(create, cublasLtCreate, BlasStatus, (BlasHandle * handle))                                                       \
  X(destroy, cublasLtDestroy, BlasStatus, (BlasHandle handle))                                                       \
  X(getVersion, cublasLtGetVersion, size_t, (void))                                                                  \
  X(getStatusName, cublasLtGetStatusName, const char*, (BlasStatus status))                                          \
  X(matmulDescCreate, cublasLtMatmulDescCreate, BlasStatus,                                                          \
    (BlasMatmulDesc * product, int computeType, int scaleType))                                                      \
  X(matmulDescDestroy, cublasLtMatmulDescDestroy, BlasStatus, (BlasMatmulDesc product))                              \
  X(matmulDescSet, cublasLtMatmulDescSetAttribute, BlasStatus,                                                       \
    (BlasMatmulDesc product, int attribute, const void* value, size_t bytes))                                        \
  X(layoutCreate, cublasLtMatrixLayoutCreate, BlasStatus,                                                            \
    (BlasLayout * layout, int type, uint64_t rows, uint64_t columns, int64_t leadingDimension))                      \
  X(layoutDestroy, cublasLtMatrixLayoutDestroy, BlasStatus, (BlasLayout layout))                                     \
  X(layoutSet, cublasLtMatrixLayoutSetAttribute, BlasStatus,                                                         \
    (BlasLayout layout, int attribute, const void* value, size_t bytes))                                             \
  X(preferenceCreate, cublasLtMatmulPreferenceCreate, BlasStatus, (BlasPreference * preference))                     \
  X(preferenceDestroy, cublasLtMatmulPreferenceDestroy, BlasStatus, (BlasPreference preference))                     \
  X(preferenceSet, cublasLtMatmulPreferenceSetAttribute, BlasStatus,                                                 \
    (BlasPreference preference, int attribute, const void* value, size_t bytes))                                     \
  X(select, cublasLtMatmulAlgoGetHeuristic, BlasStatus,                                                              \
    (BlasHandle handle, BlasMatmulDesc product, BlasLayout a, BlasLayout b, BlasLayout c, BlasLayout d,              \
     BlasPreference preference, int requestedCount, mosaic::cuda::BlasHeuristicResult* choices, int* returnedCount)) \
  X(multiply, cublasLtMatmul, BlasStatus,                                                                            \
    (BlasHandle handle, BlasMatmulDesc product, const void* alpha, const void* a, BlasLayout aLayout, const void* b, \
     BlasLayout bLayout, const void* beta, const void* c, BlasLayout cLayout, void* d, BlasLayout dLayout,           \
     const mosaic::cuda::BlasAlgorithm* algorithm, void* workspace, size_t workspaceBytes, CUstream stream))

/// The library's functions, loaded at run time.
struct BlasFunctions {
#define MOSAIC_CUBLASLT_POINTER(name, symbol, result, parameters) result(*name) parameters = nullptr;
  MOSAIC_CUBLASLT(MOSAIC_CUBLASLT_POINTER)
#undef MOSAIC_CUBLASLT_POINTER
};

/// Returns the largest power of two, up to 256, that divides an address: the alignment that cuBLASLt may assume.
inline uint32_t alignmentOf(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  return static_cast<uint32_t>(std::min<uintptr_t>(address & -address, 256));
}

// Loads cuBLASLt at run time. It takes half a gigabyte, and is part of the CUDA Toolkit, not of the driver.

struct BlasLibrary {
  BlasFunctions functions;
  std::string name;
  /// "13.1.1"
  std::string version;
};

/// Returns the process's cuBLASLt, or null if there is none. MOSAIC_CUBLASLT_LIBRARY names it ("none" for none); by
/// default, the usual names in the toolkit or in Python packages are tried, for a version that matches the driver.
/// Throws Failure if the variable names a library that cannot be loaded.
const BlasLibrary* blasLibrary();

}  // namespace mosaic::cuda
