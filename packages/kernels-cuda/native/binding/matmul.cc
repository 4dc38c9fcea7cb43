#include "binding/kernels.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "binding/loop.h"
#include "kernels/reduce.h"

namespace mosaic::cuda {

namespace {

BlasType toBlasType(DType dtype) {
  return dtype == DType::Float32 ? BLAS_FLOAT32 : dtype == DType::BFloat16 ? BLAS_BFLOAT16 : BLAS_FLOAT16;
}

/// Describes the last two axes, without memory; `steps` are their strides. Empty if neither axis is dense, or rows
/// overlap.
std::optional<BlasMatrix> makeBlasMatrix(DType dtype, int64_t rows, int64_t columns, const int64_t (&steps)[2]) {
  const auto isColumnMajor = [](int64_t columnLength, int64_t step, int64_t numColumns, int64_t leadingDimension) {
    return (columnLength == 1 || step == 1) && (numColumns == 1 || leadingDimension >= columnLength);
  };
  const auto chooseLeadingDimension = [](int64_t columnLength, int64_t numColumns, int64_t leadingDimension) {
    return numColumns == 1 ? columnLength : leadingDimension;
  };
  // A single dense row is described as a transposed column, whose leading dimension is its own length.
  const bool isDenseRow = rows == 1 && columns > 1 && steps[1] == 1;
  if (!isDenseRow && isColumnMajor(rows, steps[0], columns, steps[1])) {
    return BlasMatrix{nullptr, toBlasType(dtype), rows, columns, chooseLeadingDimension(rows, columns, steps[1]), 0,
                      false};
  }
  if (isColumnMajor(columns, steps[1], rows, steps[0])) {
    return BlasMatrix{nullptr, toBlasType(dtype), columns, rows, chooseLeadingDimension(columns, rows, steps[0]), 0,
                      true};
  }
  return std::nullopt;
}

/// Swaps to outᵀ ← bᵀ · aᵀ, the same product. BLAS requires the form whose out has dense columns.
void swapFactors(BlasProblem& problem) {
  std::swap(problem.a, problem.b);
  for (BlasMatrix* matrix : {&problem.out, &problem.a, &problem.b}) matrix->isTransposed = !matrix->isTransposed;
}

/// Merges a batch with one common right factor (a weight) into a single product with more rows.
void mergeBatchIntoRows(MatmulParameters& p) {
  Loop<3>& batch = p.batch;
  if (batch.extent.rank != 1 || batch.operand[2].stride[0] != 0) return;
  const int64_t count = batch.extent.length[0];
  if (batch.operand[0].stride[0] != p.m * p.outStride[0] || batch.operand[1].stride[0] != p.m * p.aStride[0]) return;
  p.m *= count;
  batch.extent.rank = 0;
  batch.extent.count = 1;
}

/// Returns the address of an operand at `index` of the batch axes except the last, which the library iterates over.
void* batchAddress(const MatmulParameters& p, const Operand& operand, int64_t index) {
  int64_t offset = 0;
  for (int axis = p.batch.extent.rank - 2; axis >= 0; axis--) {
    offset += index % p.batch.extent.length[axis] * operand.stride[axis];
    index /= p.batch.extent.length[axis];
  }
  return static_cast<char*>(operand.data) + offset * dtypeBytes(operand.dtype);
}

/// Whether columns begin at multiples of 16 bytes. Otherwise the library may round a sum before it adds the bias.
bool hasAlignedColumns(const BlasMatrix* matrix) {
  const int64_t elements = matrix->type == BLAS_FLOAT32 ? 4 : 8;
  return alignmentOf(matrix->data) >= 16 && matrix->leadingDimension % elements == 0 &&
         matrix->batchStride % elements == 0;
}

/// Describes the product in terms of BLAS; empty if these dtypes and strides cannot be described.
std::optional<BlasProblem> makeProblem(const MatmulParameters& p, const View* bias, int64_t index) {
  const auto& [out, a, b] = p.batch.operand;
  if (p.k == 0 || a.dtype != b.dtype || (out.dtype != a.dtype && out.dtype != DType::Float32)) return std::nullopt;
  const auto outMatrix = makeBlasMatrix(out.dtype, p.m, p.n, p.outStride);
  const auto aMatrix = makeBlasMatrix(a.dtype, p.m, p.k, p.aStride);
  const auto bMatrix = makeBlasMatrix(b.dtype, p.k, p.n, p.bStride);
  if (!outMatrix || !aMatrix || !bMatrix) return std::nullopt;
  BlasProblem problem{*outMatrix, *aMatrix, *bMatrix, 1, p.accumulate != 0, nullptr};
  BlasMatrix* const matrices[] = {&problem.out, &problem.a, &problem.b};
  const int last = p.batch.extent.rank - 1;
  if (last >= 0 && p.batch.extent.length[last] > INT32_MAX) return std::nullopt;
  if (last >= 0) problem.batch = static_cast<int32_t>(p.batch.extent.length[last]);
  for (int i = 0; i < 3; i++) {
    matrices[i]->data = batchAddress(p, p.batch.operand[i], index);
    matrices[i]->batchStride = last >= 0 ? p.batch.operand[i].stride[last] : 0;
  }
  if (bias) {
    // The library's bias has one element per row of its out. If factors are swapped, these rows are our columns.
    const bool isDense = bias->rank == 1 && bias->stride[0] == 1;
    // The library selects a kernel by the alignment of the matrices only. It may load 16 bytes of the bias at a time,
    // which faults for a bias that starts elsewhere.
    const bool isAligned = alignmentOf(bias->data) >= 16 &&
                           std::all_of(std::begin(matrices), std::end(matrices), hasAlignedColumns);
    if (!isDense || !isAligned || bias->dtype != out.dtype || !problem.out.isTransposed) return std::nullopt;
    problem.bias = bias->data;
  }
  if (problem.out.isTransposed) swapFactors(problem);
  return problem;
}

/// Returns false if the library is absent or does not support the product. A bias, if not null, is added before sums
/// are rounded.
bool launchBlas(Device& device, const MatmulParameters& p, const View* bias) {
  constexpr int64_t kMaxBlasCalls = 64;
  const Extent& batch = p.batch.extent;
  const int64_t callCount = batch.rank == 0 ? 1 : batch.count / batch.length[batch.rank - 1];
  std::vector<BlasProblem> problems;
  for (int64_t i = 0; i < callCount; i++) {
    const std::optional<BlasProblem> problem = makeProblem(p, bias, i);
    if (callCount > kMaxBlasCalls || !problem || !device.blas().supports(*problem)) return false;
    problems.push_back(*problem);
  }
  size_t startedCount = 0;
  device.run("matmul (cuBLASLt)", [&] {
    while (startedCount < problems.size() && device.blas().start(problems[startedCount])) startedCount++;
  });
  if (startedCount == problems.size()) return true;
  // The fallback kernel repeats the calls that were launched, unless they accumulate, which would add them twice.
  if (startedCount == 0 || !p.accumulate) return false;
  throw Failure(MOSAIC_FAILURE_DEVICE,
                "matmul: cublasLtMatmul failed for a supported problem; disable cuBLASLt: "
                "MOSAIC_CUBLASLT_LIBRARY=none");
}

void launchKernel(Device& device, const MatmulParameters& p) {
  const auto tiles = [](int64_t length) { return (length + kMatmulTileSide - 1) / kMatmulTileSide; };
  const auto blocks = static_cast<unsigned>(tiles(p.m) * tiles(p.n));
  const auto batch = static_cast<unsigned>(std::min<int64_t>(p.batch.extent.count, device.maxGridDim()));
  device.launch("matmul", {{blocks, batch}, {kMatmulThreads}, kMatmulSharedBytes}, p);
}

MatmulParameters makeMatmulParameters(const MatmulArguments& args) {
  const auto& [out, a, b, accumulate] = args;
  const auto batchDims = [](View view) {
    view.rank -= 2;
    return view;
  };
  const View batchViews[3] = {batchDims(out), batchDims(a), batchDims(b)};
  MatmulParameters p{};
  p.batch = makeLoop<3>({&batchViews[0], &batchViews[1], &batchViews[2]});
  p.m = out.shape[out.rank - 2];
  p.n = out.shape[out.rank - 1];
  p.k = a.shape[a.rank - 1];
  p.accumulate = accumulate;
  const auto copyMatrixStrides = [](int64_t (&to)[2], const View& view) {
    to[0] = view.stride[view.rank - 2];
    to[1] = view.stride[view.rank - 1];
  };
  copyMatrixStrides(p.outStride, out);
  copyMatrixStrides(p.aStride, a);
  copyMatrixStrides(p.bStride, b);
  mergeBatchIntoRows(p);
  return p;
}

int64_t countOutputs(const MatmulParameters& p) { return p.m * p.n * p.batch.extent.count; }

/// The kernels that may compute a product: cuBLASLt only, or else the fallback kernel.
enum class ProductKernel { BlasOnly, Any };

/// out ← a · b + addend for a 16-bit out. cuBLASLt rounds the product before it adds, so the product is stored in
/// float32 and added by a separate kernel. Returns false if there is not enough memory for that, or no such kernel.
bool launchProductAndAdd(Device& device, const MatmulArguments& args, const View& addend, int64_t outputs,
                         ProductKernel kernel) {
  const size_t bytes = static_cast<size_t>(outputs) * sizeof(float);
  const CUdeviceptr memory = device.memory().allocate(bytes);
  if (memory == 0) return false;
  const View product = makeDenseView(memory, args.out);
  const MatmulParameters p = makeMatmulParameters({product, args.a, args.b, false});
  bool isStarted = launchBlas(device, p, nullptr);
  if (!isStarted && kernel == ProductKernel::Any) {
    launchKernel(device, p);
    isStarted = true;
  }
  if (isStarted) binaryOp(device, {BinaryOp::Add, args.out, addend, product});
  device.memory().free(memory, bytes);
  return isStarted;
}

}  // namespace

void matmulOp(Device& device, const MatmulArguments& args) {
  const MatmulParameters p = makeMatmulParameters(args);
  const int64_t outputs = countOutputs(p);
  if (outputs == 0) return;
  const bool isRoundedTwice = args.accumulate && args.out.dtype != DType::Float32;
  const bool isStarted = isRoundedTwice
                             ? launchProductAndAdd(device, args, args.out, outputs, ProductKernel::BlasOnly)
                             : launchBlas(device, p, nullptr);
  if (!isStarted) launchKernel(device, p);
}

bool matmulWithBias(Device& device, const MatmulArguments& args, const View& bias) {
  const MatmulParameters p = makeMatmulParameters(args);
  const int64_t outputs = countOutputs(p);
  if (outputs == 0 || launchBlas(device, p, &bias)) return true;
  // The caller copies the bias to out, which would round it.
  const bool isBiasRounded = args.out.dtype != DType::Float32 && bias.dtype != args.out.dtype;
  return isBiasRounded && launchProductAndAdd(device, args, bias, outputs, ProductKernel::Any);
}

}  // namespace mosaic::cuda
