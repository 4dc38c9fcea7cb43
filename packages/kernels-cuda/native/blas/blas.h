// Matrix products through cuBLASLt.
#pragma once

#include <array>
#include <map>
#include <memory>

#include "blas/api.h"
#include "device/memory.h"

namespace mosaic::cuda {

/// A matrix in BLAS's terms: columns of `rows` elements, `leadingDimension` elements apart, optionally transposed.
struct BlasMatrix {
  void* data;
  BlasType type;
  int64_t rows, columns, leadingDimension, batchStride;
  bool isTransposed;
};

/// out ← a · b, `batch` times; out is not transposed.
struct BlasProblem {
  BlasMatrix out, a, b;
  int32_t batch;
  bool accumulate;  // the product is added to out
  void* bias;       // one element of out's type per row of out, added before rounding; null for none
};

struct BlasOptions {
  int capability;
  bool allowsTf32;
  CUstream stream;
};

/// The cuBLASLt state of one device. Nothing is loaded before the first product.
class Blas {
 public:
  Blas(Memory& memory, const BlasOptions& options);
  ~Blas();
  Blas(const Blas&) = delete;

  /// Whether the library has an algorithm for the product, so that `start` can be called. Throws Failure if
  /// MOSAIC_CUBLASLT_LIBRARY names an unusable library.
  bool supports(const BlasProblem& problem);
  /// Enqueues a supported product. Returns false if the library rejects it after all, as 13.5.1 does for some matrices
  /// of one row; from then on it is unsupported. Throws Failure.
  bool start(const BlasProblem& problem);

 private:
  class MatmulAlgorithm;
  using Key = std::array<int64_t, 21>;

  bool open();
  Key makeKey(const BlasProblem& problem) const;
  MatmulAlgorithm& algorithmFor(const BlasProblem& problem);

  Memory& memory_;
  BlasOptions options_;
  bool isOpen_ = false;
  const BlasLibrary* library_ = nullptr;
  BlasHandle handle_ = nullptr;
  CUdeviceptr workspace_ = 0;
  size_t workspaceBytes_ = 0;
  std::map<Key, std::unique_ptr<MatmulAlgorithm>> algorithms_;
};

}  // namespace mosaic::cuda
