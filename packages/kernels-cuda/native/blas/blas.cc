// The description of one kind of product for cuBLASLt, and the algorithm that it selected.
#include "blas/blas.h"

#include "blas/api.h"
#include "mosaic/failure.h"

namespace mosaic::cuda {

/// Created once for each kind of product, because selecting an algorithm takes longer than launching it.
class Blas::MatmulAlgorithm {
 public:
  struct Settings {
    BlasHandle handle;
    BlasCompute compute;
    size_t workspaceBytes;
  };

  MatmulAlgorithm(const BlasFunctions& blas, const Settings& settings, const BlasProblem& problem);
  ~MatmulAlgorithm();
  MatmulAlgorithm(const MatmulAlgorithm&) = delete;

  /// Whether the library has an algorithm.
  bool hasAlgorithm() const { return algorithmCount_ > 0 && heuristicResult_.state == BLAS_SUCCESS; }
  /// Marks the algorithm as unavailable.
  void invalidate() { algorithmCount_ = 0; }
  BlasStatus start(const Settings& settings, const BlasProblem& problem, CUdeviceptr workspace, CUstream stream) const;

 private:
  BlasLayout createLayout(const BlasMatrix& matrix, int32_t batch) const;
  void select(const Settings& settings, const BlasProblem& problem);

