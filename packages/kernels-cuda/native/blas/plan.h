// The description of one kind of product for cuBLASLt, and how it chose to do it.
#pragma once

#include "blas/blas.h"

namespace mosaic::cuda {

/// Made once for each kind: to choose takes longer than to start.
class Blas::Plan {
 public:
  struct Settings {
    BlasHandle handle;
    BlasCompute compute;
    size_t workspaceBytes;
  };

  Plan(const BlasFunctions& blas, const Settings& settings, const BlasProblem& problem);
  ~Plan();
  Plan(const Plan&) = delete;

  /// Whether the library has an algorithm.
  bool isFound() const { return found_ > 0 && choice_.state == BLAS_SUCCESS; }
  /// It was none.
  void drop() { found_ = 0; }
  BlasStatus start(const Settings& settings, const BlasProblem& problem, CUdeviceptr workspace, CUstream stream) const;

 private:
  BlasLayout layoutOf(const BlasMatrix& matrix, int32_t batch) const;
  void choose(const Settings& settings, const BlasProblem& problem);

  const BlasFunctions& blas_;
  BlasProduct product_ = nullptr;
  BlasLayout out_ = nullptr, a_ = nullptr, b_ = nullptr;
  BlasChoice choice_{};
  int found_ = 0;
};

}  // namespace mosaic::cuda
