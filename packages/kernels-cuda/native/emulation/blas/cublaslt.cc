// An emulated cuBLASLt: the library's descriptors, its validation, a heuristic, and the product, which runs on a stream
// of the emulated driver and checks every address.
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "blas/api.h"
#include "driver/state.h"
#include "engine/memory.h"

struct mosaicBlasContext {
  int unused;
};

/// CUBLASLT_EPILOGUE_DEFAULT
constexpr uint32_t kDefaultEpilogue = 1;

/// Attributes that are not set have the library's defaults.
struct mosaicBlasMatmulDesc {
  int computeType, scaleType;
  int32_t transposeA = 0, transposeB = 0;
  uint32_t epilogue = kDefaultEpilogue;
  const void* bias = nullptr;
};

struct mosaicBlasLayout {
  int type;
  uint64_t rows, columns;
  int64_t leadingDimension;
  int32_t batch = 1;
  int64_t batchStride = 0;
};

struct mosaicBlasPreference {
  uint64_t workspaceBytes = 0;
  uint32_t reductionSchemes = 7;
  uint32_t alignments[4] = {256, 256, 256, 256};  // for a, b, c, d
};

using namespace emulated;
using namespace mosaic::cuda;

namespace {

/// Sets a field if the caller passes a value of the field's size.
template <class T>
BlasStatus copyAttribute(T& field, const void* value, size_t bytes) {
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

BlasStatus cublasLtMatmulDescCreate(BlasMatmulDesc* product, int computeType, int scaleType) {
  return *product = new mosaicBlasMatmulDesc{computeType, scaleType}, BLAS_SUCCESS;
}

BlasStatus cublasLtMatmulDescDestroy(BlasMatmulDesc product) { return delete product, BLAS_SUCCESS; }

BlasStatus cublasLtMatmulDescSetAttribute(BlasMatmulDesc product, int attribute, const void* value, size_t bytes) {
  switch (attribute) {
    case BLAS_TRANSPOSE_A: return copyAttribute(product->transposeA, value, bytes);
    case BLAS_TRANSPOSE_B: return copyAttribute(product->transposeB, value, bytes);
    case BLAS_EPILOGUE: return copyAttribute(product->epilogue, value, bytes);
    case BLAS_BIAS_POINTER: return copyAttribute(product->bias, value, bytes);
    default: return BLAS_NOT_SUPPORTED;
  }
}

BlasStatus cublasLtMatrixLayoutCreate(BlasLayout* layout, int type, uint64_t rows, uint64_t columns,
                                      int64_t leadingDimension) {
  return *layout = new mosaicBlasLayout{type, rows, columns, leadingDimension}, BLAS_SUCCESS;
}

BlasStatus cublasLtMatrixLayoutDestroy(BlasLayout layout) { return delete layout, BLAS_SUCCESS; }

BlasStatus cublasLtMatrixLayoutSetAttribute(BlasLayout layout, int attribute, const void* value, size_t bytes) {
  switch (attribute) {
    case BLAS_BATCH_COUNT: return copyAttribute(layout->batch, value, bytes);
    case BLAS_BATCH_STRIDE: return copyAttribute(layout->batchStride, value, bytes);
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
    case BLAS_WORKSPACE_BYTES: return copyAttribute(preference->workspaceBytes, value, bytes);
    case BLAS_REDUCTION_SCHEMES: return copyAttribute(preference->reductionSchemes, value, bytes);
    case BLAS_ALIGNMENT_A:
    case BLAS_ALIGNMENT_B:
    case BLAS_ALIGNMENT_C:
    case BLAS_ALIGNMENT_D: return copyAttribute(preference->alignments[attribute - BLAS_ALIGNMENT_A], value, bytes);
    default: return BLAS_NOT_SUPPORTED;
  }
}

}  // extern "C"

namespace {

/// The contents of an emulated algorithm: a magic number, the alignments it assumes, and its workspace size.
struct AlgorithmData {
  uint64_t magic, workspaceBytes;
  uint32_t alignments[4];
};
constexpr uint64_t kMagic = 0x4d6f73616963;
static_assert(sizeof(AlgorithmData) <= sizeof(BlasAlgorithm));

struct Operand {
  const char* data;
  mosaicBlasLayout layout;
  bool isTransposed;
};

size_t elementBytes(int type) { return type == BLAS_FLOAT32 ? 4 : 2; }

float float16ToFloat(uint16_t bits) {
  _Float16 value;
  std::memcpy(&value, &bits, 2);
  return static_cast<float>(value);
}

float loadElement(const Operand& x, int64_t row, int64_t column, int64_t batch) {
  if (x.isTransposed) std::swap(row, column);
  const int64_t at = batch * x.layout.batchStride + column * x.layout.leadingDimension + row;
  const char* element = x.data + at * static_cast<int64_t>(elementBytes(x.layout.type));
  uint32_t bits = 0;
  std::memcpy(&bits, element, elementBytes(x.layout.type));
  if (x.layout.type == BLAS_FLOAT16) return float16ToFloat(static_cast<uint16_t>(bits));
  return std::bit_cast<float>(x.layout.type == BLAS_BFLOAT16 ? bits << 16 : bits);
}

void storeElement(const Operand& x, int64_t row, int64_t column, int64_t batch, float value) {
  const int64_t at = batch * x.layout.batchStride + column * x.layout.leadingDimension + row;
  char* element = const_cast<char*>(x.data) + at * static_cast<int64_t>(elementBytes(x.layout.type));
  const auto bits = std::bit_cast<uint32_t>(value);
  if (x.layout.type == BLAS_FLOAT32) {
    std::memcpy(element, &value, 4);
  } else if (x.layout.type == BLAS_FLOAT16) {
    const auto float16Value = static_cast<_Float16>(value);
    std::memcpy(element, &float16Value, 2);
  } else {
    const auto bits16 = static_cast<uint16_t>(value != value ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    std::memcpy(element, &bits16, 2);
  }
}

/// Rounds to a 16-bit type; float32 is returned unchanged.
float roundTo(int type, float x) {
  if (type == BLAS_FLOAT32) return x;
  if (type == BLAS_FLOAT16) return static_cast<float>(static_cast<_Float16>(x));
  const auto bits = std::bit_cast<uint32_t>(x);
  return x != x ? x : std::bit_cast<float>((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u);
}

/// Rounds to the 10-bit mantissa of TF32.
float roundToTf32(float x) { return std::bit_cast<float>((std::bit_cast<uint32_t>(x) + 0x1000) & ~0x1fffu); }

/// Whether all memory that an operand may access is allocated on the device.
bool isInDeviceMemory(const Operand& x) {
  const auto [type, rows, columns, leadingDimension, batch, batchStride] = x.layout;
  const int64_t elements =
      (batch - 1) * batchStride + (static_cast<int64_t>(columns) - 1) * leadingDimension + static_cast<int64_t>(rows);
  return deviceMemory().contains(x.data, static_cast<size_t>(elements) * elementBytes(type));
}

struct Task {
  Operand a, b, out, bias;  // bias.data is null if there is no bias
  float alpha, beta;
  bool usesTf32;

  /// Version 13.1 rounds the product before it adds the previous value, as observed on an H200. With beta 0 the
  /// previous value is not read: it may be NaN.
  float finish(float sum, int64_t row, int64_t column, int64_t batch) const {
    if (beta == 0) return alpha * sum;
    return roundTo(out.layout.type, alpha * sum) + beta * loadElement(out, row, column, batch);
  }

  void run() const {
    for (const Operand* x : {&a, &b, &out, &bias}) {
      if (x->data && !isInDeviceMemory(*x))
        return setStickyError(CUDA_ERROR_ILLEGAL_ADDRESS, "cuBLASLt: an operand is out of bounds of its allocation");
    }
    // The heuristic has no preference for the alignment of a bias, so kernels may load 16 bytes of it at a time.
    if (bias.data && alignmentOf(bias.data) < 16)
      return setStickyError(CUDA_ERROR_ILLEGAL_ADDRESS, "cuBLASLt: the bias is not aligned to 16 bytes");
    const auto depth = static_cast<int64_t>(a.isTransposed ? a.layout.rows : a.layout.columns);
    for (int64_t i = 0; i < out.layout.batch; i++) {
      for (int64_t column = 0; column < static_cast<int64_t>(out.layout.columns); column++) {
        for (int64_t row = 0; row < static_cast<int64_t>(out.layout.rows); row++) {
          float sum = 0;
          for (int64_t k = 0; k < depth; k++) {
            const float left = loadElement(a, row, k, i), right = loadElement(b, k, column, i);
            sum = usesTf32 ? std::fma(roundToTf32(left), roundToTf32(right), sum) : std::fma(left, right, sum);
          }
          if (bias.data) sum += loadElement(bias, row, 0, 0);
          storeElement(out, row, column, i, finish(sum, row, column, i));
        }
      }
    }
  }
};

/// Returns the bias, one element per row of `out`.
Operand makeBias(const mosaicBlasMatmulDesc& product, const mosaicBlasLayout& out) {
  if (product.epilogue != BLAS_EPILOGUE_BIAS) return {nullptr, out, false};
  mosaicBlasLayout layout{out.type, out.rows, 1, static_cast<int64_t>(out.rows)};
  return {static_cast<const char*>(product.bias), layout, false};
}

bool isDenseColumnMajor(const mosaicBlasLayout& x) {
  return x.leadingDimension >= static_cast<int64_t>(x.rows) && x.rows > 0 && x.columns > 0;
}

/// Whether sizes are consistent and the library multiplies these types.
bool isSupportedProduct(const mosaicBlasMatmulDesc& product, const mosaicBlasLayout& a, const mosaicBlasLayout& b,
                        const mosaicBlasLayout& out) {
  const uint64_t m = product.transposeA ? a.columns : a.rows, k = product.transposeA ? a.rows : a.columns;
  const uint64_t k2 = product.transposeB ? b.columns : b.rows, n = product.transposeB ? b.rows : b.columns;
  const bool hasSupportedTypes = a.type == b.type && (out.type == a.type || out.type == BLAS_FLOAT32) &&
                                 product.scaleType == BLAS_FLOAT32 &&
                                 (product.computeType == BLAS_COMPUTE_FLOAT32 ||
                                  (product.computeType == BLAS_COMPUTE_TF32 && a.type == BLAS_FLOAT32));
  return hasSupportedTypes && isDenseColumnMajor(a) && isDenseColumnMajor(b) && isDenseColumnMajor(out) && k == k2 &&
         m == out.rows && n == out.columns && a.batch == out.batch && b.batch == out.batch;
}

}  // namespace

extern "C" {

BlasStatus cublasLtMatmulAlgoGetHeuristic(BlasHandle, BlasMatmulDesc product, BlasLayout a, BlasLayout b, BlasLayout c,
                                          BlasLayout d, BlasPreference preference, int requestedCount,
                                          BlasHeuristicResult* choices, int* returnedCount) {
  *returnedCount = 0;
  if (!isSupportedProduct(*product, *a, *b, *d) || std::memcmp(c, d, sizeof *c) != 0) return BLAS_INVALID_VALUE;
  if (product->epilogue != kDefaultEpilogue && (product->epilogue != BLAS_EPILOGUE_BIAS || !product->bias))
    return BLAS_INVALID_VALUE;
  if (requestedCount < 1 || preference->reductionSchemes != BLAS_REDUCE_IN_COMPUTE_TYPE) return BLAS_INVALID_VALUE;
  if (const char* setting = std::getenv("MOSAIC_EMULATED_NO_ALGORITHM"); setting && *setting) return BLAS_NOT_SUPPORTED;
  AlgorithmData algorithmData{kMagic, std::min<uint64_t>(preference->workspaceBytes, 4096), {}};
  std::copy_n(preference->alignments, 4, algorithmData.alignments);
  choices[0] = {};
  std::memcpy(&choices[0].algorithm, &algorithmData, sizeof algorithmData);
  choices[0].workspaceBytes = algorithmData.workspaceBytes;
  *returnedCount = 1;
  return BLAS_SUCCESS;
}

BlasStatus cublasLtMatmul(BlasHandle, BlasMatmulDesc product, const void* alpha, const void* a, BlasLayout aLayout,
                          const void* b, BlasLayout bLayout, const void* beta, const void* c, BlasLayout, void* d,
                          BlasLayout dLayout, const BlasAlgorithm* algorithm, void* workspace, size_t workspaceBytes,
                          CUstream stream) {
  AlgorithmData algorithmData;
  std::memcpy(&algorithmData, algorithm, sizeof algorithmData);
  if (algorithmData.magic != kMagic || workspaceBytes < algorithmData.workspaceBytes || c != d)
    return BLAS_INVALID_VALUE;
  const void* operands[] = {a, b, c, d};
  for (int i = 0; i < 4; i++) {
    if (alignmentOf(operands[i]) < algorithmData.alignments[i]) return BLAS_INVALID_VALUE;
  }
  if (algorithmData.workspaceBytes > 0 && !deviceMemory().contains(workspace, workspaceBytes))
    return BLAS_INVALID_VALUE;
  if (checkReady() != CUDA_SUCCESS) return BLAS_NOT_INITIALIZED;
  if (const char* setting = std::getenv("MOSAIC_EMULATED_LATE_REFUSAL"); setting && *setting) return BLAS_NOT_SUPPORTED;
  const Task task{{static_cast<const char*>(a), *aLayout, product->transposeA != 0},
                  {static_cast<const char*>(b), *bLayout, product->transposeB != 0},
                  {static_cast<const char*>(d), *dLayout, false},
                  makeBias(*product, *dLayout),
                  *static_cast<const float*>(alpha),
                  *static_cast<const float*>(beta),
                  product->computeType == BLAS_COMPUTE_TF32};
  streamOf(stream).enqueue([task] { task.run(); });
  return BLAS_SUCCESS;
}

}  // extern "C"