  const BlasFunctions& blas_;
  BlasMatmulDesc matmulDesc_ = nullptr;
  BlasLayout out_ = nullptr, a_ = nullptr, b_ = nullptr;
  BlasHeuristicResult heuristicResult_{};
  int algorithmCount_ = 0;
};

Blas::MatmulAlgorithm::MatmulAlgorithm(const BlasFunctions& blas, const Settings& settings, const BlasProblem& problem)
    : blas_(blas) {
  blas_.matmulDescCreate(&matmulDesc_, settings.compute, BLAS_FLOAT32);
  const auto setTranspose = [&](BlasMatmulDescAttribute attribute, const BlasMatrix& matrix) {
    const int32_t operation = matrix.isTransposed ? BLAS_TRANSPOSE : BLAS_NO_TRANSPOSE;
    blas_.matmulDescSet(matmulDesc_, attribute, &operation, sizeof operation);
  };
  setTranspose(BLAS_TRANSPOSE_A, problem.a);
  setTranspose(BLAS_TRANSPOSE_B, problem.b);
  if (problem.bias) {
    blas_.matmulDescSet(matmulDesc_, BLAS_EPILOGUE, &BLAS_EPILOGUE_BIAS, sizeof BLAS_EPILOGUE_BIAS);
    blas_.matmulDescSet(matmulDesc_, BLAS_BIAS_POINTER, &problem.bias, sizeof problem.bias);
  }
  out_ = createLayout(problem.out, problem.batch);
  a_ = createLayout(problem.a, problem.batch);
  b_ = createLayout(problem.b, problem.batch);
  select(settings, problem);
}

Blas::MatmulAlgorithm::~MatmulAlgorithm() {
  for (const BlasLayout layout : {out_, a_, b_}) blas_.layoutDestroy(layout);
  blas_.matmulDescDestroy(matmulDesc_);
}

BlasLayout Blas::MatmulAlgorithm::createLayout(const BlasMatrix& matrix, int32_t batch) const {
  BlasLayout layout = nullptr;
  blas_.layoutCreate(&layout, matrix.type, static_cast<uint64_t>(matrix.rows), static_cast<uint64_t>(matrix.columns),
                     matrix.leadingDimension);
  blas_.layoutSet(layout, BLAS_BATCH_COUNT, &batch, sizeof batch);
  blas_.layoutSet(layout, BLAS_BATCH_STRIDE, &matrix.batchStride, sizeof matrix.batchStride);
  return layout;
}

void Blas::MatmulAlgorithm::select(const Settings& settings, const BlasProblem& problem) {
  BlasPreference preference = nullptr;
  blas_.preferenceCreate(&preference);
  const uint64_t workspace = settings.workspaceBytes;
  blas_.preferenceSet(preference, BLAS_WORKSPACE_BYTES, &workspace, sizeof workspace);
  const auto setPreference = [&](BlasPreferenceAttribute attribute, uint32_t value) {
    blas_.preferenceSet(preference, attribute, &value, sizeof value);
  };
  // Partial sums are float32 and are rounded once, at the end, whatever the split.
  setPreference(BLAS_REDUCTION_SCHEMES, BLAS_REDUCE_IN_COMPUTE_TYPE);
  setPreference(BLAS_ALIGNMENT_A, alignmentOf(problem.a.data));
  setPreference(BLAS_ALIGNMENT_B, alignmentOf(problem.b.data));
  setPreference(BLAS_ALIGNMENT_C, alignmentOf(problem.out.data));
  setPreference(BLAS_ALIGNMENT_D, alignmentOf(problem.out.data));
  const BlasStatus status = blas_.select(settings.handle, matmulDesc_, a_, b_, out_, out_, preference, 1,
                                         &heuristicResult_, &algorithmCount_);
  if (status != BLAS_SUCCESS) algorithmCount_ = 0;
  blas_.preferenceDestroy(preference);
}

BlasStatus Blas::MatmulAlgorithm::start(const Settings& settings, const BlasProblem& problem, CUdeviceptr workspace,
                             CUstream stream) const {
  const float alpha = 1, beta = problem.accumulate ? 1 : 0;
  if (problem.bias) blas_.matmulDescSet(matmulDesc_, BLAS_BIAS_POINTER, &problem.bias, sizeof problem.bias);
  void* workspacePointer = reinterpret_cast<void*>(static_cast<uintptr_t>(workspace));
  return blas_.multiply(settings.handle, matmulDesc_, &alpha, problem.a.data, a_, problem.b.data, b_, &beta,
                        problem.out.data, out_, problem.out.data, out_, &heuristicResult_.algorithm, workspacePointer,
                        settings.workspaceBytes, stream);
}

namespace {

/// Returns the size that NVIDIA recommends; Hopper's kernels need more.
size_t recommendedWorkspaceBytes(int capability) { return capability >= 90 ? size_t{32} << 20 : size_t{8} << 20; }

/// Maximum number of cached algorithms. A program with more kinds of products recreates them from time to time.
constexpr size_t kMaxAlgorithms = 1024;

BlasCompute selectComputeType(const BlasProblem& problem, bool isTf32Allowed) {
  return isTf32Allowed && problem.a.type == BLAS_FLOAT32 ? BLAS_COMPUTE_TF32 : BLAS_COMPUTE_FLOAT32;
}

}  // namespace

Blas::Blas(Memory& memory, const BlasOptions& options) : memory_(memory), options_(options) {}

Blas::~Blas() {
  algorithms_.clear();
  if (handle_) library_->functions.destroy(handle_);
}

bool Blas::open() {
  if (isOpen_) return handle_ != nullptr;
  library_ = blasLibrary();
  isOpen_ = true;
  if (!library_) return false;
  const BlasStatus status = library_->functions.create(&handle_);
  if (status != BLAS_SUCCESS) {
    handle_ = nullptr;
    throw Failure(MOSAIC_FAILURE_DEVICE, "matmul: cublasLtCreate failed with " +
                                             std::string(library_->functions.getStatusName(status)) + " from " +
                                             library_->name + " " + library_->version +
                                             "; update the NVIDIA driver, free GPU memory, or disable cuBLASLt: "
                                             "MOSAIC_CUBLASLT_LIBRARY=none");
  }
  workspace_ = memory_.reserveScratch(recommendedWorkspaceBytes(options_.capability));
  workspaceBytes_ = workspace_ ? recommendedWorkspaceBytes(options_.capability) : 0;
  return true;
}

Blas::Key Blas::makeKey(const BlasProblem& problem) const {
  const auto& [out, a, b, batch, accumulate, bias] = problem;
  return {out.rows,         out.columns,         a.isTransposed ? a.rows : a.columns,
          out.leadingDimension,         a.leadingDimension,              b.leadingDimension,
          out.batchStride,  a.batchStride,       b.batchStride,
          out.type,         a.type,              b.type,
          a.isTransposed,   b.isTransposed,      alignmentOf(out.data),
          alignmentOf(a.data), alignmentOf(b.data), batch,
          bias != nullptr};
}

Blas::MatmulAlgorithm& Blas::algorithmFor(const BlasProblem& problem) {
  const Key key = makeKey(problem);
  const auto entry = algorithms_.find(key);
  if (entry != algorithms_.end()) return *entry->second;
  if (algorithms_.size() >= kMaxAlgorithms) algorithms_.clear();
  const MatmulAlgorithm::Settings settings{handle_, selectComputeType(problem, options_.allowsTf32), workspaceBytes_};
  return *(algorithms_[key] = std::make_unique<MatmulAlgorithm>(library_->functions, settings, problem));
}

bool Blas::supports(const BlasProblem& problem) { return open() && algorithmFor(problem).hasAlgorithm(); }

bool Blas::start(const BlasProblem& problem) {
  const MatmulAlgorithm::Settings settings{handle_, selectComputeType(problem, options_.allowsTf32), workspaceBytes_};
  MatmulAlgorithm& algorithm = algorithmFor(problem);
  const BlasStatus status = algorithm.start(settings, problem, workspace_, options_.stream);
  if (status == BLAS_SUCCESS) return true;
  if (status == BLAS_NOT_SUPPORTED) return algorithm.invalidate(), false;
  throw Failure(MOSAIC_FAILURE_DEVICE, "matmul of " + std::to_string(problem.out.rows) + " × " +
                                           std::to_string(problem.out.columns) + " results: cuBLASLt returned " +
                                           library_->functions.getStatusName(status));
}

}  // namespace mosaic::cuda
