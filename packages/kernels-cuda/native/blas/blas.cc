#include "blas/blas.h"

#include "blas/alignment.h"
#include "blas/plan.h"
#include "mosaic/failure.h"

namespace mosaic::cuda {

namespace {

/// What NVIDIA recommends: Hopper's kernels want more.
size_t wantedWorkspace(int capability) { return capability >= 90 ? size_t{32} << 20 : size_t{8} << 20; }

/// Plans that are kept; a program with more kinds of products than that makes them anew now and then.
constexpr size_t kMostPlans = 1024;

BlasCompute computeOf(const BlasProblem& problem, bool tf32) {
  return tf32 && problem.a.type == BLAS_FLOAT32 ? BLAS_COMPUTE_TF32 : BLAS_COMPUTE_FLOAT32;
}

}  // namespace

Blas::Blas(Memory& memory, const BlasOptions& options) : memory_(memory), options_(options) {}

Blas::~Blas() {
  plans_.clear();
  if (handle_) library_->functions.destroy(handle_);
}

bool Blas::open() {
  if (isOpened_) return handle_ != nullptr;
  library_ = blasLibrary();
  isOpened_ = true;
  if (!library_) return false;
  const BlasStatus status = library_->functions.create(&handle_);
  if (status != BLAS_SUCCESS) {
    handle_ = nullptr;
    throw Failure(MOSAIC_FAILURE_DEVICE, "matmul: expected cuBLASLt to start, received " +
                                             std::string(library_->functions.getStatusName(status)) + " from " +
                                             library_->name + " " + library_->version +
                                             "; update NVIDIA's driver, free memory of the GPU, or do without the "
                                             "library: MOSAIC_CUBLASLT_LIBRARY=none");
  }
  workspace_ = memory_.keepScratch(wantedWorkspace(options_.capability));
  workspaceBytes_ = workspace_ ? wantedWorkspace(options_.capability) : 0;
  return true;
}

Blas::Key Blas::keyOf(const BlasProblem& problem) const {
  const auto& [out, a, b, batch, accumulate] = problem;
  return {out.rows,         out.columns,         a.isTransposed ? a.rows : a.columns,
          out.lead,         a.lead,              b.lead,
          out.batchStride,  a.batchStride,       b.batchStride,
          out.type,         a.type,              b.type,
          a.isTransposed,   b.isTransposed,      alignmentOf(out.data),
          alignmentOf(a.data), alignmentOf(b.data), batch};
}

Blas::Plan& Blas::planOf(const BlasProblem& problem) {
  const Key key = keyOf(problem);
  const auto found = plans_.find(key);
  if (found != plans_.end()) return *found->second;
  if (plans_.size() >= kMostPlans) plans_.clear();
  const Plan::Settings settings{handle_, computeOf(problem, options_.tf32), workspaceBytes_};
  return *(plans_[key] = std::make_unique<Plan>(library_->functions, settings, problem));
}

bool Blas::takes(const BlasProblem& problem) { return open() && planOf(problem).isFound(); }

bool Blas::start(const BlasProblem& problem) {
  const Plan::Settings settings{handle_, computeOf(problem, options_.tf32), workspaceBytes_};
  Plan& plan = planOf(problem);
  const BlasStatus status = plan.start(settings, problem, workspace_, options_.stream);
  if (status == BLAS_SUCCESS) return true;
  if (status == BLAS_NOT_SUPPORTED) return plan.drop(), false;
  throw Failure(MOSAIC_FAILURE_DEVICE, "matmul of " + std::to_string(problem.out.rows) + " × " +
                                           std::to_string(problem.out.columns) + " results: cuBLASLt returned " +
                                           library_->functions.getStatusName(status));
}

}  // namespace mosaic::cuda
