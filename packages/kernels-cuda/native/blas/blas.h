// Products of matrices through cuBLASLt.
#pragma once

#include <array>
#include <map>
#include <memory>

#include "blas/api.h"
#include "device/memory.h"

namespace mosaic::cuda {

/// As BLAS sees it: columns of `rows` elements, each `leadingDimension` elements behind the one before; perhaps to be
/// read transposed.
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
  bool accumulate;  // out is added to
  void* bias;       // one element of out's type for each row of out, added before rounding; null for none
};

struct BlasOptions {
  int capability;
  bool allowsTf32;
  CUstream stream;
};

/// What one device needs of the library. Nothing is loaded before the first product.
class Blas {
 public:
  Blas(Memory& memory, const BlasOptions& options);
  ~Blas();
  Blas(const Blas&) = delete;

  /// Whether the library has a way to do it; then `start` does. Throws Failure if the library was named and is of no
  /// use.
  bool supports(const BlasProblem& problem);
  /// Enqueues what was taken. False if the library takes that back, as 13.5.1 does of some matrices of one row; from
  /// then on it is not taken. Throws Failure.
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
