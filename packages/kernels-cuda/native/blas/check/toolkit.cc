// Compares what we declare of cuBLASLt with NVIDIA's own cublasLt.h. Compiled where there is one; nothing runs.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

namespace ours {
#include "blas/api.h"
}
using namespace ours::mosaic::cuda;
namespace mosaic = ours::mosaic;

#include <cublasLt.h>

#include "mosaic/same_abi.h"

#define CHECK_VALUE(mine, theirs) static_assert(static_cast<int>(mine) == static_cast<int>(theirs), #theirs);

CHECK_VALUE(BLAS_SUCCESS, CUBLAS_STATUS_SUCCESS)
CHECK_VALUE(BLAS_NOT_INITIALIZED, CUBLAS_STATUS_NOT_INITIALIZED)
CHECK_VALUE(BLAS_INVALID_VALUE, CUBLAS_STATUS_INVALID_VALUE)
CHECK_VALUE(BLAS_NOT_SUPPORTED, CUBLAS_STATUS_NOT_SUPPORTED)
CHECK_VALUE(BLAS_FLOAT32, CUDA_R_32F)
CHECK_VALUE(BLAS_FLOAT16, CUDA_R_16F)
CHECK_VALUE(BLAS_BFLOAT16, CUDA_R_16BF)
CHECK_VALUE(BLAS_COMPUTE_FLOAT32, CUBLAS_COMPUTE_32F)
CHECK_VALUE(BLAS_COMPUTE_TF32, CUBLAS_COMPUTE_32F_FAST_TF32)
CHECK_VALUE(BLAS_NO_TRANSPOSE, CUBLAS_OP_N)
CHECK_VALUE(BLAS_TRANSPOSE, CUBLAS_OP_T)
CHECK_VALUE(BLAS_TRANSPOSE_A, CUBLASLT_MATMUL_DESC_TRANSA)
CHECK_VALUE(BLAS_TRANSPOSE_B, CUBLASLT_MATMUL_DESC_TRANSB)
CHECK_VALUE(BLAS_BATCH_COUNT, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT)
CHECK_VALUE(BLAS_BATCH_STRIDE, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET)
CHECK_VALUE(BLAS_WORKSPACE_BYTES, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
CHECK_VALUE(BLAS_REDUCTION_SCHEMES, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
CHECK_VALUE(BLAS_ALIGNMENT_A, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES)
CHECK_VALUE(BLAS_ALIGNMENT_B, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES)
CHECK_VALUE(BLAS_ALIGNMENT_C, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES)
CHECK_VALUE(BLAS_ALIGNMENT_D, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES)
CHECK_VALUE(BLAS_REDUCE_IN_COMPUTE_TYPE, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)

static_assert(sizeof(BlasAlgorithm) == sizeof(cublasLtMatmulAlgo_t));
static_assert(sizeof(BlasHeuristicResult) == sizeof(cublasLtMatmulHeuristicResult_t));
static_assert(offsetof(BlasHeuristicResult, workspaceBytes) ==
              offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
static_assert(offsetof(BlasHeuristicResult, state) == offsetof(cublasLtMatmulHeuristicResult_t, state));

#define CHECK_SIGNATURE(name, symbol, result, parameters) \
  static_assert(check::hasSameAbi<std::remove_pointer_t<decltype(BlasFunctions::name)>, decltype(symbol)>, #symbol);
MOSAIC_CUBLASLT(CHECK_SIGNATURE)
