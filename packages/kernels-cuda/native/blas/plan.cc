#include "blas/plan.h"

#include "blas/alignment.h"

namespace mosaic::cuda {

Blas::Plan::Plan(const BlasFunctions& blas, const Settings& settings, const BlasProblem& problem) : blas_(blas) {
  blas_.productCreate(&product_, settings.compute, BLAS_FLOAT32);
  const auto transpose = [&](BlasProductAttribute attribute, const BlasMatrix& matrix) {
    const int32_t operation = matrix.isTransposed ? BLAS_TRANSPOSED : BLAS_AS_IT_IS;
    blas_.productSet(product_, attribute, &operation, sizeof operation);
  };
  transpose(BLAS_TRANSPOSE_A, problem.a);
  transpose(BLAS_TRANSPOSE_B, problem.b);
  out_ = layoutOf(problem.out, problem.batch);
  a_ = layoutOf(problem.a, problem.batch);
  b_ = layoutOf(problem.b, problem.batch);
  choose(settings, problem);
}

Blas::Plan::~Plan() {
  for (const BlasLayout layout : {out_, a_, b_}) blas_.layoutDestroy(layout);
  blas_.productDestroy(product_);
}

BlasLayout Blas::Plan::layoutOf(const BlasMatrix& matrix, int32_t batch) const {
  BlasLayout layout = nullptr;
  blas_.layoutCreate(&layout, matrix.type, static_cast<uint64_t>(matrix.rows), static_cast<uint64_t>(matrix.columns),
                     matrix.lead);
  blas_.layoutSet(layout, BLAS_BATCH_COUNT, &batch, sizeof batch);
  blas_.layoutSet(layout, BLAS_BATCH_STRIDE, &matrix.batchStride, sizeof matrix.batchStride);
  return layout;
}

void Blas::Plan::choose(const Settings& settings, const BlasProblem& problem) {
  BlasPreference preference = nullptr;
  blas_.preferenceCreate(&preference);
  const uint64_t workspace = settings.workspaceBytes;
  blas_.preferenceSet(preference, BLAS_WORKSPACE_BYTES, &workspace, sizeof workspace);
  const auto set = [&](BlasPreferenceAttribute attribute, uint32_t value) {
    blas_.preferenceSet(preference, attribute, &value, sizeof value);
  };
  // Sums are float32 to the end and are rounded once, however they are split.
  set(BLAS_REDUCTION_SCHEMES, BLAS_REDUCE_IN_COMPUTE_TYPE);
  set(BLAS_ALIGNMENT_A, alignmentOf(problem.a.data));
  set(BLAS_ALIGNMENT_B, alignmentOf(problem.b.data));
  set(BLAS_ALIGNMENT_C, alignmentOf(problem.out.data));
  set(BLAS_ALIGNMENT_D, alignmentOf(problem.out.data));
  const BlasStatus status =
      blas_.choose(settings.handle, product_, a_, b_, out_, out_, preference, 1, &choice_, &found_);
  if (status != BLAS_SUCCESS) found_ = 0;
  blas_.preferenceDestroy(preference);
}

BlasStatus Blas::Plan::start(const Settings& settings, const BlasProblem& problem, CUdeviceptr workspace,
                             CUstream stream) const {
  const float alpha = 1, beta = problem.accumulate ? 1 : 0;
  void* room = reinterpret_cast<void*>(static_cast<uintptr_t>(workspace));
  return blas_.multiply(settings.handle, product_, &alpha, problem.a.data, a_, problem.b.data, b_, &beta,
                        problem.out.data, out_, problem.out.data, out_, &choice_.algorithm, room,
                        settings.workspaceBytes, stream);
}

}  // namespace mosaic::cuda
