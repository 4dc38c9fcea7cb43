// A stand-in for cuBLASLt: describes products as the library does, and refuses what it would refuse.
#include "descriptors.h"

#include <cstring>

using namespace mosaic::cuda;

namespace {

/// Sets a field if the caller means as many bytes as it has.
template <class T>
BlasStatus take(T& field, const void* value, size_t bytes) {
  if (!value || bytes != sizeof(T)) return BLAS_INVALID_VALUE;
  std::memcpy(&field, value, bytes);
  return BLAS_SUCCESS;
}

}  // namespace

extern "C" {

BlasStatus cublasLtCreate(BlasHandle* handle) { return *handle = new mosaicBlasContext{}, BLAS_SUCCESS; }
BlasStatus cublasLtDestroy(BlasHandle handle) { return delete handle, BLAS_SUCCESS; }
size_t cublasLtGetVersion() { return 130101; }

const char* cublasLtGetStatusName(BlasStatus status) {
  switch (status) {
    case BLAS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case BLAS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case BLAS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case BLAS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    default: return "CUBLAS_STATUS_UNKNOWN";
  }
}

BlasStatus cublasLtMatmulDescCreate(BlasProduct* product, int computeType, int scaleType) {
  return *product = new mosaicBlasProduct{computeType, scaleType}, BLAS_SUCCESS;
}

BlasStatus cublasLtMatmulDescDestroy(BlasProduct product) { return delete product, BLAS_SUCCESS; }

BlasStatus cublasLtMatmulDescSetAttribute(BlasProduct product, int attribute, const void* value, size_t bytes) {
  switch (attribute) {
    case BLAS_TRANSPOSE_A: return take(product->transposeA, value, bytes);
    case BLAS_TRANSPOSE_B: return take(product->transposeB, value, bytes);
    default: return BLAS_NOT_SUPPORTED;
  }
}

BlasStatus cublasLtMatrixLayoutCreate(BlasLayout* layout, int type, uint64_t rows, uint64_t columns, int64_t lead) {
  return *layout = new mosaicBlasLayout{type, rows, columns, lead}, BLAS_SUCCESS;
}

BlasStatus cublasLtMatrixLayoutDestroy(BlasLayout layout) { return delete layout, BLAS_SUCCESS; }

BlasStatus cublasLtMatrixLayoutSetAttribute(BlasLayout layout, int attribute, const void* value, size_t bytes) {
  switch (attribute) {
    case BLAS_BATCH_COUNT: return take(layout->batch, value, bytes);
    case BLAS_BATCH_STRIDE: return take(layout->batchStride, value, bytes);
    default: return BLAS_NOT_SUPPORTED;
  }
}

BlasStatus cublasLtMatmulPreferenceCreate(BlasPreference* preference) {
  return *preference = new mosaicBlasPreference, BLAS_SUCCESS;
}

BlasStatus cublasLtMatmulPreferenceDestroy(BlasPreference preference) { return delete preference, BLAS_SUCCESS; }

BlasStatus cublasLtMatmulPreferenceSetAttribute(BlasPreference preference, int attribute, const void* value,
                                                size_t bytes) {
  switch (attribute) {
    case BLAS_WORKSPACE_BYTES: return take(preference->workspaceBytes, value, bytes);
    case BLAS_REDUCTION_SCHEMES: return take(preference->reductionSchemes, value, bytes);
    case BLAS_ALIGNMENT_A:
    case BLAS_ALIGNMENT_B:
    case BLAS_ALIGNMENT_C:
    case BLAS_ALIGNMENT_D: return take(preference->alignments[attribute - BLAS_ALIGNMENT_A], value, bytes);
    default: return BLAS_NOT_SUPPORTED;
  }
}

}  // extern "C"
